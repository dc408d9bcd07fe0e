"""An agent, its tool loops and its subagents through the official client: what each request reused.

usage: python -m tests.bench.agents [--url URL] [--turns N] [--agents N]

Starts a daemon on the embedded model, unless told of one, and drives it with OpenAI's client: a
conversation of 30 turns with tool loops, a burst of 8 subagents in its midst, a regenerated answer,
a cancelled and repeated one, and forks in the middle of a message far back. Prints, for each
request, its prompt, cached and recomputed tokens, against what the documented policy promises
(`tests.bench.promise`) while there are slots enough. Ends with status 1 if a request falls short of
that for another reason than slots, claims to have resumed more than was ever sent before, or
differs from a cold answer; or if the device has read other than the answers say.
"""

import argparse
import secrets
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import openai

from tests.bench.agent_client import Row, Talker
from tests.bench.agent_story import (
    LOOPS,
    Conversation,
    edited,
    opening,
    results,
    subagents,
    user_text,
)
from tests.daemon.running import running

OWN_SEED = "agents"
"""Nobody has talked to a daemon that was just started."""
_HEAD = (
    "who",
    "turn",
    "what",
    "prompt",
    "promised",
    "cached",
    "recomputed",
    "kind",
    "tier",
    "reason",
)
_SUMS = ("who", "requests", "prompt", "promised", "cached", "recomputed", "share cached")


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is said.

    Args:
        burst_at: turn in which the subagents run.
        regenerate_at, cancel_at: turns whose last request is repeated.
        fork_at: turn after which somebody goes on from the middle of turn `forked`.
        check_every: every so many turns an answer is compared with a cold one.
    """

    turns: int
    agents: int
    burst_at: int
    regenerate_at: int
    cancel_at: int
    fork_at: int
    forked: int
    check_every: int = 4

    @staticmethod
    def of(turns: int, agents: int) -> "Plan":
        """The events spread over so many turns."""
        return Plan(
            turns=turns,
            agents=agents,
            burst_at=max(turns * 2 // 5, 2),
            regenerate_at=max(turns // 4, 1),
            cancel_at=max(turns * 3 // 5, 1),
            fork_at=max(turns * 2 // 3, 1),
            forked=turns // 3 // 5 * 5 + 1,
        )


def play(talker: Talker, plan: Plan, seed: str) -> None:
    """Everything that is said, in order; the rows are the talker's."""
    main = opening(seed)
    past: list[Conversation] = []
    for turn in range(1, plan.turns + 1):
        main.say(user_text(seed, turn))
        past.append(_copy(main, main.name))
        for step in range(LOOPS[(turn - 1) % len(LOOPS)]):
            talker.ask(main, "tool loop" if step else "turn")
            main.loop(f"{seed} {turn} {step}", results(seed, turn, step))
        if turn == plan.burst_at:
            talker.ask(main, "tool loop" if main.step else "turn")
            reports = _burst(talker, plan, seed)
            main.loop(f"{seed} {turn} burst", reports, tool="start_agent")
        what = "return" if turn == plan.burst_at else ("tool loop" if main.step else "turn")
        content = talker.ask(main, what, check=turn % plan.check_every == 1)
        if turn == plan.regenerate_at:
            talker.ask(main, "regenerate", temperature=0.9)
            talker.ask(main, "retry", check=True)
        if turn == plan.cancel_at:
            talker.cancel(main, "cancelled")
            talker.ask(main, "retry", check=True)
        if turn == plan.fork_at:
            _forks(talker, past[plan.forked - 1], seed)
        main.close(f"{seed} {turn}", content)


def _burst(talker: Talker, plan: Plan, seed: str) -> list[str]:
    """All subagents at once, each with a loop of its own; what they report."""
    agents = list(subagents(seed, plan.agents))
    answers = talker.ask_together(agents, "burst")

    def run(place: int) -> str:
        agent, content = agents[place], answers[place]
        for step in range(3 + place % 3):
            agent.loop(f"{seed} {agent.name} {step}", results(f"{seed} {agent.name}", 0, step))
            content = talker.ask(agent, "tool loop", check=step == 2 and place % 4 == 0)
        return content

    with ThreadPoolExecutor(len(agents)) as threads:
        return list(threads.map(run, range(len(agents))))


def _forks(talker: Talker, then: Conversation, seed: str) -> None:
    """Three ways to go on from the middle of a message: the second pays for the third."""
    text = str(then.messages[-1]["content"])
    for number in (1, 2, 3):
        fork = _copy(then, f"fork {number}")
        fork.messages[-1] = {"role": "user", "content": edited(text, f"{seed} fork {number}")}
        talker.ask(fork, "fork", check=number != 2)


