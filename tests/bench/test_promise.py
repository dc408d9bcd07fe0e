"""The model of the policy that the agent's conversation is held against."""

import numpy as np

from tests.bench.promise import PAGE, History, Prompt, read_prompt, single_flight

SPELLED = (
    *("<|im_start|>", "system", "\n", "Be ", "brief.", "<|im_end|>", "\n"),
    *("<|im_start|>", "user", "\n", "Look!", "<|im_end|>", "\n"),
    *("<|im_start|>", "assistant", "\n", "<think>", "…", "<|im_end|>", "\n"),
    *("<|im_start|>", "user", "\n", "<tool_response>", "\n", "seen", "<|im_end|>", "\n"),
    *("<|im_start|>", "assistant", "\n", "<think>", "\n"),
)


def prompt(
    *parts: tuple[int, int],
    system: int | None = None,
    turn: int | None = None,
    opener: int | None = None,
) -> Prompt:
    """Runs of `count` equal tokens; the opener ends it unless said otherwise."""
    tokens = np.concatenate([np.full(count, token, np.int32) for token, count in parts])
    end = len(tokens)
    return Prompt(tokens, system, end if turn is None else turn, end if opener is None else opener)


def asked(history: History, one: Prompt, cached: int | None = None) -> int:
    """Ask, answer with what was promised, and say what that was."""
    request = history.ask(one)
    history.answered(request, request.promise.ample if cached is None else cached)
    return request.promise.ample


def test_marks_are_found_in_the_text() -> None:
    found = read_prompt(range(len(SPELLED)), SPELLED)
    assert (found.system_end, found.turn_open, found.opener) == (7, 16, 31)


def test_a_repeat_an_extension_and_a_sibling_are_promised_their_page_floors() -> None:
    history = History()
    first = prompt((1, 200), (2, 100), system=200)
    assert asked(history, first) == 0
    assert asked(history, first) == 256
    assert asked(history, prompt((1, 200), (2, 100), (3, 90), system=200)) == 256
    assert asked(history, prompt((1, 200), (4, 150), system=200)) == 192


def test_a_prompt_of_whole_pages_leaves_a_token_to_read() -> None:
    history = History()
    assert asked(history, prompt((1, 4 * PAGE))) == 0
    assert asked(history, prompt((1, 4 * PAGE))) == 3 * PAGE


def test_the_second_sibling_pays_for_the_third() -> None:
    history = History()
    for token, promised in ((2, 0), (3, 0), (4, 640)):
        assert asked(history, prompt((1, 660), (token, 100))) == promised


def test_a_junction_that_saves_little_is_not_counted_on_when_slots_are_short() -> None:
    history = History()
    asked(history, prompt((1, 200), (2, 200), (3, 100), system=200))
    for token in (4, 5, 6):
        asked(history, prompt((1, 200), (2, 200), (token, 100), system=200))
    promise = history.ask(prompt((1, 200), (2, 200), (7, 100), system=200)).promise
    assert (promise.ample, promise.firm) == (384, 192)


def test_a_parting_that_requests_beside_it_may_have_moved_is_not_promised() -> None:
    history = History()
    asked(history, prompt((1, 660), (2, 100)))
    beside = history.ask(prompt((1, 660), (3, 100), (4, 100)))
    moved = history.ask(prompt((1, 660), (3, 100), (5, 100)))
    history.answered(beside, 0)
    history.answered(moved, 0)
    assert history.ask(prompt((1, 660), (6, 100))).promise.ample == 0


def test_states_of_a_finished_turn_are_not_counted_on_when_slots_are_short() -> None:
    history = History()
    turn = prompt((1, 100), (2, 100))
    step = prompt((1, 100), (2, 100), (3, 100), turn=200)
    next_turn = prompt((1, 100), (2, 100), (4, 100))
    for one in (turn, step, next_turn):
        asked(history, one)
    promise = history.ask(step).promise
    assert (promise.ample, promise.firm) == (256, 0)
    assert history.ask(next_turn).promise.firm == 256


def test_at_most_what_was_sent_before_can_be_resumed() -> None:
    history = History()
    assert history.answered(history.ask(prompt((1, 300))), 0) == 0
    assert history.answered(history.ask(prompt((1, 290), (2, 50))), 256) == 256
    assert history.answered(history.ask(prompt((3, 300))), 0) == 0


def test_a_follower_waits_only_for_a_gain_that_is_worth_it() -> None:
    leader = prompt((1, 700), (2, 100), system=700)
    follower = prompt((1, 700), (3, 100), system=700)
    assert single_flight(leader, follower, 0) == 640
    assert single_flight(leader, follower, 192) == 0
