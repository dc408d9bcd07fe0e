"""The tiers below the device of a model that is being loaded: reserved, measured, told."""

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ignisd import log
from ignisd.engine.capacity import CPU
from ignisd.engine.rates import Rates, Stopwatch, floor_tokens, measure
from ignisd.engine.runner import DeviceRunner
from ignisd.engine.tier_plan import TierSizes
from ignisd.engine.tiers import TierLimits, Tiers, shown_floor
from ignisd.errors import ConfigError
from ignisd.machine import disk_folder, require_folder
from ignisd.planning import Planned
from ignisd.settings import Settings
from state.spec import PAGE_TOKENS
from state.tiers.arena import Arena
from state.tiers.disk import Disk
from state.tiers.memory import ArenaRefused, HostArena
from state.tiers.scan import hold

_PRIVATE = 0o700

_log = logging.getLogger("ignisd.load")


@dataclass(frozen=True, slots=True)
class DiskPlan:
    """What kv_disk was told to be.

    Args:
        root: the folder, which is there and may be written.
        lock: an open file that keeps other processes out of it.
        ceiling_bytes: most bytes of files in it.
        floor_tokens: what a restore must add; None is to be measured.
        persist: whether files outlive the process.
        drain_ms: time for writing out what is retained before it ends.
    """

    root: Path
    lock: int
    ceiling_bytes: int
    floor_tokens: int | None
    persist: bool
    drain_ms: int


@dataclass(frozen=True, slots=True)
class Below:
    """What lies below the device of a loaded model.

    Args:
        sizes: as planned.
        arena: the bytes of kv_ram; None where there is none.
        disk: what kv_disk was told to be; None where there is none.
        token_bytes: bytes of a token's keys and values.
        window_bytes: most bytes that a round moves.
        ram_floor_tokens: what a restore from kv_ram must add.
        ttl_ms: idle time after which a state that a person left counts as an agent's.
        rates: what was measured; None without an arena.
    """

    sizes: TierSizes
    arena: HostArena | None
    disk: DiskPlan | None
    token_bytes: int
    window_bytes: int
    ram_floor_tokens: int
    ttl_ms: float
    rates: Rates | None = None

    @property
    def rows(self) -> npt.NDArray[np.uint8] | None:
        """The cells, for the runner."""
        return None if self.arena is None else self.arena.rows

    def tiers(self) -> Tiers | None:
        """The tiers as the scheduler takes them, all empty."""
        if self.arena is None:
            return None
        sizes = self.sizes
        limits = TierLimits(
            image_bytes=sizes.image_bytes,
            window_bytes=self.window_bytes,
            ram_floor_tokens=self.ram_floor_tokens,
        )
        return Tiers(limits, Arena.empty(sizes.num_cells, sizes.image_cells, sizes.cell_bytes))

    def settled(self) -> Mapping[str, object]:
        """What `auto` came to, by the keys of the settings."""
        found: dict[str, object] = {"reuse.kv-host-pool-bytes": self.sizes.arena_bytes}
        if self.arena is not None:
            found["reuse.window-bytes"] = self.window_bytes
            found["reuse.kv-ram-floor"] = shown_floor(self.ram_floor_tokens)
        if self.disk is not None:
            found["kv.disk-path"] = str(self.disk.root)
        return found

    def facts(self) -> Mapping[str, object] | None:
        """What the control plane tells of kv_ram; None where there is none."""
        if self.arena is None:
            return None
        rates = self.rates
        return {
            "bytes": self.sizes.arena_bytes,
            "cells": self.sizes.num_cells,
            "cell_bytes": self.sizes.cell_bytes,
            "image_cells": self.sizes.image_cells,
            "locked": self.arena.locked,
            "why_not_locked": self.arena.why or None,
            "measured": None if rates is None else shown_rates(rates),
        }

    def close(self) -> None:
        """Gives the arena's memory and the folder back; nobody may view its rows any more."""
        if self.disk is not None:
            os.close(self.disk.lock)
        if self.arena is not None:
            self.arena.close()


def reserve(settings: Settings, planned: Planned, environ: Mapping[str, str]) -> Below:
    """Reserves kv_ram and takes the folder of kv_disk.

    Raises:
        ConfigError: there is not so much memory, or the folder cannot be used.
    """
    sizes = planned.tiers
    disk = _disk(settings, environ) if sizes.disk_bytes else None
    arena = None
    if sizes.num_cells:
        try:
            arena = HostArena.reserve(sizes.num_cells, sizes.cell_bytes)
        except ArenaRefused as error:
            if disk is not None:
                os.close(disk.lock)
            raise ConfigError(f"kv_ram cannot be reserved: {error}") from error
        # An accelerator copies slower from memory that may be swapped; a CPU does not.
        refused = logging.INFO if planned.platform == CPU else logging.WARNING
        log.write(
            _log,
            logging.INFO if arena.locked else refused,
            "kv_ram",
            bytes=sizes.arena_bytes,
            cells=sizes.num_cells,
            locked=arena.locked,
            why=arena.why or None,
        )
    return Below(
        sizes=sizes,
        arena=arena,
        disk=disk,
        token_bytes=sizes.cell_bytes // PAGE_TOKENS,
        window_bytes=sizes.window_bytes,
        ram_floor_tokens=settings.reuse_kv_ram_floor or PAGE_TOKENS,
        ttl_ms=settings.reuse_retained_interactive_ttl * 1000.0,
    )


def measured(below: Below, settings: Settings, runner: DeviceRunner, watch: Stopwatch) -> Below:
    """With the window and the floor that suit this machine, where they are `auto`."""
    if below.arena is None:
        return below
    rates = measure(
        runner,
        watch,
        window_pages=below.sizes.window_pages,
        image_cells=below.sizes.image_cells,
        fits_decode=below.sizes.window_measured,
    )
    floor = settings.reuse_kv_ram_floor or floor_tokens(
        rates.prefill_tokens_s, rates.start_ms, below.token_bytes, rates.raise_bytes_s
    )
    log.write(_log, logging.INFO, "rates", **shown_rates(rates))
    return replace(
        below,
        rates=rates,
        window_bytes=rates.window_pages * below.sizes.cell_bytes,
        ram_floor_tokens=floor,
    )


def shown_rates(rates: Rates) -> dict[str, float]:
    """What was measured, in as many digits as mean something."""
    return {
        "prefill_tokens_s": round(rates.prefill_tokens_s, 1),
        "decode_ms": round(rates.decode_ms, 3),
        "lower_mib_s": round(rates.lower_bytes_s / (1 << 20), 1),
        "raise_mib_s": round(rates.raise_bytes_s / (1 << 20), 1),
        "start_ms": round(rates.start_ms, 3),
    }


def _disk(settings: Settings, environ: Mapping[str, str]) -> DiskPlan:
    root = disk_folder(settings.kv_disk_path, environ)
    require_folder("--kv-disk-path", root, _PRIVATE)
    try:
        lock = hold(Disk(), root)
    except OSError as error:
        raise ConfigError(f"--kv-disk-path {root} cannot be used: {error}") from error
    if lock is None:
        raise ConfigError(
            f"--kv-disk-path {root} belongs to another ignisd that is running; give this one "
            "another folder."
        )
    return DiskPlan(
        root=root,
        lock=lock,
        ceiling_bytes=settings.kv_disk_bytes,
        floor_tokens=settings.kv_disk_floor,
        persist=settings.kv_disk_persist,
        drain_ms=settings.kv_disk_drain_ms,
    )
