"""From settings to a loaded model: memory plan, weights, programs, probe, rates."""

import contextlib
import ctypes
import gc
import logging
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

import jax
from jax.extend.backend import clear_backends

from ignisd import log
from ignisd.advise.record import open_trace
from ignisd.below import Below, measured, reserve
from ignisd.chat.checkpoint import ModelInfo, read_model_info
from ignisd.disk_tier import DiskTier, open_disk
from ignisd.engine.capacity import CPU, MemoryPlan
from ignisd.engine.files import FileThreads
from ignisd.engine.limits import Limits
from ignisd.engine.probe import probe
from ignisd.engine.programs import Shape, compile_programs, empty_device
from ignisd.engine.rates import Stopwatch
from ignisd.engine.runner import DeviceRunner
from ignisd.engine.tiers import shown_floor
from ignisd.engine.world import World, new_world
from ignisd.errors import ConfigError
from ignisd.fingerprint import fingerprint_of
from ignisd.http.serving import Facts
from ignisd.machine import cache_folder, require_folder
from ignisd.model.forward import ForwardSpec
from ignisd.model.spec import ModelSpec
from ignisd.model.weights import load
from ignisd.planning import NUM_IMAGES, Planned, plan_model, this_machine, weights_dtype
from ignisd.retaining import say_groups
from ignisd.settings import Settings
from pallas_kernels.dispatch import default_path
from state.retained import Kind
from state.spec import Fingerprint

_WEIGHTS_SHARE = 0.3
"""Part of the load's progress that reading weights makes up; compiling is the rest."""

_log = logging.getLogger("ignisd.load")

Progress = Callable[[float], None]


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model ready to serve.

    Args:
        info: what HTTP needs of it.
        world, runner: as the engine takes them.
        plan: the memory that is held.
        below: the tiers below the device.
        disk: kv_disk; None where it is off.
        inexact: what broke the promise of exact reuse on this backend; empty where it holds.
    """

    info: ModelInfo
    world: World
    runner: DeviceRunner
    plan: MemoryPlan
    below: Below
    disk: DiskTier | None
    inexact: tuple[str, ...]

    @property
    def files(self) -> FileThreads | None:
        """The threads of kv_disk; None where it is off."""
        return None if self.disk is None else self.disk.threads

    @property
    def drain_ms(self) -> float:
        """How long retained state may take to be written out before the model is closed."""
        return 0.0 if self.disk is None else self.disk.drain_ms

    @property
    def facts(self) -> Facts:
        """What the control plane tells of the model."""
        plan = self.plan
        return Facts(
            page_bytes=plan.page_bytes,
            image_bytes=plan.image_bytes,
            inexact=self.inexact,
            memory=tuple((line.name, str(line.where), line.num_bytes) for line in plan.lines),
            settled=self.settled(),
            kv_ram=self.below.facts(),
            kv_disk=None if self.disk is None else self.disk.facts(),
            rates=_rates_told(self.below),
        )

    def settled(self) -> Mapping[str, object]:
        """What settings that were `auto` came to, by their keys."""
        limits, slots = self.world.limits, self.world.slots
        found: dict[str, object] = {
            "model.max-context": limits.max_context,
            "model.prefill-chunk": limits.chunk_tokens,
            "spec.decode-lanes": limits.num_lanes,
            "reuse.retained-host": slots.num_slots - slots.num_device,
            **self.below.settled(),
        }
        if self.disk is not None:
            found["kv.disk-floor"] = shown_floor(self.disk.floor_tokens)
        return found

    def close(self) -> bool:
        """Gives back what the process would keep; the engine has stopped for good.

        Returns:
            False where a thread is stuck in the disk and still uses what would be given back.
        """
        if self.disk is not None and not self.disk.close():
            return False
        self.runner.release()
        self.below.close()
        return True


class ModelLoader:
    """Loads models for a process that may load several, one after the other.

    Args:
        environ: names folders.
        now: the wall clock.
    """

    def __init__(self, environ: Mapping[str, str], now: Callable[[], datetime]) -> None:
        self._environ = environ
        self._now = now

    def check(self, settings: Settings) -> None:
        """See whether a model could be loaded, as far as that shows without its weights.

        Raises:
            ConfigError: it could not.
        """
        planned = plan_model(settings, this_machine())
        _read_info(planned, self._now)

    def load(self, settings: Settings, report: Progress) -> Loaded:
        """See `load_model`."""
        return load_model(settings, self._environ, self._now, report)

    def free(self) -> None:
        """Give back to the system what models that were closed have left in this process.

        The backend goes with its pool of device memory and its programs; the allocator keeps most
        of what it is given back unless it is told otherwise.
        """
        gc.collect()
        clear_backends()
        gc.collect()
        with contextlib.suppress(AttributeError):  # an allocator other than glibc's
            ctypes.CDLL(None).malloc_trim(0)


def load_model(
    settings: Settings, environ: Mapping[str, str], now: Callable[[], datetime], report: Progress
) -> Loaded:
    """Loads what the settings name, compiles every program, and probes exactness.

    Args:
        report: told how much is done, 0 to 1; called on this thread and on those that compile.

    Raises:
        ConfigError: the checkpoint or the settings cannot be served.
    """
    if settings.trace_path is not None:
        open_trace(settings.trace_path).close()  # refused before anything is loaded
    _keep_compiled(settings.compile_cache_dir or cache_folder(environ))
    planned = plan_model(settings, this_machine())
    info = _read_info(planned, now)
    plan = planned.memory
    log.write(_log, logging.INFO, "memory_plan", model=planned.name, pool_tokens=plan.pool_tokens)
    for line in plan.table().splitlines():
        _log.info(line)
    below = reserve(settings, planned, environ)
    try:
        return _loaded(settings, planned, info, below, report)
    except BaseException as error:
        _forget_locals(error)
        below.close()
        raise


def _forget_locals(error: BaseException | None) -> None:
    """Let go of what the frames of an error hold: all that was loaded before it came."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def _read_info(planned: Planned, now: Callable[[], datetime]) -> ModelInfo:
    """The text half of a checkpoint.

    Raises:
        ConfigError: it is not there or not valid.
    """
    info = read_model_info(planned.folder, planned.name, planned.sizes.max_context, now)
    return _with_eos(info, planned.spec)


