"""What lies below the device, in numbers: the cells of kv_ram, the window, the bytes of kv_disk.

What was asked for is kept or refused; `auto` takes what is useful and there, or nothing.
"""

from dataclasses import dataclass, replace

from ignisd.engine.capacity import CPU, KV_RAM, Budget, Line, Sizes, Where, mib
from ignisd.errors import ConfigError
from ignisd.kinds import write_bytes
from ignisd.settings import Settings
from state.spec import StateSpec

MOST_WINDOW_BYTES = 32 << 20
"""What `--reuse-window-bytes auto` is at most."""

_MOST_ARENA_BYTES = 2 << 30
_ARENA_DIVISOR = {CPU: 8}
_ARENA_DIVISOR_ELSEWHERE = 2
_CONTEXTS_PER_LANE = 4
_CHEAP_ARENA_BYTES = 256 << 20
_WINDOWS_UNDER_WAY = 4
"""One down and one up in each of two rounds."""


@dataclass(frozen=True, slots=True)
class TierSizes:
    """The tiers below the device.

    Args:
        num_cells: cells of kv_ram; 0 where there is none.
        image_cells: cells that an image takes.
        cell_bytes: bytes of a cell, which are those of a page.
        image_bytes: bytes of an image.
        window_pages: most pages that a round moves.
        window_measured: whether that is a bound, and what a round moves is measured at load.
        disk_bytes: ceiling of kv_disk; 0 where there is none.
    """

    num_cells: int
    image_cells: int
    cell_bytes: int
    image_bytes: int
    window_pages: int
    window_measured: bool
    disk_bytes: int = 0

    @property
    def arena_bytes(self) -> int:
        """Bytes of kv_ram."""
        return self.num_cells * self.cell_bytes

    @property
    def window_bytes(self) -> int:
        """Bytes of the window's pages."""
        return self.window_pages * self.cell_bytes

    def lines(self, platform: str) -> tuple[Line, ...]:
        """What the memory plan says of them."""
        note = f"{self.num_cells} cells of {self.cell_bytes} bytes, {self.image_cells} an image"
        arena = Line(KV_RAM, Where.HOST, self.arena_bytes, note)
        if platform == CPU or not self.num_cells:
            return (arena,)
        crossing = _WINDOWS_UNDER_WAY * self.window_bytes
        note = f"{_WINDOWS_UNDER_WAY} of {self.window_pages} pages"
        windows = (Line("windows", where, crossing, note) for where in (Where.DEVICE, Where.HOST))
        return (arena, *windows)

    @property
    def least_cells(self) -> int:
        """Cells of the smallest state: its image and a page."""
        return self.image_cells + 1


def plan_tiers(
    settings: Settings, platform: str, sizes: Sizes, budget: Budget, spec: StateSpec
) -> TierSizes:
    """The tiers that the settings ask for, with `auto` decided for the backend.

    Args:
        settings: what was asked for.
        platform: jax's name of the backend.
        sizes: lanes, slots and context.
        budget: the memory of the host and of the device.
        spec: bytes of a page and of an image.

    Raises:
        ConfigError: kv_ram holds no state, kv_disk cannot be read into it or holds none.
    """
    asked, window = settings.reuse_kv_host_pool_bytes, settings.reuse_window_bytes
    window_bytes = MOST_WINDOW_BYTES if window is None else window
    planned = TierSizes(
        num_cells=1,
        image_cells=-(-spec.image_bytes // spec.page_bytes),
        cell_bytes=spec.page_bytes,
        image_bytes=spec.image_bytes,
        window_pages=max(window_bytes // spec.page_bytes, 1),
        window_measured=window is None and platform == CPU,
        disk_bytes=settings.kv_disk_bytes,
    )
    arena_bytes = _auto_bytes(planned, platform, sizes, budget) if asked is None else asked
    planned = replace(planned, num_cells=arena_bytes // spec.page_bytes)
    if window is None:
        beside_image = max(planned.num_cells - planned.image_cells, 1)
        planned = replace(planned, window_pages=min(planned.window_pages, beside_image))
    if asked:
        _refuse_small_arena(planned)
    if planned.disk_bytes:
        _refuse_disk(planned)
    return planned


def _auto_bytes(one_cell: TierSizes, platform: str, sizes: Sizes, budget: Budget) -> int:
    """As much kv_ram as is there and useful; none where that holds no state.

    Args:
        one_cell: the tiers with an arena of one cell.
    """
    divisor = _ARENA_DIVISOR.get(platform, _ARENA_DIVISOR_ELSEWHERE)
    beside = one_cell.lines(platform)[1:]
    taken = sizes.num_host_slots * one_cell.image_bytes
    taken += sum(line.num_bytes for line in beside if line.where is Where.HOST)
    taken += budget.device_bytes if budget.shared else 0
    most = min(_MOST_ARENA_BYTES, budget.host_bytes // divisor, budget.host_bytes - taken)
    if platform == CPU:
        state_cells = one_cell.image_cells + sizes.context_pages
        useful_cells = _CONTEXTS_PER_LANE * sizes.num_lanes * state_cells
        most = min(most, max(useful_cells * one_cell.cell_bytes, _CHEAP_ARENA_BYTES))
    return most if most >= one_cell.least_cells * one_cell.cell_bytes else 0


def _refuse_small_arena(planned: TierSizes) -> None:
    if planned.num_cells < planned.least_cells:
        raise ConfigError(
            f"--reuse-kv-host-pool-bytes gives kv_ram {planned.num_cells} cells of "
            f"{planned.cell_bytes} bytes, but the smallest state takes {planned.least_cells}, "
            f"{planned.image_cells} of them for its image "
            f"({mib(planned.least_cells * planned.cell_bytes)}). Raise it, or set it to 0 to do "
            "without kv_ram."
        )


def _refuse_disk(planned: TierSizes) -> None:
    disk = f"--kv-disk-bytes {write_bytes(planned.disk_bytes)}"
    least_cells = planned.image_cells + planned.window_pages
    if planned.num_cells < least_cells:
        raise ConfigError(
            f"{disk} needs a kv_ram that holds an image and a window: {planned.image_cells} and "
            f"{planned.window_pages} cells are {mib(least_cells * planned.cell_bytes)}, and it has "
            f"{planned.num_cells} ({mib(planned.arena_bytes)}). Raise --reuse-kv-host-pool-bytes, "
            "lower --reuse-window-bytes, or set --kv-disk-bytes to 0."
        )
    least_bytes = planned.least_cells * planned.cell_bytes
    if planned.disk_bytes < least_bytes:
        raise ConfigError(
            f"{disk} holds no state: the smallest, an image and a page, takes {mib(least_bytes)}. "
            "Raise it, or set it to 0 to do without kv_disk."
        )
