"""What `ignisd bench` was told: what to measure, on whom, and how long the prompts are."""

import argparse
import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ignisd.bench.reuse import ReuseSizes
from ignisd.bench.speed import DECODE, PREFILL, Load
from ignisd.errors import ConfigError

REUSE, COMPARE, TIERS = "reuse", "compare", "tiers"
OWN_NAME = "ignisd"
"""How the engine of this program is called in the tables."""
STDOUT = "-"

_MEASURED = (PREFILL, DECODE, REUSE, COMPARE, TIERS)
_MANY_SETTLE_S = 0.3
_WIDTH = 100


@dataclass(frozen=True, slots=True)
class Server:
    """A server to measure.

    Args:
        name: in the tables.
        url: its base.
        extra: fields for every request's body.
        key: that it asks for, if any.
    """

    name: str
    url: str
    extra: Mapping[str, object]
    key: str | None


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure and on whom.

    Args:
        what: prefill, decode, reuse, compare, which is all of these, or tiers.
        servers, own: targets; the engine of this program is one where `own`.
        loads: of prefill and decode.
        answer_tokens: that decode generates in each lane.
        settle_s: pause after each measurement.
        json_path: where JSON lines go; `-` is the standard output, instead of tables.
    """

    what: str
    servers: tuple[Server, ...]
    own: bool
    reuse: ReuseSizes
    loads: tuple[Load, ...]
    answer_tokens: int
    repetitions: int
    settle_s: float
    seed: str
    tolerated: frozenset[str]
    json_path: str | None


def read_plan(words: Sequence[str]) -> tuple[Plan, list[str]]:
    """The plan, and the words that are left for the settings.

    Raises:
        ConfigError: a word or a number makes no sense here.
    """
    try:
        given, rest = build_parser().parse_known_args(list(words))
    except argparse.ArgumentError as error:
        raise ConfigError(f"bench: {error}.") from None
    if given.what is None:
        raise ConfigError(f"bench: what is to be measured? Say {', '.join(_MEASURED)}.")
    servers = tuple(map(_server, given.url))
    own = given.own or not servers
    num_targets = len(servers) + own
    names = {server.name for server in servers} | ({OWN_NAME} if own else set())
    if len(names) < num_targets:
        raise ConfigError(f"bench: two targets have one name; the engine's own is {OWN_NAME}.")
    if given.what == COMPARE and num_targets < 2:
        raise ConfigError(
            f"bench compare: wanted two targets, had one, {min(names)}; give --url NAME=URL twice, "
            "or once with --own."
        )
    if given.what == TIERS and servers:
        raise ConfigError("bench tiers: moves between tiers cannot be measured behind --url.")
    if rest and not own:
        raise ConfigError(f"bench: {rest[0]} sets nothing on a server behind --url.")
    if strange := set(given.tolerate) - names:
        raise ConfigError(f"bench: --tolerate {min(strange)} is no target; there are {names}.")
    loads = [*_loads(PREFILL, given.prefill), *_loads(DECODE, given.decode)]
    settle_s = given.settle
    if settle_s is None:
        settle_s = _MANY_SETTLE_S if num_targets > 1 else 0.0
    plan = Plan(
        what=given.what,
        servers=servers,
        own=own,
        reuse=ReuseSizes(
            shared=given.shared,
            user=given.user,
            other=given.other or given.shared + given.user,
            repeats=given.repeats,
            max_tokens=given.max_tokens,
        ),
        loads=tuple(load for load in loads if given.what in (load.kind, COMPARE)),
        answer_tokens=given.decode_tokens,
        repetitions=given.reps,
        settle_s=settle_s,
        seed=given.seed or secrets.token_hex(4),
        tolerated=frozenset(given.tolerate),
        json_path=given.json,
    )
    return plan, rest


def _server(text: str) -> Server:
    """`NAME=URL` with `,KEY=JSON` for each field of every request; `api_key` goes with the head."""
    spec, *fields = text.split(",")
    name, _, url = spec.partition("=")
    if not name or not url:
        raise ConfigError(f"bench: --url {text}: wanted NAME=URL.")
    extra: dict[str, object] = {}
    for field in fields:
        key, _, value = field.partition("=")
        try:
            extra[key] = json.loads(value)
        except ValueError:
            raise ConfigError(f"bench: --url {text}: {field} is not KEY=JSON.") from None
    own_key = extra.pop("api_key", None)
    return Server(name, url, extra, None if own_key is None else str(own_key))


def _loads(kind: str, text: str) -> list[Load]:
    """`512x1,2048x4`: tokens x lanes."""
    loads = []
    for part in text.split(","):
        num_tokens, _, lanes = part.partition("x")
        if not (num_tokens.isdecimal() and lanes.isdecimal() and int(num_tokens) and int(lanes)):
            raise ConfigError(f"bench: --{kind} {text}: {part} is not TOKENSxLANES.")
        loads.append(Load(kind, int(num_tokens), int(lanes)))
    return loads


def _number(least: float, kind: Callable[[str], float]) -> Callable[[str], float]:
    def read(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"wanted a number, had {text}") from None
        if not least <= value < 1e9:
            raise argparse.ArgumentTypeError(f"wanted at least {least}, had {text}")
        return value

    return read


def build_parser() -> argparse.ArgumentParser:
    """The parser of the command's own flags; others are left for the settings."""
    parser = argparse.ArgumentParser(
        prog="ignisd bench",
        usage="ignisd bench prefill|decode|reuse|compare|tiers [--url NAME=URL...] [FLAG VALUE]...",
        description="Measures this program's engine, in this process, or servers that speak the "
        "OpenAI protocol, in turn. Nothing is shown unless reused greedy answers equal cold ones.",
        epilog="With its own engine, every flag of `ignisd --help` applies, such as --model.",
        formatter_class=lambda prog: argparse.HelpFormatter(
            prog, max_help_position=32, width=_WIDTH
        ),
        allow_abbrev=False,
        exit_on_error=False,
    )
    add = parser.add_argument
    add(
        "what",
        nargs="?",
        choices=_MEASURED,
        help="what to measure; compare is the first three, for two targets at least; tiers is what "
        "moves between device, kv_ram and kv_disk (in --kv-disk-path), with status 1 where that is "
        "much slower than plain copies",
    )
    add(
        "--url",
        action="extend",
        nargs="+",
        default=[],
        metavar="NAME=URL",
        help="servers; NAME=URL,KEY=JSON adds a field to each request, such as top_k=1; api_key is "
        "sent as a bearer token",
    )
    add("--own", action="store_true", help="measure the own engine beside the servers")
    whole = _number(1, int)
    add("--reps", type=whole, default=3, metavar="N", help="repetitions [3]")
    add(
        "--settle",
        type=_number(0, float),
        metavar="SECONDS",
        help=f"pause after each request [0; {_MANY_SETTLE_S} with several targets]; 1.5 where a "
        "server's idle threads spin on and would slow the next",
    )
    add("--seed", metavar="TEXT", help="of the prompts [drawn anew, so that nobody has seen them]")
    add(
        "--tolerate",
        action="append",
        default=[],
        metavar="NAME",
        help="show numbers of a target even where its reused answers differ",
    )
    add(
        "--json",
        nargs="?",
        const=STDOUT,
        metavar="FILE",
        help="JSON lines into a file, or instead of the tables",
    )
    _add_sizes(parser, whole)
    return parser


def _add_sizes(parser: argparse.ArgumentParser, whole: Callable[[str], float]) -> None:
    sizes = parser.add_argument_group("Sizes, in tokens")
    add = sizes.add_argument
    add("--shared", type=whole, default=3000, metavar="N", help="reuse: system block [3000]")
    add("--user", type=whole, default=1000, metavar="N", help="reuse: first message [1000]")
    add("--other", type=whole, metavar="N", help="reuse: other conversations [like the first]")
    add("--repeats", type=_number(2, int), default=2, metavar="N", help="reuse: repeats [2]")
    add("--max-tokens", type=whole, default=16, metavar="N", help="reuse: answers [16]")
    add(
        "--prefill",
        default="512x1,2048x1,8192x1,2048x4",
        metavar="TOKENSxLANES,...",
        help="prefill: unseen prompts, and how many at once [512x1,2048x1,8192x1,2048x4]",
    )
    add(
        "--decode",
        default="64x1,4096x1,64x4",
        metavar="TOKENSxLANES,...",
        help="decode: prompts, and how many at once [64x1,4096x1,64x4]",
    )
    add("--decode-tokens", type=whole, default=64, metavar="N", help="decode: answers [64]")
