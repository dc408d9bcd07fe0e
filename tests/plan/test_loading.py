"""kv_ram from the settings to the scheduler: reserved, measured, told, and given back."""

import errno
import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from ignisd import daemon
from ignisd.below import Below, measured, reserve
from ignisd.engine import rates
from ignisd.engine.moves import Raise
from ignisd.engine.rates import Rates, Stopwatch
from ignisd.engine.tiers import NEVER_TOKENS, shown_floor
from ignisd.engine.types import Round
from ignisd.errors import ConfigError
from ignisd.load import Loaded, _shape, load_model
from ignisd.planning import Machine, Planned, plan_model, this_machine
from ignisd.settings import Settings
from state.tiers.memory import ArenaRefused, HostArena

MIB = 1 << 20
SMALL = Settings(
    model_max_context=512,
    model_prefill_chunk=64,
    spec_decode_lanes=2,
    reuse_retained_host=6,
    reuse_kv_host_pool_bytes=4 * MIB,
    reuse_retained_interactive_ttl=7.0,
)
RATES = Rates(1000.0, 50.0, 1e9, 1e9, 1.0, 3)


@dataclass(frozen=True)
class Load:
    """A model as it was loaded, and the lines of the log by their event."""

    model: Loaded
    planned: Planned
    logged: dict[str, dict[str, Any]]


class Lines(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.fields: dict[str, dict[str, Any]] = {}

    def emit(self, record: logging.LogRecord) -> None:
        self.fields[record.getMessage()] = getattr(record, "fields", {})


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Load]:
    settings = replace(SMALL, kv_disk_bytes=64 * MIB, kv_disk_path=tmp_path_factory.mktemp("files"))
    before = jax.config.values["jax_compilation_cache_dir"]
    lines = Lines()
    logger = logging.getLogger("ignisd.load")
    logger.addHandler(lines)
    level = logger.level
    logger.setLevel(logging.INFO)
    cache = str(Path.cwd() / ".pytest_cache" / "ignisd")
    try:
        model = load_model(
            settings, {"CACHE_DIRECTORY": cache}, lambda: datetime.now(UTC), lambda done: None
        )
        yield Load(model, plan_model(settings, this_machine()), lines.fields)
        if model.below.arena is not None and model.below.arena.rows.size:
            model.close()
    finally:
        logger.removeHandler(lines)
        logger.setLevel(level)
        jax.config.update("jax_compilation_cache_dir", before)


def test_the_plan_counts_the_weights_that_are_loaded(load: Load) -> None:
    assert load.model.plan == load.planned.memory
    held = sum(leaf.nbytes for leaf in jax.tree.leaves(load.model.runner._params))
    assert load.model.plan.line_bytes("weights") == held


