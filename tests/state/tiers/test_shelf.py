"""Who gets a file, who gives one up, and when nothing more is written, case by case."""

from dataclasses import replace
from pathlib import Path

import pytest

from state.chain import link_page
from state.check import check_tier
from state.retained import Kind
from state.spec import Class
from state.tiers.adopt import adopt
from state.tiers.condition import MOST_FAILURES, RETRY_MS, Condition
from state.tiers.jobs import Charged, Cleared, Outcome, Trouble, WriteOrder
from state.tiers.scan import Foreign, Scan, directory_of
from state.tiers.shelf import Shelf
from tests.state.tiers.disk_cases import OTHER, SMALL, case_of
from tests.state.tiers.pairs import constant
from tests.state.tiers.plain_tier import NEARLY_ONE, TTL_MS, Plain, plain

ROOT = Path("/kv")
NOW_MS, NOW_WALL_MS = 50.0, 1_000_000.0
FILE_BYTES = 3 * 4096
"""Of a state of one page: a header, its tokens, and less than a block of cells."""


def shelf_of(num_files: int, *states: Plain) -> Shelf:
    """A shelf with room for some files, on which these have landed."""
    shelf = Shelf.empty(ROOT, SMALL, num_files * FILE_BYTES)
    for one in states:
        shelf = landed(shelf, one)
    return shelf


def placed(shelf: Shelf, new: Plain, now_ms: float = NOW_MS) -> tuple[Shelf, WriteOrder]:
    """The shelf with a state for which there is room, and what is to be done."""
    stored = new.stored(link_page)
    room = shelf.plan(stored, now_ms, TTL_MS)
    assert room is not None
    shelf, order = shelf.place(stored, room, now_ms, NOW_WALL_MS)
    shelf.check()
    return shelf, order


def done(order: WriteOrder) -> Outcome:
    """All went well."""
    return Outcome(order.id, True, tuple(one.path for one in order.leaving))


def failed(order: WriteOrder, trouble: Trouble | None = None) -> Outcome:
    """Nothing was written, and nobody left."""
    return Outcome(order.id, False, (), 0, trouble, "words")


def landed(shelf: Shelf, new: Plain, now_ms: float = NOW_MS) -> Shelf:
    """The shelf with one more state."""
    shelf, order = placed(shelf, new, now_ms)
    shelf = shelf.settle(done(order), now_ms)
    shelf.check()
    return shelf


def leaving(shelf: Shelf, new: Plain, now_ms: float = NOW_MS) -> list[int] | None:
    """Ids of the states that would make way; None where it gets no file."""
    room = shelf.plan(new.stored(link_page), now_ms, TTL_MS)
    return None if room is None else [one.id for one in room.victims]


def found(*states: Plain, **more: object) -> Scan:
    """A scan that came upon these."""
    records = tuple(case_of(one).record for one in states)
    return replace(Scan(records, (), {}, 0, (), None), **more)  # type: ignore[arg-type]


def adopted(shelf: Shelf, scan: Scan) -> Shelf:
    shelf = adopt(shelf, scan, 100, NOW_MS, NOW_WALL_MS, TTL_MS)
    shelf.check()
    return shelf


def foreign(number: int, num_bytes: int = FILE_BYTES) -> Foreign:
    return Foreign(directory_of(ROOT, OTHER) / f"{number}.state", num_bytes, float(number))


def test_a_state_is_findable_once_its_file_is_there() -> None:
    new = plain(1, [1])
    shelf, order = placed(shelf_of(3), new)
    assert shelf.used_bytes == FILE_BYTES
    assert shelf.index.get(1) is None
    assert shelf.holds(order.record.chain, 64) is not None, "nobody else writes it meanwhile"
    assert leaving(shelf, replace(new, id=2)) is None
    assert order.directory / order.record.name == shelf.path_of(new.stored(link_page))
    assert order.record.used_wall_ms == NOW_WALL_MS - NOW_MS
    shelf = shelf.settle(done(order), NOW_MS)
    shelf.check()
    assert shelf.index.get(1) == new.stored(link_page)
    assert shelf.read_order(1).path == order.directory / order.record.name
    assert leaving(shelf, replace(new, id=2)) is None, "it is there already"
    gone, paths = shelf.drop(1).clear()
    assert (gone.index.get(1), gone.used_bytes) == (None, FILE_BYTES)
    assert gone.clear()[1] == (), "each file is handed out once"
    gone = gone.cleared(Cleared(paths, ()), NOW_MS)
    gone.check()
    assert (gone.used_bytes, gone.charged) == (0, {})


