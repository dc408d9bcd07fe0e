"""Times the operations at the sizes of real models: python -m pallas_kernels.bench --help.

An operation's small cases are compared with its reference first; where one fails, no time is shown.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from pallas_kernels.causal_conv import cases as conv_cases
from pallas_kernels.causal_conv import prefill as conv_prefill
from pallas_kernels.causal_conv import reference as conv_reference
from pallas_kernels.dispatch import Path, default_path
from pallas_kernels.gated_delta_decode import cases as delta_decode_cases
from pallas_kernels.gated_delta_decode import gated_delta_decode
from pallas_kernels.gated_delta_decode import reference as delta_decode_reference
from pallas_kernels.gated_delta_prefill import cases as delta_cases
from pallas_kernels.gated_delta_prefill import gated_delta_prefill
from pallas_kernels.gated_delta_prefill import reference as delta_reference
from pallas_kernels.paged_attention_decode import cases as decode_cases
from pallas_kernels.paged_attention_decode import paged_attention_decode
from pallas_kernels.paged_attention_decode import reference as decode_reference
from pallas_kernels.paged_attention_prefill import cases as attention_cases
from pallas_kernels.paged_attention_prefill import paged_attention_prefill
from pallas_kernels.paged_attention_prefill import reference as attention_reference
from pallas_kernels.testing import check_close


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation, the module of its cases, its reference, and what it must move at the least."""

    name: str
    run: Callable[..., Any]
    cases: Any
    reference: Callable[..., Any]
    min_bytes: Callable[[Any], int] | None = None
    has_scale: bool = False
    has_path: bool = False

    def at(self, case: Any, path: Path) -> Callable[..., Any]:
        """The operation with everything static bound."""
        options: dict[str, Any] = {"scale": case.scale} if self.has_scale else {}
        if self.has_path:
            options["path"] = path
        return functools.partial(self.run, **options)


OPERATIONS = (
    Operation("causal_conv", conv_prefill, conv_cases, conv_reference.prefill),
    Operation(
        "gated_delta_decode",
        gated_delta_decode,
        delta_decode_cases,
        delta_decode_reference.gated_delta_decode,
        min_bytes=lambda case: int(case.state_bytes),
        has_path=True,
    ),
    Operation(
        "gated_delta_prefill",
        gated_delta_prefill,
        delta_cases,
        delta_reference.gated_delta_prefill,
    ),
    Operation(
        "paged_attention_decode",
        paged_attention_decode,
        decode_cases,
        decode_reference.paged_attention_decode,
        min_bytes=lambda case: int(case.kv_bytes),
        has_scale=True,
        has_path=True,
    ),
    Operation(
        "paged_attention_prefill",
        paged_attention_prefill,
        attention_cases,
        attention_reference.paged_attention_prefill,
        has_scale=True,
    ),
)


def check(operation: Operation, path: Path) -> None:
    """Raises AssertionError where a small case strays from the reference."""
    tolerance = operation.name
    if operation.name == "paged_attention_decode" and path is not Path.XLA:
        tolerance += ", Triton"
    for case in operation.cases.CASES:
        args = operation.cases.inputs(case)
        options = {"scale": case.scale} if operation.has_scale else {}
        got = jax.tree.leaves(jax.jit(operation.at(case, path))(**args))[0]
        want = jax.tree.leaves(operation.reference(**args, **options))[0]
        live = args.get("live", np.ones(len(want), np.bool_))
        check_close(tolerance, f"{case.name} output", np.asarray(got)[live], want[live])


def measure(operation: Operation, case: Any, path: Path, repetitions: int) -> str:
    """One line: the median time of a call and the rate at which it moves the bytes it must."""
    args = jax.device_put(operation.cases.inputs(case))
    run = jax.jit(operation.at(case, path))
    jax.block_until_ready(run(**args))
    times_s = []
    for _ in range(repetitions):
        start_s = time.perf_counter()
        jax.block_until_ready(run(**args))
        times_s.append(time.perf_counter() - start_s)
    median_s = statistics.median(times_s)
    line = f"{operation.name:24} {case.name:12} {path:9} {median_s * 1e3:10.3f} ms"
    if operation.min_bytes is not None:
        line += f" {operation.min_bytes(case) / median_s / 1e9:9.1f} GB/s"
    return line


def main(arguments: Sequence[str]) -> None:
    """Checks and times the chosen operations."""
    parser = argparse.ArgumentParser(prog="python -m pallas_kernels.bench", description=__doc__)
    names = [operation.name for operation in OPERATIONS]
    parser.add_argument("--operation", action="append", choices=names, help="default: all")
    parser.add_argument("--case", action="append", help="name of a model size; default: all")
    parser.add_argument("--path", type=Path, choices=list(Path), default=default_path())
    parser.add_argument("--repetitions", type=int, default=20)
    chosen = parser.parse_args(arguments)
    sys.stdout.write(f"on {jax.devices()[0].device_kind}\n")
    for operation in OPERATIONS:
        if chosen.operation and operation.name not in chosen.operation:
            continue
        check(operation, chosen.path)
        for case in operation.cases.MODEL_CASES:
            if not chosen.case or case.name in chosen.case:
                sys.stdout.write(measure(operation, case, chosen.path, chosen.repetitions) + "\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
