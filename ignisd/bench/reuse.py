"""What a conversation saves by reuse: cold, repeated, continued, forked, and come back to.

Contenders are asked in turn, case by case, so that a change of the machine's load meets all of
them alike. Where a contender can answer cold, each case is followed by a cold answer to the same
prompt: the two must agree, and their times are the ratio.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ignisd.bench.contender import Contender, require_new
from ignisd.bench.target import Answer, BenchError, Chat, assistant, system, user

COLD = "cold"
NUM_OTHERS = 8
_ANSWER_TOKENS = 60
_FOLLOW_TOKENS = 100


@dataclass(frozen=True, slots=True)
class ReuseSizes:
    """How long the parts of the conversation are, in tokens.

    Args:
        shared: the system block, which stands for a system prompt and tools.
        user: the first message of the user, and that of each sibling.
        other: each of the eight other conversations.
        repeats: how often the first prompt is sent again, at least twice.
        max_tokens: of every answer.
    """

    shared: int
    user: int
    other: int
    repeats: int
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Case:
    """One prompt of the sequence; `group` is the row of the table that it counts in."""

    name: str
    group: str
    chat: Chat


@dataclass(frozen=True, slots=True)
class ReuseRun:
    """One case of one contender in one repetition.

    Args:
        answer: with whatever the target retains.
        cold: to the same prompt, with nothing retained; None where the target cannot, and for the
            other conversations.
        same: whether it agrees with the cold answer; None where there is nothing to compare.
    """

    target: str
    repetition: int
    case: str
    group: str
    answer: Answer
    cold: Answer | None
    same: bool | None


def cases(contender: Contender, seed: str, sizes: ReuseSizes) -> Iterator[Case]:
    """The prompts of one repetition, in the order in which they are sent."""

    def text(name: str, num_tokens: int) -> str:
        return contender.text(f"{seed} {name}", num_tokens)

    opening = system(text("system", sizes.shared))
    first = text("user", sizes.user)
    turns: Chat = (opening, user(first))
    yield Case(COLD, COLD, turns)
    for number in range(1, sizes.repeats + 1):
        yield Case(f"repeat {number}", f"repeat {number}", turns)
    for number in (2, 3):
        turns = _next_turn(turns, text, number)
        yield Case(f"turn {number}", f"turn {number}", turns)
    for number in (1, 2):
        sibling = user(text(f"sibling {number}", sizes.user))
        yield Case(f"sibling {number}", f"sibling {number}", (opening, sibling))
    for number in range(1, NUM_OTHERS + 1):
        other_system = system(text(f"other system {number}", sizes.other * 3 // 4))
        other_user = user(text(f"other user {number}", sizes.other // 4))
        yield Case(f"other {number}", "others", (other_system, other_user))
    turns = _next_turn(turns, text, 4)
    yield Case("return", "return", turns)
    late = user(text("sibling 3", sizes.user))
    yield Case("late sibling", "late sibling", (opening, late))
    half = first[: len(first) // 2].rpartition(" ")[0]
    fork = user(f"{half} {text('fork', sizes.user // 2)}")
    yield Case("mid-message fork", "mid-message fork", (opening, fork))


def _next_turn(turns: Chat, text: Callable[[str, int], str], number: int) -> Chat:
    said = assistant(text(f"answer {number}", _ANSWER_TOKENS))
    return (*turns, said, user(text(f"turn {number}", _FOLLOW_TOKENS)))


def measure_reuse(
    contenders: Sequence[Contender],
    sizes: ReuseSizes,
    *,
    seed: str,
    repetitions: int,
    tolerated: frozenset[str],
    settle: Callable[[], None],
    report: Callable[[str], None],
) -> Iterator[ReuseRun]:
    """All runs, interleaved.

    Args:
        tolerated: names of targets whose reused answers may differ from cold ones.
        settle: called after each request.
        report: told of each case that begins.

    Raises:
        BenchError: a target fails, had seen a prompt, or reuses it with another answer.
    """
    for repetition in range(repetitions):
        own_seed = f"{seed} {repetition}"
        sequences = [cases(contender, own_seed, sizes) for contender in contenders]
        seen: dict[tuple[str, Chat], Answer] = {}
        for step, batch in enumerate(zip(*sequences, strict=True)):
            report(f"repetition {repetition + 1}: {batch[0].name}")
            pairs = list(zip(contenders, batch, strict=True))
            first = step % len(pairs)  # nobody is always the one after somebody
            for contender, case in pairs[first:] + pairs[:first]:
                run = _measure(contender, case, repetition, sizes, seen, settle)
                if run.same is False and contender.name not in tolerated:
                    raise BenchError(_difference(run, seen[contender.name, case.chat]))
                yield run


def _measure(
    contender: Contender,
    case: Case,
    repetition: int,
    sizes: ReuseSizes,
    seen: dict[tuple[str, Chat], Answer],
    settle: Callable[[], None],
) -> ReuseRun:
    """One case; `seen` keeps the first cold answer to each prompt."""
    answer = contender.target.ask(case.chat, sizes.max_tokens)
    settle()
    if case.group in (COLD, "others"):
        require_new(contender, case.name, answer)
    key = contender.name, case.chat
    cold: Answer | None = None
    if contender.answers_cold and case.group != "others":
        cold = contender.target.ask(case.chat, sizes.max_tokens, reuse=False)
        settle()
        if cold.cached_tokens:
            raise BenchError(
                f"{contender.name} resumed {cold.cached_tokens} tokens for a cold answer "
                f"({case.name})"
            )
    reference = answer if cold is None and case.group == COLD else cold
    known = seen.get(key, reference)
    if known is None:
        return ReuseRun(contender.name, repetition, case.name, case.group, answer, None, None)
    seen[key] = known
    same = known.said == answer.said and (cold is None or known.said == cold.said)
    return ReuseRun(contender.name, repetition, case.name, case.group, answer, cold, same)


def _difference(run: ReuseRun, known: Answer) -> str:
    said = run.answer.said if run.answer.said != known.said or run.cold is None else run.cold.said
    at = next(
        (
            place
            for place, (mine, theirs) in enumerate(zip(known.said, said, strict=False))
            if mine != theirs
        ),
        min(len(known.said), len(said)),
    )
    return (
        f"{run.target}: the greedy answer to {run.case}, repetition {run.repetition + 1}, differs "
        f"from the cold one from character {at} on: {said[at : at + 40]!r} instead of "
        f"{known.said[at : at + 40]!r}. Wrong answers are not timed; --tolerate {run.target} shows "
        "numbers all the same"
    )