def test_an_entry_larger_than_the_tier_evicts_nothing() -> None:
    shelf = shelf_of(2, plain(1, [1]), plain(2, [2]))
    large = plain(3, [1] * 200, cls=Class.INTERACTIVE)
    assert shelf.file_bytes(large.stored(link_page)) > shelf.ceiling_bytes
    assert leaving(shelf, large) is None


def test_lower_ranked_states_make_way_and_no_more_than_needed() -> None:
    small = [plain(1, [1], used_ms=1.0), plain(2, [2], used_ms=2.0)]
    large = plain(3, [1] * 100, used_ms=3.0)
    person = plain(4, [2, 2], cls=Class.INTERACTIVE)
    shelf = shelf_of(7, *small, large, person)
    free = shelf.ceiling_bytes - shelf.used_bytes
    new = plain(9, [1] * 110, used_ms=NOW_MS)
    excess = shelf.file_bytes(new.stored(link_page)) - free
    assert FILE_BYTES < excess <= shelf.file_bytes(large.stored(link_page))
    assert leaving(shelf, new) == [3], "the small ones are spared"
    assert leaving(shelf, replace(new, used_ms=0.0)) is None, "it ranks below all of them"
    assert leaving(shelf, replace(new, cls=Class.INTERACTIVE)) == [3]
    with_hold = shelf.hold(3)
    assert leaving(with_hold, new) is None
    assert leaving(with_hold.release(3), new) == [3]


def test_a_live_sequence_is_never_given_up() -> None:
    live = plain(1, [1], prompt_pages=1)
    for new in (plain(2, [2], cls=Class.INTERACTIVE, hits=1), plain(2, [2], prompt_pages=1)):
        assert leaving(shelf_of(1, live), replace(new, used_ms=40.0)) is None
        assert leaving(shelf_of(1, plain(1, [1])), replace(new, used_ms=40.0)) == [1]


def test_files_of_other_fingerprints_count_and_go_first() -> None:
    mine = plain(1, [1])
    shelf = adopted(shelf_of(4), found(mine, foreign=(foreign(1), foreign(2), foreign(3))))
    assert (shelf.used_bytes, shelf.foreign_bytes) == (4 * FILE_BYTES, 3 * FILE_BYTES)
    shelf, order = placed(shelf, plain(2, [2], used_ms=40.0))
    assert order.leaving == (Charged(foreign(1).path, FILE_BYTES),)
    assert shelf.used_bytes == 4 * FILE_BYTES
    shelf = shelf.settle(done(order), NOW_MS)
    shelf.check()
    assert [one.path for one in shelf.foreign] == [foreign(2).path, foreign(3).path]
    for number in (3, 4):
        shelf = landed(shelf, plain(number, [number, number], used_ms=40.0))
    assert shelf.foreign == ()
    assert leaving(shelf, plain(9, [9], used_ms=45.0)) == [2], "and then states"


def test_bytes_are_charged_until_the_files_that_make_way_are_gone() -> None:
    old = [plain(1, [1]), plain(2, [2])]
    new = plain(3, [1] * 30, used_ms=9.0)
    shelf = shelf_of(2, *old)
    for removed in (0, 1, 2):
        placing, order = placed(shelf, new)
        assert placing.used_bytes == 2 * FILE_BYTES
        assert len(placing.index) == 0, "they are not findable any more"
        gone = tuple(one.path for one in order.leaving[:removed])
        after = placing.settle(Outcome(3, False, gone, 0, Trouble.FAILED, "words"), NOW_MS)
        after.check()
        assert after.used_bytes == (2 - removed) * FILE_BYTES
        after, paths = after.clear()
        assert set(paths) == {one.path for one in order.leaving[removed:]}


def test_what_could_not_be_removed_is_charged_and_tried_again() -> None:
    shelf, order = placed(shelf_of(1), plain(1, [1]))
    shelf = shelf.settle(Outcome(1, False, (), FILE_BYTES, Trouble.FAILED, "words"), NOW_MS)
    shelf.check()
    assert shelf.used_bytes == FILE_BYTES
    assert leaving(shelf, plain(2, [2])) is None
    shelf, paths = shelf.clear()
    assert paths == (order.directory / order.record.name,)
    shelf = shelf.cleared(Cleared((), paths, Trouble.FAILED, "words"), NOW_MS)
    shelf.check()
    shelf, again = shelf.clear()
    assert again == paths
    shelf = shelf.cleared(Cleared(paths, ()), NOW_MS)
    assert leaving(shelf, plain(2, [2])) == []


