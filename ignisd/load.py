"""From settings to a loaded model: weights, memory plan, programs, probe."""

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

import jax
import jax.numpy as jnp

from ignisd import __version__, log
from ignisd.chat.checkpoint import ModelInfo, read_model_info
from ignisd.engine.capacity import MemoryPlan, Sizes, budget_for, plan_memory, settle
from ignisd.engine.probe import probe
from ignisd.engine.programs import Shape, compile_programs, empty_device
from ignisd.engine.runner import DeviceRunner
from ignisd.engine.world import Limits, World, new_world
from ignisd.errors import ConfigError
from ignisd.machine import cache_folder, read_host_memory
from ignisd.model.forward import ForwardSpec, Params
from ignisd.model.spec import ModelSpec, read_spec
from ignisd.model.weights import load
from ignisd.settings import Settings
from pallas_kernels.dispatch import default_path
from state.retention import RetentionPolicy
from state.spec import Fingerprint, KvFormat

EMBEDDED = "ember"
NUM_IMAGES = 3
"""Images that one prefill pass yields at most; a chunk with more cuts is split."""

_LAYOUT_VERSION = 1
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
        inexact: what broke the promise of exact reuse on this backend; empty where it holds.
    """

    info: ModelInfo
    world: World
    runner: DeviceRunner
    plan: MemoryPlan
    inexact: tuple[str, ...]


def find_model(name: str, models_dir: Path | None) -> tuple[str, Path]:
    """The name that clients use and the folder of a model.

    Args:
        name: of the embedded model, a folder, or a name below `models_dir`.

    Raises:
        ConfigError: there is no such folder.
    """
    if name == EMBEDDED:
        return name, Path(str(files("ignisd.ember") / "weights"))
    places = [Path(name)] if models_dir is None else [models_dir / name, Path(name)]
    for place in places:
        if (place / "config.json").is_file():
            return place.resolve().name, place
    tried = " and ".join(str(place) for place in places)
    raise ConfigError(
        f"--model {name}: no config.json in {tried}; name the embedded model "
        f"({EMBEDDED}), a checkpoint folder, or a folder below --models-dir"
    )


def load_model(
    settings: Settings, environ: Mapping[str, str], now: Callable[[], datetime], report: Progress
) -> Loaded:
    """Loads what the settings name, compiles every program, and probes exactness.

    Args:
        report: told how much is done, 0 to 1; called on this thread and on those that compile.

    Raises:
        ConfigError: the checkpoint or the settings cannot be served.
    """
    name, folder = find_model(settings.model, settings.models_dir)
    spec = read_spec(folder)
    platform = jax.default_backend()
    _keep_compiled(settings.compile_cache_dir or cache_folder(environ))
    image_bytes = spec.state_spec(settings.model_kv_format).image_bytes
    sizes = settle(settings, platform, spec.max_position, image_bytes)
    info = _with_eos(read_model_info(folder, name, sizes.max_context, now), spec)
    dtype = jnp.float32 if settings.model_kv_format is KvFormat.F32 else jnp.bfloat16
    params = load(folder, spec, dtype, lambda done, total: report(_WEIGHTS_SHARE * done / total))
    plan = _plan(settings, platform, spec, sizes, params)
    log.write(_log, logging.INFO, "memory_plan", model=name, pool_tokens=plan.pool_tokens)
    for line in plan.table().splitlines():
        _log.info(line)
    shape = Shape(
        num_pages=plan.num_pages,
        num_lanes=sizes.num_lanes,
        num_images=NUM_IMAGES,
        num_device_slots=sizes.num_device_slots,
        max_context=sizes.max_context,
        chunk_tokens=sizes.chunk_tokens,
    )
    forward_spec = ForwardSpec(spec, settings.model_kv_format, default_path())
    device = empty_device(forward_spec, shape)
    programs = compile_programs(
        forward_spec,
        shape,
        params,
        device,
        lambda done, total: report(_WEIGHTS_SHARE + (1 - _WEIGHTS_SHARE) * done / total),
    )
    inexact = tuple(probe(params, shape, programs, device))
    _say_exactness(inexact)
    return Loaded(
        info=info,
        world=_world(settings, forward_spec, sizes, plan, name),
        runner=DeviceRunner(params, shape, programs, device, sizes.num_host_slots),
        plan=plan,
        inexact=inexact,
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
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"--compile-cache-dir {folder} cannot be made: {error.strerror}; name a folder that "
            "this process may write"
        ) from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(
            f"--compile-cache-dir {folder} cannot be written; name a folder that this process "
            "may write"
        )
    jax.config.update("jax_compilation_cache_dir", str(folder / "programs"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


def _say_exactness(inexact: tuple[str, ...]) -> None:
    if not inexact:
        log.write(_log, logging.INFO, "exactness", exact="on")
    for finding in inexact:
        log.write(_log, logging.WARNING, "exactness", exact="off", found=finding)


def _plan(
    settings: Settings, platform: str, spec: ModelSpec, sizes: Sizes, params: Params
) -> MemoryPlan:
    stats = None if platform == "cpu" else jax.devices()[0].memory_stats()
    device_bytes = None if stats is None else int(stats["bytes_limit"])
    budget = budget_for(settings, platform, read_host_memory().usable_bytes, device_bytes)
    return plan_memory(
        spec.state_spec(settings.model_kv_format),
        sizes,
        budget,
        weights_bytes=sum(leaf.nbytes for leaf in jax.tree.leaves(params)),
        workspace_bytes=_workspace_bytes(spec, sizes.chunk_tokens),
        # Counts of generated tokens, marks of prompt tokens, and logits.
        sampling_bytes=sizes.num_lanes * spec.vocab_size * (4 + 1 + 4),
        num_captures=NUM_IMAGES + 1,
        pool=settings.vram_kv_pool_bytes,
    )


def _workspace_bytes(spec: ModelSpec, chunk_tokens: int) -> int:
    """Activations of one chunk that are alive together, at four bytes a number: an upper bound."""
    attention = 4 * spec.num_heads * spec.head_dim + 2 * spec.num_kv_heads * spec.head_dim
    delta = 3 * spec.conv_channels + 3 * spec.value_width
    widest = 4 * spec.hidden_size + max(attention, delta, 3 * spec.intermediate_size)
    return 4 * chunk_tokens * widest


def _world(
    settings: Settings, spec: ForwardSpec, sizes: Sizes, plan: MemoryPlan, name: str
) -> World:
    fingerprint = Fingerprint.of(
        layout=_LAYOUT_VERSION,
        model=name,
        spec=spec,
        build=__version__,
        jaxlib=version("jaxlib"),
        backend=jax.default_backend(),
    )
    return new_world(
        Limits(
            num_lanes=sizes.num_lanes,
            max_context=sizes.max_context,
            chunk_tokens=sizes.chunk_tokens,
            max_captures_per_chunk=NUM_IMAGES,
            decode_share=settings.model_decode_share,
            reuse=settings.reuse_prompt,
        ),
        RetentionPolicy(settings.reuse_retention_interval),
        fingerprint,
        num_pages=plan.num_pages,
        num_device_slots=sizes.num_device_slots,
        num_host_slots=sizes.num_host_slots,
    )
