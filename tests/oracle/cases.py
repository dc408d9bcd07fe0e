"""Where the goldens lie and what they hold; shared by the script that makes them and the tests."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

GOLDENS = Path(__file__).parent / "goldens"
NAMES = ("tied_even", "untied_double", "untied_triple", "nested_sharded")

# Around one page, around three, and a page less than nothing: a single token.
LENGTHS = (1, 63, 64, 65, 130, 200)
NUM_STEPS = 64


def kept_rows(length: int) -> tuple[int, ...]:
    """The prefill rows of a golden: its last one, its first, and those beside page borders."""
    wanted = {0, 1, 2, 3, 62, 63, 64, 127, 128, length - 1}
    return tuple(sorted(row for row in wanted if row < length))


@dataclass(frozen=True)
class Golden:
    """One prompt of one case.

    Args:
        tokens: int32 [T + steps], the prompt, then the tokens fed one by one.
        length: T, tokens of the prompt.
        prefill: f32 [len(kept_rows(T)), V], logits after those rows.
        decode: f32 [steps, V], logits after each fed token.
    """

    tokens: np.ndarray
    length: int
    prefill: np.ndarray
    decode: np.ndarray

    @property
    def logits(self) -> np.ndarray:
        """f32 [steps + 1, V]: after the prompt, then after each fed token."""
        return np.concatenate([self.prefill[-1:], self.decode])


def read_golden(name: str, length: int) -> Golden:
    """The golden of case `name` for a prompt of `length` tokens."""
    with np.load(GOLDENS / name / "logits.npz") as arrays:
        return Golden(
            arrays[f"tokens_{length}"],
            length,
            arrays[f"prefill_{length}"],
            arrays[f"decode_{length}"],
        )