def _loaded(
    settings: Settings, planned: Planned, info: ModelInfo, below: Below, report: Progress
) -> Loaded:
    """The weights, the programs, and what they show of the machine."""

    def weights_read(done: int, total: int) -> None:
        report(_WEIGHTS_SHARE * done / total)

    def compiled(done: int, total: int) -> None:
        report(_WEIGHTS_SHARE + (1 - _WEIGHTS_SHARE) * done / total)

    kv_format = settings.model_kv_format
    params = load(planned.folder, planned.spec, weights_dtype(kv_format), weights_read)
    shape = _shape(planned)
    forward_spec = ForwardSpec(planned.spec, kv_format, default_path())
    device = empty_device(forward_spec, shape)
    programs = compile_programs(forward_spec, shape, params, device, compiled)
    watch = Stopwatch(lambda: time.perf_counter() * 1000.0)
    inexact = tuple(probe(params, shape, programs, device, watch))
    _say_exactness(inexact)
    num_host_slots = planned.sizes.num_host_slots
    runner = DeviceRunner(
        params, shape, programs, device, num_host_slots, rows=below.rows, clock=watch.clock
    )
    below = measured(below, settings, runner, watch)
    stamp = fingerprint_of(planned, forward_spec, across_starts=below.disk is not None)
    world = _world(settings, stamp, planned, below)
    disk = open_disk(below, stamp, world.next_retained_id, clock_ms, _wall_ms)
    _say_policy(settings, planned, below, disk)
    return Loaded(
        info=info,
        world=_with_disk(world, disk),
        runner=runner,
        plan=planned.memory,
        below=below,
        disk=disk,
        inexact=inexact,
    )


def _shape(planned: Planned) -> Shape:
    sizes, tiers = planned.sizes, planned.tiers
    staged = planned.platform != CPU
    return Shape(
        num_pages=planned.memory.num_pages,
        num_lanes=sizes.num_lanes,
        num_images=NUM_IMAGES,
        num_device_slots=sizes.num_device_slots,
        max_context=sizes.max_context,
        chunk_tokens=sizes.chunk_tokens,
        window_pages=min(tiers.window_pages, tiers.num_cells) if staged else 0,
    )


