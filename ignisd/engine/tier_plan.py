"""What lies below the device, in numbers: the cells of kv_ram, the window, the bytes of kv_disk.

What was asked for is kept or refused; `auto` takes what is useful and there, or nothing.
"""

from dataclasses import dataclass

from ignisd.engine.capacity import CPU, KV_RAM, Budget, Line, Sizes, Where, mib, pages_for
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
    asked = settings.reuse_kv_host_pool_bytes
    arena_bytes = _auto_bytes(platform, sizes, budget, spec) if asked is None else asked
    window = settings.reuse_window_bytes
    window_bytes = MOST_WINDOW_BYTES if window is None else window
    planned = TierSizes(
        num_cells=arena_bytes // spec.page_bytes,
        image_cells=_image_cells(spec),
        cell_bytes=spec.page_bytes,
        image_bytes=spec.image_bytes,
        window_pages=max(window_bytes // spec.page_bytes, 1),
        window_measured=window is None and platform == CPU,
        disk_bytes=settings.kv_disk_bytes,
    )
    if asked:
        _refuse_small_arena(planned)
    if planned.disk_bytes:
        _refuse_disk(planned)
    return planned


def _auto_bytes(platform: str, sizes: Sizes, budget: Budget, spec: StateSpec) -> int:
    """As much kv_ram as is there and useful; none where that holds no state."""
    divisor = _ARENA_DIVISOR.get(platform, _ARENA_DIVISOR_ELSEWHERE)
    taken = sizes.num_host_slots * spec.image_bytes + (budget.device_bytes if budget.shared else 0)
    most = min(_MOST_ARENA_BYTES, budget.host_bytes // divisor, budget.host_bytes - taken)
    if platform == CPU:
        state_cells = _image_cells(spec) + pages_for(sizes.max_context)
        most = min(most, _CONTEXTS_PER_LANE * sizes.num_lanes * state_cells * spec.page_bytes)
    return most if most >= (_image_cells(spec) + 1) * spec.page_bytes else 0


def _image_cells(spec: StateSpec) -> int:
    return -(-spec.image_bytes // spec.page_bytes)


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
