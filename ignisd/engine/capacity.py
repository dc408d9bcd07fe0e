"""The memory plan: every byte that will be held is named here before one is reserved.

All device memory is one budget. Weights, workspace, lanes, captures and device slots take what they
must; the KV pool takes the rest, or what it was told to. A plan that does not fit is refused with
its numbers and the flags that change them; it never shrinks what was asked for.
"""

import enum
from collections.abc import Iterator
from dataclasses import dataclass

from ignisd.errors import ConfigError
from ignisd.kinds import PoolSize, write_bytes
from ignisd.settings import Settings
from state.spec import PAGE_TOKENS, StateSpec

CPU = "cpu"
HOST_SLOTS = "host slots"
KV_RAM = "kv_ram"

_NULL_PAGES = 1
_CHUNK_TOKENS = {CPU: 256}
_CHUNK_TOKENS_ELSEWHERE = 1024
_LANES = {CPU: 4}
_LANES_ELSEWHERE = 8
_HOST_SLOTS_PER_LANE = 2
_CHEAP_SLOTS_PER_LANE = 16
_CHEAP_SLOTS_BYTES = 256 << 20
_CPU_BUDGET_DIVISOR = 4
_HEADROOM_DIVISOR = 20


class Where(enum.StrEnum):
    """Which memory a line of the plan is in."""

    DEVICE = "device"
    HOST = "host"


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many of each thing the engine has, all `auto` settled.

    Args:
        num_lanes: rows of the decode batch.
        chunk_tokens: most prompt tokens in a round, a multiple of 64.
        num_host_slots, num_device_slots: places for images in each memory; 0 without reuse.
        max_context: longest prompt and answer together, in tokens.
    """

    num_lanes: int
    chunk_tokens: int
    num_host_slots: int
    num_device_slots: int
    max_context: int

    @property
    def num_slots(self) -> int:
        """Slots in both memories."""
        return self.num_host_slots + self.num_device_slots

    @property
    def context_pages(self) -> int:
        """Pages of one full context."""
        return pages_for(self.max_context)


@dataclass(frozen=True, slots=True)
class Line:
    """One use of memory: its name, where it lies, how large it is, and what makes it that large."""

    name: str
    where: Where
    num_bytes: int
    note: str


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """What is reserved at load.

    Args:
        lines: every use of memory, the KV pool among them.
        budget_bytes: device memory that may be used, headroom included.
        headroom_bytes: part of the budget that no line may touch.
        host_limit_bytes: host memory that may be used.
        num_pages: pages of the pool, the null page included.
        page_bytes: bytes of a page.
        image_bytes: bytes of an image.
    """

    lines: tuple[Line, ...]
    budget_bytes: int
    headroom_bytes: int
    host_limit_bytes: int
    num_pages: int
    page_bytes: int
    image_bytes: int

    @property
    def pool_tokens(self) -> int:
        """Tokens that the pool holds; the null page holds none."""
        return (self.num_pages - _NULL_PAGES) * PAGE_TOKENS

    def total_bytes(self, where: Where) -> int:
        """Bytes of all lines in one memory."""
        return sum(line.num_bytes for line in self.lines if line.where is where)

    def line_bytes(self, name: str) -> int:
        """Bytes of one line, by its name."""
        return sum(line.num_bytes for line in self.lines if line.name == name)

    @property
    def free_bytes(self) -> int:
        """Device bytes that the plan leaves unused, headroom apart."""
        return self.budget_bytes - self.headroom_bytes - self.total_bytes(Where.DEVICE)

    def table(self) -> str:
        """The plan as lines of text, for the log."""
        return "\n".join(_rows(self))


def settle(settings: Settings, platform: str, model_context: int, image_bytes: int) -> Sizes:
    """The sizes that the settings ask for, with `auto` decided for the backend.

    Args:
        settings: what was asked for.
        platform: jax's name of the backend, e.g. cpu or gpu.
        model_context: longest context that the checkpoint allows.
        image_bytes: one captured state.

    Raises:
        ConfigError: the asked context is longer than the checkpoint allows.
    """
    max_context = settings.model_max_context or model_context
    if max_context > model_context:
        raise ConfigError(
            f"--model-max-context {max_context} is more than the {model_context} tokens that the "
            f"model allows; ask for {model_context} or fewer."
        )
    num_lanes = settings.spec_decode_lanes or _LANES.get(platform, _LANES_ELSEWHERE)
    host_slots = settings.reuse_retained_host
    if host_slots is None:
        # A pool that was sized by hand may be too small to give each of many slots its page.
        sized_by_hand = settings.vram_kv_pool_bytes is not None
        host_slots = _host_slots(num_lanes, image_bytes, 0 if sized_by_hand else _CHEAP_SLOTS_BYTES)
    return Sizes(
        num_lanes=num_lanes,
        chunk_tokens=settings.model_prefill_chunk
        or _CHUNK_TOKENS.get(platform, _CHUNK_TOKENS_ELSEWHERE),
        num_host_slots=host_slots if settings.reuse_prompt else 0,
        num_device_slots=settings.reuse_retained_device if settings.reuse_prompt else 0,
        max_context=max_context,
    )


def _host_slots(num_lanes: int, image_bytes: int, cheap_bytes: int) -> int:
    """Two slots a lane; more of them where images are small enough for many to cost little."""
    affordable = min(cheap_bytes // image_bytes, _CHEAP_SLOTS_PER_LANE * num_lanes)
    return max(_HOST_SLOTS_PER_LANE * num_lanes, affordable)


@dataclass(frozen=True, slots=True)
class Budget:
    """Memory that may be planned with, in bytes; `headroom_bytes` is part of `device_bytes`."""

    device_bytes: int
    headroom_bytes: int
    host_bytes: int
    shared: bool
    """Whether the device's memory is the host's, as on the CPU backend."""


def budget_for(
    settings: Settings, platform: str, host_bytes: int, device_bytes: int | None = None
) -> Budget:
    """The budget that the settings ask for, with `auto` decided for the backend.

    Args:
        settings: what was asked for.
        platform: jax's name of the backend.
        host_bytes: main memory that this process may use.
        device_bytes: memory of the accelerator; None where there is none.

    Raises:
        ConfigError: more was asked for than there is.
    """
    shared = platform == CPU or device_bytes is None
    have = host_bytes if device_bytes is None else device_bytes
    asked = settings.vram_budget_bytes
    if asked is not None and asked > have:
        raise ConfigError(
            f"--vram-budget-bytes {write_bytes(asked)} is more than the {mib(have)} that this "
            f"{'machine or control group' if shared else 'device'} has."
        )
    budget = asked if asked is not None else have // _CPU_BUDGET_DIVISOR if shared else have
    headroom = settings.vram_headroom_bytes
    if headroom is None:
        headroom = 0 if shared else budget // _HEADROOM_DIVISOR
    return Budget(budget, headroom, host_bytes, shared)


def plan_memory(
    spec: StateSpec,
    sizes: Sizes,
    budget: Budget,
    *,
    weights_bytes: int,
    workspace_bytes: int,
    sampling_bytes: int,
    num_captures: int,
    pool: PoolSize | None = None,
    below: tuple[Line, ...] = (),
) -> MemoryPlan:
    """Plan every byte, and give the KV pool what is left.

    Args:
        spec: bytes of a page and of an image.
        sizes: lanes, slots and context.
        budget: what may be used.
        weights_bytes: the parameters on the device.
        workspace_bytes: activations of one chunk and of one decode step.
        sampling_bytes: logits and penalty counts of all lanes.
        num_captures: images that one chunk's pass may emit, the discarded one included.
        pool: the pool's size when it was asked for; None gives it what is left, up to one full
            context per lane and per slot, beyond which nothing could ever use it.
        below: what the tiers below the device take.

    Raises:
        ConfigError: the pool would be smaller than one full context and one page per slot, what
            was asked for does not fit, or the host has too little memory.
    """
    image = spec.image_bytes
    fixed = (
        Line("weights", Where.DEVICE, weights_bytes, ""),
        Line("workspace", Where.DEVICE, workspace_bytes, f"chunk of {sizes.chunk_tokens} tokens"),
        Line("sampling", Where.DEVICE, sampling_bytes, f"{sizes.num_lanes} lanes"),
        _images("lanes", Where.DEVICE, sizes.num_lanes, image),
        _images("captures", Where.DEVICE, num_captures, image),
        _images("device slots", Where.DEVICE, sizes.num_device_slots, image),
        _images(HOST_SLOTS, Where.HOST, sizes.num_host_slots, image),
        *below,
    )
    fixed_bytes = sum(line.num_bytes for line in fixed if line.where is Where.DEVICE)
    left_bytes = budget.device_bytes - budget.headroom_bytes - fixed_bytes
    num_pages = _pool_pages(spec, sizes, left_bytes, pool)
    pool_line = Line(
        "KV pool",
        Where.DEVICE,
        num_pages * spec.page_bytes,
        f"{(num_pages - _NULL_PAGES) * PAGE_TOKENS} tokens in {num_pages - _NULL_PAGES} pages of "
        f"{spec.page_bytes} bytes, and the null page",
    )
    plan = MemoryPlan(
        lines=(*fixed, pool_line),
        budget_bytes=budget.device_bytes,
        headroom_bytes=budget.headroom_bytes,
        host_limit_bytes=budget.host_bytes,
        num_pages=num_pages,
        page_bytes=spec.page_bytes,
        image_bytes=spec.image_bytes,
    )
    _refuse_small_pool(plan, sizes, left_bytes, pool)
    if num_pages * spec.page_bytes > left_bytes:
        raise ConfigError(
            f"--vram-kv-pool-bytes asks for {mib(pool_line.num_bytes)}, but of the "
            f"{mib(budget.device_bytes)} budget {mib(fixed_bytes)} is taken and "
            f"{mib(budget.headroom_bytes)} is headroom, which leaves {mib(max(left_bytes, 0))}. "
            "Lower it, or raise --vram-budget-bytes."
        )
    _refuse_small_host(plan, budget)
    return plan


def pages_for(num_tokens: int) -> int:
    """Pages that hold so many tokens."""
    return -(-num_tokens // PAGE_TOKENS)


def _images(name: str, where: Where, count: int, image_bytes: int) -> Line:
    return Line(name, where, count * image_bytes, f"{count} images of {image_bytes} bytes")


def _pool_pages(spec: StateSpec, sizes: Sizes, left_bytes: int, pool: PoolSize | None) -> int:
    """Pages of the pool, the null page included."""
    if pool is None:
        useful = (sizes.num_lanes + sizes.num_slots) * sizes.context_pages + _NULL_PAGES
        return min(useful, max(left_bytes // spec.page_bytes, _NULL_PAGES))
    if pool.num_tokens is not None:
        return pages_for(pool.num_tokens) + _NULL_PAGES
    return max((pool.num_bytes or 0) // spec.page_bytes, _NULL_PAGES)


def _refuse_small_pool(
    plan: MemoryPlan, sizes: Sizes, left_bytes: int, pool: PoolSize | None
) -> None:
    least = sizes.context_pages + sizes.num_slots + _NULL_PAGES
    if plan.num_pages >= least:
        return
    wanted = (
        f"one full context of {sizes.max_context} tokens and one page for each of "
        f"{sizes.num_slots} slots need {least} pages ({mib(least * plan.page_bytes)}), the null "
        "page included"
    )
    fewer = "lower --model-max-context, --spec-decode-lanes or --reuse-retained-host"
    if pool is not None:
        raise ConfigError(
            f"--vram-kv-pool-bytes gives the KV pool {plan.num_pages} pages, but {wanted}. "
            f"Raise it, or {fewer}."
        )
    raise ConfigError(
        f"The KV pool would have {mib(max(left_bytes, 0))} of the {mib(plan.budget_bytes)} "
        f"budget, but {wanted}. Raise --vram-budget-bytes, or {fewer}.\n"
        f"{plan.table()}"
    )


def _refuse_small_host(plan: MemoryPlan, budget: Budget) -> None:
    device = plan.total_bytes(Where.DEVICE) if budget.shared else 0
    host = plan.total_bytes(Where.HOST)
    if device + host <= budget.host_bytes:
        return
    flags = {"--vram-budget-bytes": device} if budget.shared else {}
    flags["--reuse-retained-host"] = plan.line_bytes(HOST_SLOTS)
    flags["--reuse-kv-host-pool-bytes"] = plan.line_bytes(KV_RAM)
    uses = ", ".join(f"{flag} (now {mib(size)})" for flag, size in flags.items() if size)
    raise ConfigError(
        f"The plan holds {mib(device + host)} of main memory and this process may use "
        f"{mib(budget.host_bytes)}. Lower {uses}.\n{plan.table()}"
    )


def _rows(plan: MemoryPlan) -> Iterator[str]:
    """A row per line, then the totals; sizes in MiB, aligned."""
    for line in plan.lines:
        yield _row(line.name, line.where, line.num_bytes, line.note)
    device = plan.total_bytes(Where.DEVICE)
    note = f"of {mib(plan.budget_bytes)}; headroom {mib(plan.headroom_bytes)}"
    yield _row("total", Where.DEVICE, device, f"{note}, unused {mib(plan.free_bytes)}")
    host = plan.total_bytes(Where.HOST)
    yield _row("total", Where.HOST, host, f"of {mib(plan.host_limit_bytes)}")


def _row(name: str, where: Where, num_bytes: int, note: str) -> str:
    return f"{where:<7}{name:<14}{mib(num_bytes):>14}  {note}".rstrip()


def mib(num_bytes: int) -> str:
    """Bytes for a person to read."""
    return f"{num_bytes / (1 << 20):.1f} MiB"
