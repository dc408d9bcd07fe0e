"""How fast prompts are read and answers are written, for one prompt and for several at once."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ignisd.bench.contender import Contender, require_new
from ignisd.bench.target import Answer, BenchError, Chat, ask_together, user

PREFILL = "prefill"
DECODE = "decode"
_CHECKED_TOKENS = 512
_CHECKED_ANSWER = 16
_SHORT_ANSWER = 8


@dataclass(frozen=True, slots=True)
class Load:
    """What is measured: prefill or decode, with `num_tokens` of prompt in each of `lanes`."""

    kind: str
    num_tokens: int
    lanes: int


@dataclass(frozen=True, slots=True)
class SpeedRun:
    """One measurement.

    Args:
        tokens: prompt tokens that were read, or tokens that were generated, of all lanes together.
        seconds: that they took.
        prompt_tokens: of one lane, as the target counts them.
    """

    target: str
    repetition: int
    load: Load
    tokens: int
    seconds: float
    prompt_tokens: int

    @property
    def rate(self) -> float | None:
        """Tokens a second; None where the difference of two runs says nothing."""
        if self.tokens <= 0 or self.seconds <= 0:
            return None
        return self.tokens / self.seconds


def check_answers(contender: Contender, seed: str, tolerated: frozenset[str]) -> None:
    """Ask the same twice more and, where that is possible, cold: before anything is timed.

    Raises:
        BenchError: the answers differ.
    """
    chat: Chat = (user(contender.text(f"{seed} check", _CHECKED_TOKENS)),)
    said = [contender.target.ask(chat, _CHECKED_ANSWER).said for _ in range(3)]
    if contender.answers_cold:
        said.append(contender.target.ask(chat, _CHECKED_ANSWER, reuse=False).said)
    if len(set(said)) > 1 and contender.name not in tolerated:
        raise BenchError(
            f"{contender.name} gives {len(set(said))} different greedy answers to one prompt, cold "
            "and reused. Wrong answers are not timed"
        )


def measure_speed(
    contenders: Sequence[Contender],
    loads: Sequence[Load],
    *,
    answer_tokens: int,
    seed: str,
    repetitions: int,
    tolerated: frozenset[str],
    settle: Callable[[], None],
    report: Callable[[str], None],
) -> Iterator[SpeedRun]:
    """All runs, interleaved; the answers are checked first.

    Args: as of `measure_reuse`; `answer_tokens` is what decode generates.

    Raises:
        BenchError: a target fails, had seen a prompt, or gives different answers.
    """
    for contender in contenders:
        check_answers(contender, seed, tolerated)
    for repetition in range(repetitions):
        for step, load in enumerate(loads):
            report(f"repetition {repetition + 1}: {load.kind} {load.num_tokens} x {load.lanes}")
            first = step % len(contenders)
            for contender in (*contenders[first:], *contenders[:first]):
                chats = [
                    (user(contender.text(f"{seed} {repetition} {load} {lane}", load.num_tokens)),)
                    for lane in range(load.lanes)
                ]
                if load.kind == PREFILL:
                    run = _prefill(contender, repetition, load, chats)
                else:
                    run = _decode(contender, repetition, load, chats, answer_tokens, tolerated)
                settle()
                yield run


def _prefill(contender: Contender, repetition: int, load: Load, chats: Sequence[Chat]) -> SpeedRun:
    """Unseen prompts; until the last of them has its first token."""
    answers = ask_together(contender.target, chats, 1)
    for answer in answers:
        require_new(contender, f"prefill {load.num_tokens} x {load.lanes}", answer)
    return SpeedRun(
        target=contender.name,
        repetition=repetition,
        load=load,
        tokens=sum(each.prompt_tokens - (each.cached_tokens or 0) for each in answers),
        seconds=max(each.began_s + each.ttft_s for each in answers)
        - min(each.began_s for each in answers),
        prompt_tokens=answers[0].prompt_tokens,
    )


def _decode(
    contender: Contender,
    repetition: int,
    load: Load,
    chats: Sequence[Chat],
    answer_tokens: int,
    tolerated: frozenset[str],
) -> SpeedRun:
    """The difference of a long and a short run over prompts that were read before.

    It does not depend on how a server gathers tokens before it sends them.
    """
    target = contender.target
    for chat in chats:  # twice: some servers resume only what was sent twice
        target.ask(chat, 1)
    alone = [target.ask(chat, _SHORT_ANSWER).said for chat in chats]
    short = ask_together(target, chats, _SHORT_ANSWER)
    if [each.said for each in short] != alone and contender.name not in tolerated:
        raise BenchError(
            f"{contender.name} answers {load.lanes} prompts together otherwise than one by one. "
            "Wrong answers are not timed"
        )
    long = ask_together(target, chats, _SHORT_ANSWER + answer_tokens)
    return SpeedRun(
        target=contender.name,
        repetition=repetition,
        load=load,
        tokens=_generated(long) - _generated(short),
        seconds=_wall_s(long) - _wall_s(short),
        prompt_tokens=short[0].prompt_tokens,
    )


def _generated(answers: Sequence[Answer]) -> int:
    return sum(each.completion_tokens for each in answers)


def _wall_s(answers: Sequence[Answer]) -> float:
    ended_s = max(each.began_s + each.total_s for each in answers)
    return ended_s - min(each.began_s for each in answers)
