"""The arithmetic of retention: how many points, what they take, and what is computed again."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from state.groups import Group, GroupName, must_hit, where_to_resume
from state.retention import RetentionPolicy
from state.spec import PAGE_TOKENS


def num_periodic(num_tokens: int, interval_tokens: int) -> int:
    """Multiples of an interval that a sequence of so many tokens reaches."""
    return num_tokens // interval_tokens if interval_tokens else 0


@dataclass(frozen=True, slots=True)
class Loss:
    """Tokens between where requests part and the periodic point before that."""

    mean: Fraction
    worst: int


def loss_of(interval_tokens: int) -> Loss:
    """The loss where parting points are spread evenly over the tokens of an interval.

    Real traffic parts at ends of prompts, at tools and at shared instructions, so this is a measure
    of the interval and no forecast.
    """
    return Loss(Fraction(interval_tokens - 1, 2), interval_tokens - 1)


def items_per_boundary(groups: Sequence[Group]) -> int:
    """Pages and images that all groups together keep at one more boundary."""
    return sum(group.items_per_point for group in groups)


def resumed_at(matched_tokens: int, kept: Sequence[int]) -> int:
    """Where a prompt resumes whose pages match so far, with states at these lengths."""
    wanted = frozenset({GroupName.FULL, GroupName.LINEAR})
    found = where_to_resume(matched_tokens + 1, wanted, dict.fromkeys(kept, wanted))
    return found[0] if found else 0


def _model_of_the_example() -> tuple[Group, ...]:
    """One full group, four of linear attention, and a window of 2,048 that a drafter shifts."""
    linear = [Group(GroupName.LINEAR, 1, is_image=True) for _ in range(4)]
    window = Group(GroupName.WINDOW, 1, window_tokens=2048, is_shifted=True)
    return (Group(GroupName.FULL, 1), *linear, window)


def explanation() -> Iterator[str]:
    """The arithmetic with numbers, a line at a time; every number is computed."""
    prompt, segment, interval = 80_000, 3_584, 14_336
    dense = len(RetentionPolicy(segment).promised(prompt))
    coarse = len(RetentionPolicy(interval).promised(prompt))
    yield "What an interval keeps"
    yield f"  A prompt of {prompt:,} tokens has {dense} boundaries every {segment:,} tokens, and"
    yield f"  {coarse} every {interval:,}. Ends of prompts and junctions are kept besides."
    length, step = 196_608, 32_768
    yield f"  A sequence of {length:,} tokens crosses {num_periodic(length, step)} boundaries of"
    yield f"  {step:,}; the last one is its end, so a prompt keeps it only with one token more."
    yield ""
    yield "What is computed again"
    yield "  Where requests part anywhere with equal chance, the mean loss is half an interval:"
    for tokens in (segment, interval, step):
        loss = loss_of(tokens)
        yield f"    {tokens:>7,}: mean {float(loss.mean):>10,.1f}, worst {loss.worst:>7,}"
    matched = 50_176
    at = resumed_at(matched, [step])
    yield f"  A prompt that matches {matched:,} tokens, with a state at {step:,}, resumes at {at:,}"
    yield f"  and computes {matched - at:,} tokens again, however fine its pages are hashed."
    yield ""
    yield "What a boundary takes"
    plain = Group(GroupName.WINDOW, 1, window_tokens=2048)
    groups = _model_of_the_example()
    yield f"  A window of 2,048 tokens needs {plain.items_per_point} pages of {PAGE_TOKENS}, and"
    yield f"  {groups[-1].items_per_point} where a drafter shifts its boundary by a page."
    parts = " + ".join(
        str(sum(one.items_per_point for one in groups if one.name is name))
        for name in (GroupName.FULL, GroupName.LINEAR, GroupName.WINDOW)
    )
    yield f"  With one full group and four images that is {parts} = {items_per_boundary(groups)}."
    held_back_by = sorted(must_hit(groups))
    yield f"  A resume needs all of {', '.join(held_back_by)}; the least reusable decides."