def test_a_full_disk_pauses_writing_and_it_is_tried_again_one_at_a_time() -> None:
    shelf = shelf_of(9, plain(1, [1]))
    shelf, order = placed(shelf, plain(2, [2]))
    shelf = shelf.settle(failed(order, Trouble.FULL), NOW_MS)
    assert (shelf.writer.condition, shelf.writer.why) == (Condition.PAUSED, "words")
    assert shelf.read_order(1).path in shelf.charged, "what is there can be read"
    later = NOW_MS + RETRY_MS
    assert leaving(shelf, plain(2, [2]), later - 1) is None
    trying, order = placed(shelf, plain(2, [2]), later)
    assert leaving(trying, plain(3, [3]), later + 1) is None, "one try at a time"
    still = trying.settle(failed(order, Trouble.FULL), later)
    assert leaving(still, plain(3, [3]), later + RETRY_MS - 1) is None
    well = trying.settle(done(order), later)
    assert well.writer.condition is Condition.WRITING
    assert leaving(well, plain(3, [3]), later + 1) == []
    assert trying.settle(failed(order), later).writer == shelf.writer, (
        "a cancelled one says nothing"
    )


def test_failures_in_a_row_pause_writing() -> None:
    shelf = shelf_of(9)
    for number in range(2 * MOST_FAILURES):
        assert shelf.writer.condition is Condition.WRITING
        shelf, order = placed(shelf, plain(1, [1]))
        fails = number != MOST_FAILURES - 1
        shelf = shelf.settle(failed(order, Trouble.FAILED) if fails else done(order), NOW_MS)
        if not fails:
            shelf, paths = shelf.drop(1).clear()
            shelf = shelf.cleared(Cleared(paths, ()), NOW_MS)
    assert shelf.writer.condition is Condition.PAUSED


def test_a_read_only_disk_disables_writing_for_good() -> None:
    shelf, order = placed(shelf_of(9, plain(1, [1])), plain(2, [2]))
    shelf = shelf.settle(failed(order, Trouble.READ_ONLY), NOW_MS)
    assert shelf.writer.condition is Condition.DISABLED
    assert leaving(shelf, plain(2, [2]), NOW_MS + 100 * RETRY_MS) is None
    assert shelf.read_order(1).path in shelf.charged
    shelf, paths = shelf.drop(1).clear()
    shelf = shelf.cleared(Cleared((), paths, Trouble.FULL, "words"), NOW_MS)
    assert shelf.writer.condition is Condition.DISABLED


def test_after_an_engine_error_what_is_being_written_is_not_kept() -> None:
    new = plain(2, [2])
    shelf, order = placed(shelf_of(9, plain(1, [1])), new)
    shelf = shelf.disable("the engine failed", NOW_MS)
    assert shelf.holds(order.record.chain, 64) is None
    shelf = shelf.settle(done(order), NOW_MS)
    shelf.check()
    assert shelf.index.get(2) is None
    assert shelf.leaving == {shelf.path_of(new.stored(link_page))}
    assert leaving(shelf, plain(3, [3])) is None
    assert shelf.index.get(1) is not None


def test_a_state_that_is_read_may_be_dropped_and_released_afterwards() -> None:
    shelf = shelf_of(2, plain(1, [1])).hold(1).hold(1).drop(1)
    shelf.check()
    assert shelf.index.get(1) is None
    assert shelf.release(1).release(1).leaving == shelf.leaving


def test_states_that_a_hash_takes_for_one_get_one_file() -> None:
    """The name is a digest: the second is not written over the first, nor found in its place."""
    one, other = plain(1, [1]), plain(2, [NEARLY_ONE])
    shelf = Shelf.empty(ROOT, SMALL, 9 * FILE_BYTES)
    room = shelf.plan(one.stored(constant), NOW_MS, TTL_MS)
    assert room is not None
    shelf, order = shelf.place(one.stored(constant), room, NOW_MS, NOW_WALL_MS)
    for _ in range(2):
        chain = other.stored(constant).chain
        assert shelf.plan(other.stored(constant), NOW_MS, TTL_MS) is None
        assert shelf.holds(chain, 64) is None
        assert shelf.index.longest_match(chain, 64) is None
        shelf = shelf.settle(done(order), NOW_MS) if shelf.pending else shelf