def _with_eos(info: ModelInfo, spec: ModelSpec) -> ModelInfo:
    """The model's information with every token that its config calls an end of text.

    Raises:
        ConfigError: such a token is not in the vocabulary.
    """
    eos_ids = tuple(sorted({*info.defaults.eos_ids, *spec.eos_ids}))
    beyond = [token for token in eos_ids if token >= spec.vocab_size]
    if beyond:
        raise ConfigError(
            f"eos_token_id {beyond[0]} of --model {info.name} is beyond its vocabulary of "
            f"{spec.vocab_size} tokens"
        )
    return replace(info, defaults=replace(info.defaults, eos_ids=eos_ids))


def _keep_compiled(folder: Path) -> None:
    """Keep compiled programs between starts.

    Raises:
        ConfigError: the folder cannot be made or written.
    """
    require_folder("--compile-cache-dir", folder)
    jax.config.update("jax_compilation_cache_dir", str(folder / "programs"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


def _say_exactness(inexact: tuple[str, ...]) -> None:
    if not inexact:
        log.write(_log, logging.INFO, "exactness", exact="on")
    for finding in inexact:
        log.write(_log, logging.WARNING, "exactness", exact="off", found=finding)


def _say_policy(settings: Settings, planned: Planned, below: Below, disk: DiskTier | None) -> None:
    """What is retained, what that takes, and where."""
    interval, sizes = settings.reuse_retention_interval, planned.sizes
    kinds = [kind.value for kind in Kind if not interval.is_zero or kind is not Kind.PERIODIC]
    log.write(
        _log,
        logging.INFO,
        "retained",
        kinds=",".join(kinds) if settings.reuse_prompt else "none",
        interval_tokens=str(interval),
        image_bytes=planned.memory.image_bytes,
        page_bytes=planned.memory.page_bytes,
        host_slots=sizes.num_host_slots,
        device_slots=sizes.num_device_slots,
        ttl_s=settings.reuse_retained_interactive_ttl,
        kv_ram_bytes=below.sizes.arena_bytes,
        kv_ram_floor=shown_floor(below.ram_floor_tokens) if below.arena else None,
        window_bytes=below.window_bytes if below.arena else None,
        kv_disk_bytes=below.sizes.disk_bytes,
        kv_disk_floor=None if disk is None else shown_floor(disk.floor_tokens),
    )
    say_groups(settings, planned.kept, planned.policy, sizes.max_context, sizes.num_slots)


def _rates_told(below: Below) -> Mapping[str, float]:
    """What the advisor makes its clock of."""
    rates = below.rates
    if rates is None:
        return {}
    return {
        "prefill_tokens_s": rates.prefill_tokens_s,
        "decode_ms": rates.decode_ms,
        "raise_bytes_s": rates.raise_bytes_s,
        "cell_bytes": float(below.sizes.cell_bytes),
    }


def clock_ms() -> float:
    """The engine's clock: it never runs backwards."""
    return time.monotonic() * 1000.0


def _wall_ms() -> float:
    return time.time() * 1000.0


def _with_disk(world: World, disk: DiskTier | None) -> World:
    if disk is None or world.tiers is None:
        return world
    tiers = disk.added_to(world.tiers, _wall_ms() - clock_ms())
    return replace(world, tiers=tiers, next_retained_id=disk.next_id)


def _world(settings: Settings, stamp: Fingerprint, planned: Planned, below: Below) -> World:
    sizes = planned.sizes
    return new_world(
        Limits(
            num_lanes=sizes.num_lanes,
            max_context=sizes.max_context,
            chunk_tokens=sizes.chunk_tokens,
            max_captures_per_chunk=NUM_IMAGES,
            decode_share=settings.model_decode_share,
            ttl_ms=below.ttl_ms,
            reuse=settings.reuse_prompt,
        ),
        planned.policy,
        stamp,
        num_pages=planned.memory.num_pages,
        num_device_slots=sizes.num_device_slots,
        num_host_slots=sizes.num_host_slots,
        tiers=below.tiers(),
    )
