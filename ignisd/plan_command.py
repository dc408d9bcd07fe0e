"""`ignisd plan`: the memory that a model would hold, here or elsewhere, without loading it."""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TextIO

from ignisd.engine.capacity import mib
from ignisd.errors import ConfigError
from ignisd.flags import Flag
from ignisd.kinds import Size
from ignisd.machine import disk_folder, read_host_memory
from ignisd.planning import Machine, Planned, plan_model, this_machine
from ignisd.settings import FLAGS, Settings

_ACCELERATOR = "gpu"
_MEASURED = "measured at start"
_WIDTH = 100


@dataclass(frozen=True, slots=True)
class Asked:
    """What the command was told beside the settings.

    Args:
        device_bytes: memory of the accelerator to plan for; None for none.
        host_bytes: main memory of the machine to plan for; None for that of this one.
        as_json: whether a program reads the answer.
    """

    device_bytes: int | None
    host_bytes: int | None
    as_json: bool

    def machine(self) -> Machine:
        """The machine that is described, or this one where nothing is."""
        if self.device_bytes is None and self.host_bytes is None:
            return this_machine()
        host_bytes = self.host_bytes or read_host_memory().usable_bytes
        platform = "cpu" if self.device_bytes is None else _ACCELERATOR
        return Machine(platform, host_bytes, self.device_bytes)


def read_words(words: Sequence[str]) -> tuple[Asked, list[str]]:
    """What is asked, and the words that are left for the settings.

    Raises:
        ConfigError: a word makes no sense here.
    """
    try:
        given, rest = build_parser().parse_known_args(list(words))
    except argparse.ArgumentError as error:
        raise ConfigError(f"plan: {error}.") from None
    sizes = {name: _size(name, getattr(given, name)) for name in ("device_bytes", "host_bytes")}
    return Asked(**sizes, as_json=given.json), rest


def run(
    asked: Asked, settings: Settings, environ: Mapping[str, str], out: TextIO | None = None
) -> int:
    """Show the plan; the exit status.

    Raises:
        ConfigError: the model does not fit, or it cannot be read.
    """
    out = out or sys.stdout
    try:
        machine = asked.machine()
        planned = plan_model(settings, machine)
    except ConfigError as error:
        if asked.as_json:
            out.write(json.dumps({"fits": False, "message": error.message}, indent=2) + "\n")
        raise
    if asked.as_json:
        out.write(json.dumps(_record(machine, planned, settings, environ), indent=2) + "\n")
    else:
        out.write("\n".join(_lines(machine, planned, settings, environ)) + "\n")
    return 0


def build_parser() -> argparse.ArgumentParser:
    """The parser of the command's own flags; others are left for the settings."""
    parser = argparse.ArgumentParser(
        prog="ignisd plan",
        usage="ignisd plan [--device-bytes SIZE] [--host-bytes SIZE] [--json] [FLAG VALUE]...",
        description="Computes the memory plan of a model from its config.json and the headers of "
        "its tensors, for this machine or for one that is described, and refuses what does not "
        "fit as a start would, with exit status 2.",
        epilog="Every flag of `ignisd --help` applies, such as --model.",
        formatter_class=lambda prog: argparse.HelpFormatter(
            prog, max_help_position=28, width=_WIDTH
        ),
        allow_abbrev=False,
        exit_on_error=False,
    )
    add = parser.add_argument
    add(
        "--device-bytes",
        metavar="SIZE",
        help="plan for an accelerator that has so much memory to give, such as 80G",
    )
    add(
        "--host-bytes",
        metavar="SIZE",
        help="plan for a machine with so much main memory; without --device-bytes it has no "
        "accelerator",
    )
    add("--json", action="store_true", help="print a JSON object")
    return parser


def _size(name: str, text: str | None) -> int | None:
    if text is None:
        return None
    flag = Flag(name, Size(), None, "", "", "SIZE", "bytes", name, False)
    value: int = flag.read(text, "the command line")
    if not value:
        raise ConfigError(flag.refusal(text, "the command line"))
    return value


def _lines(
    machine: Machine, planned: Planned, settings: Settings, environ: Mapping[str, str]
) -> Iterator[str]:
    device = "" if machine.device_bytes is None else f"{mib(machine.device_bytes)} on the device, "
    yield f"{planned.name} on {machine.platform}: {device}{mib(machine.host_bytes)} of main memory"
    yield from planned.memory.table().splitlines()
    for flag, value in _settled(planned, settings, environ):
        yield f"{flag.option} {value}"


def _record(
    machine: Machine, planned: Planned, settings: Settings, environ: Mapping[str, str]
) -> dict[str, object]:
    memory = planned.memory
    return {
        "fits": True,
        "model": planned.name,
        "machine": asdict(machine),
        "memory": [
            {"name": line.name, "where": line.where, "bytes": line.num_bytes, "note": line.note}
            for line in memory.lines
        ],
        "budget_bytes": memory.budget_bytes,
        "headroom_bytes": memory.headroom_bytes,
        "unused_bytes": memory.free_bytes,
        "pool_tokens": memory.pool_tokens,
        "page_bytes": memory.page_bytes,
        "image_bytes": memory.image_bytes,
        "kv_ram": {
            "cells": planned.tiers.num_cells,
            "cell_bytes": planned.tiers.cell_bytes,
            "image_cells": planned.tiers.image_cells,
        },
        "settled": {flag.key: value for flag, value in _settled(planned, settings, environ)},
    }


def _settled(
    planned: Planned, settings: Settings, environ: Mapping[str, str]
) -> Iterator[tuple[Flag, object]]:
    """What settings that may be `auto` come to."""
    sizes, tiers = planned.sizes, planned.tiers
    found: dict[str, object] = {
        "model_max_context": sizes.max_context,
        "model_prefill_chunk": sizes.chunk_tokens,
        "spec_decode_lanes": sizes.num_lanes,
        "reuse_retained_host": sizes.num_host_slots,
        "vram_kv_pool_bytes": planned.memory.line_bytes("KV pool"),
        "reuse_kv_host_pool_bytes": tiers.arena_bytes,
    }
    if tiers.num_cells:
        found["reuse_kv_ram_floor"] = settings.reuse_kv_ram_floor or _MEASURED
        bound = f"{tiers.window_bytes} at most, {_MEASURED}"
        found["reuse_window_bytes"] = bound if tiers.window_measured else tiers.window_bytes
    if tiers.disk_bytes:
        found["kv_disk_bytes"] = tiers.disk_bytes
        found["kv_disk_path"] = str(disk_folder(settings.kv_disk_path, environ))
        found["kv_disk_floor"] = settings.kv_disk_floor or _MEASURED
    for flag in FLAGS:
        if flag.field in found:
            yield flag, found[flag.field]
