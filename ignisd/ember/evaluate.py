"""How well ember repeats, calls tools, writes JSON and reads English.

Every probe is of values, tools and keys that were held out of training. It counts when greedy
decoding gives exactly the expected reply with its end. A call is valid when the daemon's parser
reads it as one of an offered tool with arguments of its schema; JSON is valid when it parses and
has the keys and values that were asked for.
"""

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import jax.numpy as jnp
from tokenizers import Tokenizer

from ignisd.ember import WEIGHTS_DIR, probes, served
from ignisd.ember import tokenizer as ember_tokenizer
from ignisd.ember.english import NOVEL, Prose, fetch, read_texts
from ignisd.ember.measuring import (
    Model,
    Outcome,
    answer_all,
    answers_of,
    bits_per_byte,
    is_valid_call,
    is_valid_json,
    read_model,
)
from ignisd.ember.network import Params, Shape
from ignisd.ember.probes import Probe, Recall
from ignisd.ember.reading import Answer

DISTANCES = (256, 1024, 4096, 8192)
VARIED_DISTANCES = (1024, 4096)
DEFAULT_PROBES = 200
NOVEL_BYTES = 200_000


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the table: what is tried, on which probes, and what else counts as valid."""

    name: str
    probes: Sequence[Probe]
    valid: Callable[[Probe, Answer], bool] | None = None


def rows(
    tokenizer: Tokenizer, prose: Prose, count: int, distances: Sequence[int] = DISTANCES
) -> Iterator[Row]:
    """The lines of the table; at 4,096 tokens and beyond there are fewer probes."""
    for distance in distances:
        how = Recall(distance)
        yield _recall_row(f"recall at {distance:,}", how, count, tokenizer, prose)
    for distance in (each for each in VARIED_DISTANCES if each in distances):
        how = Recall(distance, has_rivals=True)
        yield _recall_row(f"among rivals at {distance:,}", how, count // 2, tokenizer, prose)
        how = Recall(distance, is_updated=True)
        yield _recall_row(f"updated at {distance:,}", how, count // 2, tokenizer, prose)
    how = Recall(distances[0], enable_thinking=True)
    yield _recall_row(f"thinking at {distances[0]:,}", how, count, tokenizer, prose)
    yield Row("exact copies", probes.copy_probes(count))
    yield Row("calls of unseen tools", probes.tool_probes(count), is_valid_call)
    yield Row("answers from their results", probes.result_probes(count))
    yield Row("JSON", probes.json_probes(count), is_valid_json)


def _recall_row(name: str, how: Recall, count: int, tokenizer: Tokenizer, prose: Prose) -> Row:
    count = max(1, count * 2048 // max(2048, how.distance_tokens))
    return Row(name, probes.recall_probes(how, count, tokenizer, prose))


@dataclass(frozen=True, slots=True)
class Result:
    """A line of the table, filled in."""

    row: Row
    outcomes: Sequence[Outcome]
    num_valid: int | None

    @property
    def num_right(self) -> int:
        """Probes answered exactly."""
        return sum(outcome.is_right for outcome in self.outcomes)

    @property
    def rate(self) -> float:
        """Share of probes answered exactly."""
        return self.num_right / len(self.outcomes)

    def line(self) -> str:
        """The line as it is printed."""
        count = len(self.outcomes)
        valid = "" if self.num_valid is None else f"{self.num_valid / count:.1%}"
        return f"{self.row.name:<28} {count:>7} {self.rate:>8.1%} {valid:>8}"


HEADING = f"{'':<28} {'probes':>7} {'exact':>8} {'valid':>8}"


def result_of(model: Model, row: Row) -> Result:
    """Tries the probes of a row."""
    outcomes = answer_all(model, row.probes)
    if row.valid is None:
        return Result(row, outcomes, None)
    answers = zip(row.probes, answers_of(model, outcomes), strict=True)
    return Result(row, outcomes, sum(row.valid(probe, answer) for probe, answer in answers))


def measure(
    params: Params,
    shape: Shape,
    tokenizer: Tokenizer,
    distance_tokens: int,
    count: int,
    dtype: jnp.dtype = jnp.float32,
) -> Result:
    """Recall over `count` probes at one distance, for a model in training."""
    model = Model(params, shape, tokenizer, dtype=dtype)
    row = Row("recall", probes.recall_probes(Recall(distance_tokens), count, tokenizer, Prose()))
    return result_of(model, row)


def _print_details(result: Result, options: argparse.Namespace, tokenizer: Tokenizer) -> None:
    if options.forms:
        asked = Counter(outcome.probe.form for outcome in result.outcomes)
        right = Counter(outcome.probe.form for outcome in result.outcomes if outcome.is_right)
        for form in sorted(asked):
            print(f"    {form:<20} {right[form]:>4} of {asked[form]}")
    wrong = [outcome for outcome in result.outcomes if not outcome.is_right]
    for outcome in wrong[: options.misses]:
        given = tokenizer.decode(list(outcome.given), skip_special_tokens=False)
        asked_for = str(outcome.probe.messages[-1]["content"])[-200:]
        print(f"    {asked_for!r}: {given!r}, expected {outcome.probe.answer!r}")


def served_probes(tokenizer: Tokenizer, prose: Prose, count: int) -> list[Probe]:
    """Probes whose prompts are long enough to be resumed."""
    found: list[Probe] = []
    for distance in (256, 1024, 4096):
        found += probes.recall_probes(Recall(distance), count, tokenizer, prose)
    found += probes.recall_probes(Recall(256, enable_thinking=True), count, tokenizer, prose)
    return found + probes.tool_probes(count) + probes.result_probes(count)


def print_served(model: Path, some: Sequence[Probe]) -> bool:
    """Prints a line for each pass; returns whether all answers equal the cold ones."""
    print(served.HEADING)
    cold: served.Pass | None = None
    all_same = True
    with tempfile.TemporaryDirectory() as folder:
        for one in served.passes(model.resolve(), some, Path(folder)):
            cold = cold or one
            count = served.counted(one, cold, some)
            all_same = all_same and count.num_as_cold == len(some)
            print(count.line(), flush=True)
    return all_same


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m ignisd.ember.evaluate",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", type=Path, default=WEIGHTS_DIR, help="checkpoint directory")
    parser.add_argument("--probes", type=int, default=DEFAULT_PROBES, help="probes of a line")
    parser.add_argument("--distances", type=int, nargs="+", default=list(DISTANCES))
    parser.add_argument(
        "--texts", type=Path, help="cache of the held-out novel, fetched if it is not there"
    )
    parser.add_argument("--forms", action="store_true", help="also by kind of fact")
    parser.add_argument("--misses", type=int, default=0, help="wrong replies to show")
    parser.add_argument(
        "--served",
        action="store_true",
        help="through a daemon: cold, resumed from each tier, after a restart",
    )
    parser.add_argument(
        "--served-probes", type=int, default=8, help="probes of each kind with --served"
    )
    return parser.parse_args()


def main() -> None:
    """Prints the table; ends with status 1 if a resumed answer is not the cold one."""
    options = _parsed()
    texts = read_texts(fetch(NOVEL, options.texts)) if options.texts else ()
    prose = Prose(texts)
    if options.served:
        tokenizer = ember_tokenizer.load(options.model)
        some = served_probes(tokenizer, prose, options.served_probes)
        sys.exit(0 if print_served(options.model, some) else 1)
    model = read_model(options.model)
    print(HEADING)
    for row in rows(model.tokenizer, prose, options.probes, options.distances):
        result = result_of(model, row)
        print(result.line(), flush=True)
        _print_details(result, options, model.tokenizer)
    if texts:
        text = " ".join(texts)[:NOVEL_BYTES]
        print(f"held-out English: {bits_per_byte(model, text):.3f} bits a byte")


if __name__ == "__main__":
    main()
