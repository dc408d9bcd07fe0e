"""What moves between the tiers costs: images, pages and files, against plain copies.

Everything goes through the runner and the jobs that serve, in rounds as the scheduler makes them,
and takes turns with a plain copy of as many bytes, so that a machine that is slower for a while is
slower for both. Nothing is timed before what went all the way down has come up with equal bits.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import numpy as np

from ignisd.bench.moves import LANE_TOKENS, LEAST_SHARE, ROW_TOKENS, Move, Places
from ignisd.bench.plain import PlainFile, block, took_s
from ignisd.bench.rows import Rows
from ignisd.bench.target import BenchError
from ignisd.engine.moves import Lower, Raise
from ignisd.engine.rates import run_rounds
from ignisd.engine.types import LaneSave, LaneStart, PrefillWork, Round, SamplingParams
from ignisd.load import load_model
from ignisd.settings import Settings
from state.chain import chain_of
from state.retained import Kind
from state.spec import PAGE_TOKENS, Class, Fingerprint
from state.tiers.disk import Disk
from state.tiers.files import runs
from state.tiers.format import Layout, record_of
from state.tiers.jobs import ReadOrder, WriteOrder, fetch, store
from state.tiers.scan import directory_of
from state.tiers.stored import Stored

_SEED = 20_261_130
_GREEDY = SamplingParams(temperature=0.0)
_FINGERPRINT = Fingerprint.of(bench="tiers")
_SIDE_BY_SIDE, _SCATTERED = "side by side", "scattered"
_COPIES = "memcpy"
_DIRECT = "plain direct I/O"
_CACHED = "plain I/O, synced"


class TierBench:
    """A loaded model whose state is moved about.

    Args:
        settings: of the model; kv_disk is not taken from them but its folder.
        folder: for files, on the disk that is to be measured.

    Raises:
        ConfigError: the model cannot be served.
        BenchError: there is no room for a state.
    """

    def __init__(self, settings: Settings, environ: Mapping[str, str], folder: Path) -> None:
        loaded = load_model(
            replace(settings, kv_disk_bytes=0),
            environ,
            lambda: datetime.now(UTC),
            lambda done: None,
        )
        if loaded.below.arena is None:
            raise BenchError("there is no kv_ram to measure; raise --reuse-kv-host-pool-bytes")
        self._loaded = loaded
        self._runner = loaded.runner
        self._rows = loaded.below.arena.rows
        self._folder = folder
        self._sizes = loaded.below.sizes
        self._window_pages = max(loaded.below.window_bytes // self._sizes.cell_bytes, 1)
        self._slots = loaded.world.slots
        self._rng = np.random.default_rng(_SEED)
        self._number = 0
        self._places = self._placed()

    @property
    def facts(self) -> dict[str, object]:
        """What is measured, for the head of the table."""
        return {
            "state_tokens": len(self._places.pages) * PAGE_TOKENS,
            "page_bytes": self._sizes.cell_bytes,
            "image_bytes": self._sizes.image_bytes,
            "window_pages": self._window_pages,
            "lanes": len(self._places.lanes),
            "locked": self._loaded.below.arena is not None and self._loaded.below.arena.locked,
        }

    def _placed(self) -> Places:
        """Room for the lanes, the state twice in the arena and once in the pool."""
        limits, pages = self._loaded.world.limits, self._loaded.world.pages.num_pages - 1
        each = min(limits.max_context, LANE_TOKENS + ROW_TOKENS) // PAGE_TOKENS
        each = min(each, pages // (2 * limits.num_lanes))
        image = self._sizes.image_cells
        length = min(
            limits.max_context // PAGE_TOKENS,
            pages - each * limits.num_lanes,
            (self._sizes.num_cells - 2 * image) // 2,
        )
        if length < 1 or each * PAGE_TOKENS <= LANE_TOKENS:
            raise BenchError(
                f"{pages} pages and {self._sizes.num_cells} cells leave no room for a state; raise "
                "--vram-kv-pool-bytes or --reuse-kv-host-pool-bytes"
            )
        cells = self._rng.permutation(2 * length).tolist()
        first = 1 + each * limits.num_lanes
        images = range(2 * length, 2 * (length + image))
        return Places(
            lanes=tuple(
                tuple(range(1 + lane * each, 1 + (lane + 1) * each))
                for lane in range(limits.num_lanes)
            ),
            pages=tuple((first + self._rng.permutation(length)).tolist()),
            cells=tuple(cells[:length]),
            other_cells=tuple(cells[length:]),
            image_cells=tuple(images[:image]),
            other_image_cells=tuple(images[image:]),
        )

    def measure(self, repetitions: int, report: Callable[[str], None]) -> list[Move]:
        """All moves, each kind in turn.

        Args:
            report: told of each repetition that begins.

        Raises:
            BenchError: what came up again differs, or a file could not be written.
        """
        report("equal bits")
        self._check()
        plain = PlainFile(self._folder / "plain", self._file_bytes)
        steps = [*self._image_steps(), *self._page_steps(), *self._file_steps(plain)]
        rows = Rows(self)
        try:
            for number in range(repetitions):
                report(f"repetition {number + 1}")
                for move, run, base in steps:
                    if base is not None:
                        move.base_s.append(took_s(base))
                    move.spent_s.append(took_s(run))
                rows.measure(repetitions)
        finally:
            plain.close()
        return [*(move for move, _, _ in steps), *rows.moves]

    def close(self) -> None:
        """Give back what is held."""
        self._rows = np.empty((0, 0), np.uint8)
        self._loaded.close()

    def run(self, rounds: Sequence[Round]) -> None:
        """Execute rounds and wait until the device is at rest."""
        run_rounds(self._runner, rounds)

    def read_lanes(self) -> None:
        """Every lane reads a prompt of its own, and has its first token."""
        chunk = self._loaded.world.limits.chunk_tokens
        vocab_size = self._runner.device.sampler.seen.shape[1]
        for lane, table in enumerate(self._places.lanes):
            tokens = self._rng.integers(0, vocab_size, LANE_TOKENS, np.int32)
            self.run([Round(0, starts=(LaneStart(lane, None, 0, _GREEDY, tokens),))])
            for start in range(0, LANE_TOKENS, chunk):
                part = tokens[start : start + chunk]
                last = start + len(part) == LANE_TOKENS
                work = PrefillWork(lane, lane, part, start, table, (), last)
                self.run([Round(0, prefill=work)])

    @property
    def places(self) -> Places:
        """Where things lie."""
        return self._places

    @property
    def window_pages(self) -> int:
        """Pages that a round moves beside a decode step."""
        return min(self._window_pages, len(self._places.pages))

    @property
    def window_bytes(self) -> int:
        """Their bytes."""
        return self.window_pages * self._sizes.cell_bytes

    @property
    def window_is_least(self) -> bool:
        """Whether a smaller window is never chosen."""
        return self._sizes.window_measured and self._window_pages <= self._sizes.image_cells

    @property
    def _state_bytes(self) -> int:
        return len(self._places.pages) * self._sizes.cell_bytes

    @property
    def _file_bytes(self) -> int:
        return self._state_bytes + len(self._places.image_cells) * self._sizes.cell_bytes

    def _image_steps(self) -> Iterator["_Step"]:
        """An image kept, and claimed from each place where it may lie."""
        places, image_bytes = self._places, self._sizes.image_bytes
        copy = _copying(image_bytes)
        lane = len(places.lanes) - 1
        for name, slot in self._slots_by_name():
            save = Round(0, saves=(LaneSave(0, slot, LANE_TOKENS),))
            move = Move(f"capture to a {name} slot", image_bytes, _COPIES)
            yield move, partial(self.run, [save]), copy
            claim = Round(0, starts=(self._start(lane, slot=slot),))
            move = Move(f"claim from a {name} slot", image_bytes, _COPIES)
            yield move, partial(self.run, [claim]), copy
        claim = Round(0, starts=(self._start(lane, image_cells=places.image_cells),))
        move = Move("claim from kv_ram, the image", image_bytes, _COPIES)
        yield move, partial(self.run, [claim]), copy

    def _page_steps(self) -> Iterator["_Step"]:
        """A state's pages at once, and a sequence evicted and resumed a window a round."""
        copy = _copying(self._state_bytes)
        for where, least in ((_SIDE_BY_SIDE, LEAST_SHARE), (_SCATTERED, None)):
            pages, cells = self._lying(where)
            down = Round(0, lowers=(Lower(0, pages, cells),))
            up = Round(0, raises=(Raise(0, cells, pages),))
            for name, work in (("device to kv_ram", down), ("kv_ram to device", up)):
                move = Move(f"{name}, {where}", self._state_bytes, _COPIES, least)
                yield move, partial(self.run, [work]), copy
        twice = _copying(2 * self._state_bytes)
        move = Move("evict and resume in windows", 2 * self._state_bytes, _COPIES)
        rounds = [*self._evicting(), *self._resuming(self._places.cells)]
        yield move, partial(self.run, rounds), twice

    def _file_steps(self, plain: PlainFile) -> Iterator["_Step"]:
        """A state written to its file and read, from cells side by side and from anywhere."""
        places = self._places
        plain.write()
        against = _DIRECT if plain.direct else _CACHED
        for where, least in ((_SIDE_BY_SIDE, LEAST_SHARE), (_SCATTERED, None)):
            _, cells = self._lying(where)
            put, get = self._filing(places.image_cells + cells)
            move = Move(f"kv_ram to kv_disk, {where}", self._file_bytes, against, least)
            yield move, put, plain.write
            move = Move(f"kv_disk to kv_ram, {where}", self._file_bytes, against, least)
            yield move, get, plain.read
        copy = _copying(self._state_bytes)

        def up() -> None:
            get()
            claim = self._start(len(places.lanes) - 1, image_cells=places.image_cells)
            self.run([Round(0, raises=(Raise(0, places.cells, places.pages),), starts=(claim,))])

        def plain_up() -> None:
            plain.read()
            copy()

        yield (
            Move("claim from kv_disk, all of it", self._file_bytes, f"{against}, memcpy"),
            up,
            plain_up,
        )

    def _lying(self, where: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Pages and cells of the state: as the ledgers hand them out, or in no order."""
        places = self._places
        if where == _SCATTERED:
            return places.pages, places.cells
        cells = sorted((*places.cells, *places.other_cells))
        return tuple(sorted(places.pages)), tuple(cells[: len(places.pages)])

    def _slots_by_name(self) -> Iterator[tuple[str, int]]:
        """The first slot of each kind that there is."""
        if self._slots.num_device:
            yield "device", 0
        if self._slots.num_slots > self._slots.num_device:
            yield "host", self._slots.num_device

    def _start(
        self, lane: int, *, slot: int | None = None, image_cells: tuple[int, ...] = ()
    ) -> LaneStart:
        return LaneStart(
            lane, slot, LANE_TOKENS, _GREEDY, np.zeros(0, np.int32), image_cells=image_cells
        )

    def _evicting(self) -> list[Round]:
        """The pages go down in windows, and the image of lane 0 with the last."""
        places, rounds = self._places, []
        for start in range(0, len(places.pages), self._window_pages):
            stop = start + self._window_pages
            lower = Lower(0, places.pages[start:stop], places.cells[start:stop])
            if stop >= len(places.pages):
                lower = replace(lower, lane=0, image_cells=places.image_cells)
            rounds.append(Round(0, lowers=(lower,)))
        return rounds

    def _resuming(self, cells: tuple[int, ...]) -> list[Round]:
        """They come up from these cells in windows, and lane 0 starts with the last."""
        places, rounds = self._places, []
        for start in range(0, len(places.pages), self._window_pages):
            stop = start + self._window_pages
            work = Raise(0, cells[start:stop], places.pages[start:stop])
            rounds.append(Round(0, raises=(work,)))
        begin = self._start(0, image_cells=places.image_cells)
        return [*rounds[:-1], replace(rounds[-1], starts=(begin,))]

    def _filing(self, cells: tuple[int, ...]) -> tuple[Callable[[], None], Callable[[], None]]:
        """Write a state that lies in some cells, and read it into these."""
        layout = Layout(_FINGERPRINT, self._sizes.cell_bytes, self._sizes.image_cells)
        num_pages = len(self._places.pages)
        chain = chain_of(np.arange(num_pages * PAGE_TOKENS, dtype=np.int32))
        kind, cls = Kind.CHECKPOINT, Class.AGENT
        stored = Stored(1, chain, chain.num_tokens, num_pages, kind, cls, None, 0, 0.0)
        directory = directory_of(self._folder, _FINGERPRINT)
        order = WriteOrder(1, directory, record_of(stored, layout, 0.0), ())
        path, disk = directory / order.record.name, Disk()
        reading = ReadOrder(path, layout, chain)

        def put() -> None:
            disk.remove(path)
            outcome = store(disk, order, runs(self._rows, cells))
            if not outcome.landed:
                raise BenchError(f"no file can be written in {self._folder}: {outcome.message}")

        def get() -> None:
            fetch(disk, reading, runs(self._rows, cells))

        return put, get

    def _check(self) -> None:
        """What goes all the way down comes up with equal bits, by every way."""
        places, rows = self._places, self._rows
        cells, others = list(places.cells), list(places.other_cells)
        sent = self._rng.integers(0, 256, (len(cells), rows.shape[1]), np.uint8)
        rows[cells] = sent
        self.read_lanes()
        self.run([Round(0, lowers=(Lower(0, (), (), lane=0, image_cells=places.image_cells),))])
        image = rows[list(places.image_cells)].copy()
        up = Round(0, raises=(Raise(0, places.cells, places.pages),))
        down = Round(0, lowers=(Lower(0, places.pages, places.other_cells),))
        self.run([up, down])
        self._require(np.array_equal(rows[others], sent), "pages from kv_ram and back")
        put, get = self._filing(places.image_cells + places.other_cells)
        put()
        rows[[*others, *places.image_cells]] = 0
        get()
        self._require(np.array_equal(rows[others], sent), "pages from a file")
        self._require(np.array_equal(rows[list(places.image_cells)], image), "an image from a file")
        self.run(self._resuming(places.other_cells))
        rows[cells] = 0
        self.run(self._evicting())
        self._require(np.array_equal(rows[cells], sent), "pages in windows")
        self._require(np.array_equal(rows[list(places.image_cells)], image), "an image in a lane")
        last = len(places.lanes) - 1
        for name, slot in self._slots_by_name():
            self.run(
                [
                    Round(0, saves=(LaneSave(0, slot, LANE_TOKENS),)),
                    Round(0, starts=(self._start(last, slot=slot),)),
                ]
            )
            lower = Lower(0, (), (), lane=last, image_cells=places.other_image_cells)
            self.run([Round(0, lowers=(lower,))])
            same = np.array_equal(rows[list(places.other_image_cells)], image)
            self._require(same, f"an image from a {name} slot")

    @staticmethod
    def _require(same: bool, what: str) -> None:
        if not same:
            raise BenchError(f"{what} differ from what was sent. Wrong copies are not timed")


_Step = tuple[Move, Callable[[], None], Callable[[], None] | None]


def _copying(num_bytes: int) -> Callable[[], None]:
    """A copy of so many bytes from one place to another, both of which are in memory."""
    source, target = block(num_bytes), block(num_bytes)
    return lambda: np.copyto(target, source)