def test_good_files_are_adopted_with_what_they_say() -> None:
    states = [
        plain(1, [1, 2], kind=Kind.PREFIX, cls=Class.INTERACTIVE, hits=3),
        plain(2, [2], salt=b"tenant"),
    ]
    scan = found(*states)
    idle_ms = NOW_WALL_MS + 1e12
    shelf = adopt(shelf_of(9), scan, 100, NOW_MS, idle_ms, TTL_MS)
    shelf.check()
    for number, one in enumerate(states):
        stored = shelf.index.get(100 + number)
        wanted = one.stored(link_page)
        assert stored == replace(wanted, id=100 + number, used_ms=NOW_MS - NOW_WALL_MS)
        assert shelf.index.find(wanted.chain, wanted.length) == stored
    ahead = adopt(shelf_of(9), scan, 100, NOW_MS, 0.0, TTL_MS)
    assert {one.used_ms for one in ahead.index} == {NOW_MS}, "a clock set back makes nobody young"


def test_what_is_beyond_the_ceiling_is_not_adopted() -> None:
    agent, person = plain(1, [1]), plain(2, [2], cls=Class.INTERACTIVE, used_ms=5.0)
    scan = found(agent, person, foreign=(foreign(1), foreign(2)))
    wall_ms = 1e12 + 1.0
    for ceiling, kept, num_foreign in ((4, {100, 101}, 2), (3, {100, 101}, 1), (1, {101}, 0)):
        shelf = adopt(shelf_of(ceiling), scan, 100, NOW_MS, wall_ms, TTL_MS)
        shelf.check()
        assert {one.id for one in shelf.index} == kept
        assert len(shelf.foreign) == num_foreign
        assert len(shelf.leaving) == 4 - ceiling
    assert leaving(shelf, plain(9, [9])) is None, "its bytes count until they are gone"


def test_a_start_on_a_read_only_disk_reads_and_does_not_write() -> None:
    stuck = Charged(directory_of(ROOT, OTHER) / "x.partial", FILE_BYTES)
    shelf = adopted(shelf_of(9), found(plain(1, [1]), left=(stuck,), trouble=Trouble.READ_ONLY))
    assert shelf.writer.condition is Condition.DISABLED
    assert shelf.used_bytes == 2 * FILE_BYTES
    assert shelf.leaving == {stuck.path}


def test_a_state_that_comes_down_again_is_renewed_also_while_it_is_written() -> None:
    again = plain(1, [1], kind=Kind.PREFIX, cls=Class.INTERACTIVE, used_ms=9.0).stored(link_page)
    shelf, order = placed(shelf_of(3), plain(1, [1]))
    shelf = shelf.renew(again).settle(done(order), NOW_MS)
    shelf.check()
    assert shelf.index.get(1) == again
    later = shelf.renew(replace(again, kind=Kind.CHECKPOINT, used_ms=11.0))
    assert later.index.get(1) == replace(again, used_ms=11.0)


def test_the_audit_compares_holds_and_writes_with_the_moves_in_flight() -> None:
    shelf, order = placed(shelf_of(3, plain(1, [1])), plain(2, [2]))
    shelf = shelf.hold(1)
    check_tier(shelf, reads={1: 1}, writes=[2])
    for moves in ({"reads": {1: 1}}, {"reads": {1: 2}, "writes": [2]}, {"writes": [2]}):
        with pytest.raises(AssertionError, match="moves"):
            check_tier(shelf, **moves)
    check_tier(shelf.settle(done(order), NOW_MS).release(1))


def test_the_check_sees_what_does_not_add_up() -> None:
    shelf, _ = placed(shelf_of(3, plain(1, [1])), plain(2, [2]))
    path = shelf.path_of(plain(1, [1]).stored(link_page))
    for wrong in (
        replace(shelf, used_bytes=1),
        replace(shelf, leaving=frozenset([path])),
        replace(shelf, charged={}),
        replace(shelf, charged=shelf.charged | {path: 4096}),
        replace(shelf, ceiling_bytes=1),
        replace(shelf, foreign=(foreign(1),)),
    ):
        with pytest.raises(AssertionError):
            wrong.check()