def test_the_scheduler_and_the_runner_have_the_same_arena(load: Load) -> None:
    model = load.model
    tiers, cells = model.world.tiers, model.runner.cells
    assert tiers is not None
    assert cells is not None
    page_bytes, image_bytes = model.plan.page_bytes, model.plan.image_bytes
    assert cells.rows.shape == (4 * MIB // page_bytes, page_bytes)
    assert tiers.arena.num_cells == len(cells.rows)
    assert tiers.arena.cell_bytes == page_bytes
    assert tiers.arena.image_cells == -(-image_bytes // page_bytes)
    assert tiers.limits.image_bytes == image_bytes
    assert model.plan.line_bytes("kv_ram") == cells.rows.nbytes
    tiers.arena.check()


def test_what_comes_up_is_timed_and_nothing_else(load: Load) -> None:
    runner = load.model.runner
    idle = runner.fetch(runner.run(Round(1)))
    raised = runner.fetch(runner.run(Round(2, raises=(Raise(0, (0, 1), (1, 2)),))))
    assert idle.raised_ms < raised.raised_ms


def test_the_limits_are_what_was_asked_for_and_measured(load: Load) -> None:
    tiers, below = load.model.world.tiers, load.model.below
    assert tiers is not None
    assert below.rates is not None
    assert load.model.world.limits.ttl_ms == 7000.0
    assert tiers.limits.window_bytes == below.rates.window_pages * load.model.plan.page_bytes
    assert 0 < tiers.limits.window_bytes <= 4 * MIB
    assert tiers.limits.ram_floor_tokens == below.ram_floor_tokens
    assert below.ram_floor_tokens % 64 == 0
    for rate in (below.rates.prefill_tokens_s, below.rates.decode_ms, below.rates.raise_bytes_s):
        assert 0 < rate < 1e15


def test_the_start_says_what_is_retained_where_and_from_when_it_comes_back(load: Load) -> None:
    told, plan, below = load.logged["retained"], load.model.plan, load.model.below
    assert told["kinds"] == "prefix,checkpoint,turn_open,junction,interrupted"
    assert (told["interval_tokens"], told["host_slots"], told["device_slots"]) == ("0", 6, 0)
    assert (told["page_bytes"], told["image_bytes"]) == (plan.page_bytes, plan.image_bytes)
    assert (told["ttl_s"], told["kv_disk_bytes"]) == (7.0, 64 * MIB)
    tiers = load.model.world.tiers
    assert tiers is not None
    assert told["kv_disk_floor"] == shown_floor(tiers.limits.disk_floor_tokens)
    assert told["kv_ram_bytes"] == plan.line_bytes("kv_ram")
    assert told["kv_ram_floor"] == below.ram_floor_tokens
    assert told["window_bytes"] == below.window_bytes
    assert load.logged["rates"]["prefill_tokens_s"] > 0
    arena = below.arena
    assert arena is not None
    locked = {"locked": arena.locked, "why": arena.why or None}
    assert load.logged["kv_ram"].items() >= locked.items()


def test_the_control_plane_is_told_too(load: Load) -> None:
    facts, below = load.model.facts, load.model.below
    assert ("kv_ram", "host", load.model.plan.line_bytes("kv_ram")) in facts.memory
    assert facts.settled["reuse.kv-host-pool-bytes"] == load.model.plan.line_bytes("kv_ram")
    assert facts.settled["reuse.window-bytes"] == below.window_bytes
    assert facts.settled["reuse.kv-ram-floor"] == shown_floor(below.ram_floor_tokens)
    assert facts.settled["reuse.retained-host"] == 6
    assert facts.settled["spec.decode-lanes"] == 2
    tiers = load.model.world.tiers
    assert tiers is not None
    assert below.disk is not None
    assert facts.settled["kv.disk-path"] == str(below.disk.root)
    assert facts.settled["kv.disk-floor"] == shown_floor(tiers.limits.disk_floor_tokens)
    assert facts.kv_ram is not None
    assert below.arena is not None
    assert facts.kv_ram["locked"] is below.arena.locked
    assert facts.kv_ram["cells"] == below.sizes.num_cells
    assert facts.kv_ram["measured"] == load.logged["rates"]


def test_a_folder_that_another_has_is_refused_in_words(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is loaded."""
    plan = load.model.below.disk
    assert plan is not None
    settings = replace(SMALL, kv_disk_bytes=64 * MIB, kv_disk_path=plan.root)
    monkeypatch.setattr("ignisd.load._keep_compiled", lambda folder: None)
    monkeypatch.setattr("ignisd.load.load", lambda *args: pytest.fail("weights were read"))
    with pytest.raises(ConfigError, match="belongs to another ignisd"):
        load_model(settings, {}, lambda: datetime.now(UTC), lambda done: None)


def test_what_fails_while_much_views_the_arena_gives_it_back(
    load: Load, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The folder of files too: the model that is loaded again after a switch needs it."""
    kept: list[HostArena] = []
    real = HostArena.reserve

    def remembered(*sizes: Any) -> HostArena:
        kept.append(real(*sizes))
        return kept[-1]

    def torn(below: Below, *args: object) -> None:
        view = below.rows
        assert view is not None
        raise ConfigError("the files are torn")

    settings = replace(SMALL, kv_disk_bytes=64 * MIB, kv_disk_path=tmp_path)
    monkeypatch.setattr(HostArena, "reserve", remembered)
    monkeypatch.setattr("ignisd.load.open_disk", torn)
    monkeypatch.setattr("ignisd.load._keep_compiled", lambda folder: None)
    for _ in range(2):
        with pytest.raises(ConfigError, match="files are torn"):
            load_model(settings, {}, lambda: datetime.now(UTC), lambda done: None)
    assert [np.size(arena.rows) for arena in kept] == [0, 0]


def test_the_arena_goes_back_once_nobody_views_it(load: Load) -> None:
    """The last of this module's tests: afterwards the model cannot run."""
    arena = load.model.below.arena
    assert arena is not None
    assert load.model.close()
    assert arena.rows.size == 0


PLANNED = plan_model(SMALL, Machine("cpu", 8 << 30))


def test_memory_that_the_system_does_not_give_is_a_refusal_with_numbers_and_flag(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(num_cells: int, cell_bytes: int) -> HostArena:
        raise ArenaRefused(num_cells * cell_bytes, "Cannot allocate memory")

    monkeypatch.setattr(HostArena, "reserve", refused)
    with pytest.raises(ConfigError) as caught:
        reserve(SMALL, PLANNED, {})
    for part in (f"{4 * MIB} bytes", "Cannot allocate memory", "--reuse-kv-host-pool-bytes"):
        assert part in caught.value.message


@pytest.mark.parametrize(("platform", "level"), [("cpu", "INFO"), ("gpu", "WARNING")])
def test_what_cannot_be_locked_serves_and_says_why(
    platform: str,
    level: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    real = HostArena.reserve

    def unlocked(num_cells: int, cell_bytes: int) -> HostArena:
        return real(num_cells, cell_bytes, lambda address, num_bytes: errno.ENOMEM)

    monkeypatch.setattr(HostArena, "reserve", unlocked)
    with caplog.at_level(logging.INFO, "ignisd.load"):
        below = reserve(SMALL, replace(PLANNED, platform=platform), {})
    (line,) = [one for one in caplog.records if one.getMessage() == "kv_ram"]
    assert line.levelname == level
    assert vars(line)["fields"]["locked"] is False
    assert "LimitMEMLOCK" in vars(line)["fields"]["why"]
    facts = below.facts()
    assert facts is not None
    assert facts["locked"] is False
    assert "LimitMEMLOCK" in str(facts["why_not_locked"])
    below.close()


def test_without_kv_ram_nothing_lies_below() -> None:
    settings = replace(SMALL, reuse_kv_host_pool_bytes=0)
    below = reserve(settings, plan_model(settings, Machine("cpu", 8 << 30)), {})
    assert below.rows is None
    assert below.tiers() is None
    assert below.facts() is None
    assert measured(below, settings, None, Stopwatch()) is below  # type: ignore[arg-type]
    assert below.settled() == {"reuse.kv-host-pool-bytes": 0}
    below.close()


def _measured(
    monkeypatch: pytest.MonkeyPatch, settings: Settings, found: Rates = RATES
) -> tuple[Below, dict[str, Any]]:
    """The tiers of a machine with these rates, and how they were to be measured."""
    asked: dict[str, Any] = {}

    def measure(runner: object, watch: object, **how: Any) -> Rates:
        asked.update(how)
        return found

    monkeypatch.setattr("ignisd.below.measure", measure)
    planned = plan_model(settings, Machine("cpu", 8 << 30))
    below = reserve(settings, planned, {})
    below = measured(below, settings, None, Stopwatch())  # type: ignore[arg-type]
    below.close()
    return below, asked


def test_a_floor_is_what_the_rates_make_of_it_or_what_was_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    below, asked = _measured(monkeypatch, SMALL)
    assert below.ram_floor_tokens == 64
    assert (below.window_bytes, asked["fits_decode"]) == (3 * below.sizes.cell_bytes, True)
    slow = replace(RATES, start_ms=1000.0)
    floor = rates.floor_tokens(1000.0, 1000.0, below.token_bytes, 1e9)
    assert _measured(monkeypatch, SMALL, slow)[0].ram_floor_tokens == floor > 2000
    fixed = replace(SMALL, reuse_kv_ram_floor=777, reuse_window_bytes=10 * below.sizes.cell_bytes)
    below, asked = _measured(monkeypatch, fixed, slow)
    assert below.ram_floor_tokens == 777
    assert (asked["window_pages"], asked["fits_decode"]) == (10, False)
    tiers = below.tiers()
    assert tiers is not None
    assert tiers.limits.ram_floor_tokens == 777


def test_a_floor_that_is_never_reached_is_shown_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    below, _ = _measured(monkeypatch, SMALL, replace(RATES, raise_bytes_s=1.0))
    assert below.ram_floor_tokens == NEVER_TOKENS
    assert below.settled()["reuse.kv-ram-floor"] == "never"


def test_pages_cross_in_windows_only_where_the_device_has_its_own_memory() -> None:
    assert _shape(PLANNED).window_pages == 0
    settings = replace(SMALL, reuse_kv_host_pool_bytes=None)
    card = plan_model(settings, Machine("gpu", 64 << 30, 80 << 30))
    assert _shape(card).window_pages == card.tiers.window_pages == 32 * MIB // 32768
    few = plan_model(SMALL, Machine("gpu", 64 << 30, 80 << 30))
    assert _shape(few).window_pages == few.tiers.window_pages == 4 * MIB // 32768 - 7
    wide = replace(SMALL, reuse_window_bytes=1 << 30)
    card = plan_model(wide, Machine("gpu", 64 << 30, 80 << 30))
    assert _shape(card).window_pages == card.tiers.num_cells == 4 * MIB // 32768
    none = replace(SMALL, reuse_kv_host_pool_bytes=0)
    assert _shape(plan_model(none, Machine("gpu", 64 << 30, 80 << 30))).window_pages == 0


def test_the_folder_of_files_is_made_private_and_told(tmp_path: Path) -> None:
    settings = replace(SMALL, kv_disk_bytes=64 * MIB, kv_disk_floor=128, kv_disk_drain_ms=9)
    settings = replace(settings, kv_disk_persist=False, reuse_window_bytes=MIB)
    planned = plan_model(settings, Machine("cpu", 8 << 30))
    below = reserve(settings, planned, {"STATE_DIRECTORY": str(tmp_path)})
    disk = below.disk
    assert disk is not None
    assert disk.root == tmp_path / "kv_disk"
    assert disk.root.stat().st_mode & 0o777 == 0o700
    assert (disk.ceiling_bytes, disk.floor_tokens) == (64 * MIB, 128)
    assert (disk.persist, disk.drain_ms) == (False, 9)
    assert below.settled()["kv.disk-path"] == str(disk.root)
    below.close()
    other = replace(settings, kv_disk_path=tmp_path / "mine")
    below = reserve(other, planned, {})
    assert below.disk is not None
    assert below.disk.root == tmp_path / "mine"
    below.close()
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="--kv-disk-path"):
        reserve(replace(settings, kv_disk_path=tmp_path / "file"), planned, {})


def test_a_load_that_fails_gives_the_arena_back(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[HostArena] = []
    real = HostArena.reserve

    def remembered(*sizes: Any) -> HostArena:
        kept.append(real(*sizes))
        return kept[-1]

    def broken(*args: object) -> None:
        raise ConfigError("the weights are broken")

    monkeypatch.setattr(HostArena, "reserve", remembered)
    monkeypatch.setattr("ignisd.load.load", broken)
    monkeypatch.setattr("ignisd.load._keep_compiled", lambda folder: None)
    with pytest.raises(ConfigError, match="weights are broken"):
        load_model(SMALL, {}, lambda: datetime.now(UTC), lambda done: None)
    assert [np.size(arena.rows) for arena in kept] == [0]


def test_the_manager_is_asked_for_the_time_that_writing_out_may_take() -> None:
    asked = Settings(server_drain_timeout=30, kv_disk_drain_ms=2500)
    assert daemon.ending_s(asked) == 30
    assert daemon.ending_s(replace(asked, kv_disk_bytes=MIB)) == 32.5
    assert daemon.ending_s(replace(asked, kv_disk_bytes=MIB, kv_disk_persist=False)) == 30