def _copy(one: Conversation, name: str) -> Conversation:
    return Conversation(name, one.model, list(one.messages), one.tools, one.turn, one.step)


def report(talker: Talker, seed: str, *, alone: bool = True) -> int:
    """Print the table and what it adds up to; the exit status.

    Args:
        alone: whether nobody else talks to the daemon, so that its counters are those of the rows.
    """
    rows = talker.rows
    print(_table([_HEAD, *map(_line, rows)], numbers=(3, 6)), end="\n\n")
    print(_table([_SUMS, *(_sums(name, mine) for name, mine in _groups(rows))], numbers=(1, 6)))
    used, slots = talker.slots_used, talker.num_slots
    print(f"\nseed {seed}; up to {used} of {slots} slots held a state")
    checked = [row.same for row in rows if row.same is not None]
    print(f"{len(checked)} answers compared with cold ones, {sum(checked)} equal")
    told = sum(row.prompt - row.cached for row in rows) + talker.cold_tokens
    read = talker.device_read() - talker.read_before
    print(f"the device read {read:,} prompt tokens; by the answers, cold ones included, {told:,}")
    wrong = ["the device has read other than the answers say"] if alone and read != told else []
    short = 0
    for row in rows:
        verdict = row.verdict(used, slots)
        name = f"{row.who}, turn {row.turn}.{row.step} ({row.what})"
        if verdict == "slots":
            short += 1
            missing = row.promise.ample - row.cached
            print(f"slots were short for {name}: {missing} tokens fewer ({row.why})")
        elif verdict:
            wrong.append(f"{name}: {verdict}")
    kept = "every promise was kept" + (f", but for {short} with too few slots" if short else "")
    print("\n".join(f"FAILED: {text}" for text in wrong) or kept)
    return 1 if wrong else 0


def _table(lines: Sequence[Sequence[str]], numbers: tuple[int, int]) -> str:
    """Columns, of which the first to the last of `numbers` hold numbers."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if numbers[0] <= place <= numbers[1] else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def _sums(name: str, rows: Sequence[Row]) -> tuple[str, ...]:
    prompt, cached = sum(row.prompt for row in rows), sum(row.cached for row in rows)
    promised = sum(row.promise.ample for row in rows)
    counts = (len(rows), prompt, promised, cached, prompt - cached)
    return (name, *(f"{count:,}" for count in counts), f"{cached / prompt:.1%}")


def _groups(rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    kinds = dict.fromkeys(row.who.partition(" ")[0] for row in rows)
    groups = [(kind, [row for row in rows if row.who.startswith(kind)]) for kind in kinds]
    return [*groups, ("all", list(rows))]


def _line(row: Row) -> tuple[str, ...]:
    mark = {None: "", True: " =", False: " ≠"}[row.same]
    return (
        row.who,
        f"{row.turn}.{row.step}",
        row.what + mark,
        str(row.prompt),
        str(row.promise.ample),
        str(row.cached),
        str(row.prompt - row.cached),
        row.kind or "-",
        row.tier or "-",
        row.why or "",
    )


def main() -> int:
    """Read the arguments, find or start the daemon, play, report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="of a daemon; one is started without it")
    parser.add_argument("--api-key", default="none")
    parser.add_argument("--slots", type=int, help="of the daemon that is started")
    parser.add_argument("--turns", type=int, default=30)
    parser.add_argument("--agents", type=int, default=8)
    parser.add_argument("--seed", help="of the texts; drawn anew for a daemon that runs already")
    arguments = parser.parse_args()
    plan = Plan.of(arguments.turns, arguments.agents)
    if arguments.url is not None:
        seed = arguments.seed or secrets.token_hex(4)
        return _played(arguments.url, arguments.api_key, plan, seed, alone=False)
    flags = ["--reuse-retained-host", str(arguments.slots)] if arguments.slots else []
    with tempfile.TemporaryDirectory() as folder, running(Path(folder), *flags) as daemon:
        seed = arguments.seed or OWN_SEED
        return _played(daemon.url, arguments.api_key, plan, seed, alone=True)


def _played(url: str, api_key: str, plan: Plan, seed: str, *, alone: bool) -> int:
    try:
        with Talker(url, api_key) as talker:
            play(talker, plan, seed)
            return report(talker, seed, alone=alone)
    except openai.OpenAIError as error:
        print(f"{url}: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
