"""What the text of `--reuse-retention-interval` means."""

from dataclasses import dataclass
from typing import Any

from state.groups import DENSE, GroupName, Intervals, read_intervals
from state.spec import PAGE_TOKENS


@dataclass(frozen=True, slots=True)
class IntervalText:
    """One interval for every group, or GROUP=INTERVAL with commas between; a file may say a number.

    What a group is not named for is 0, unless an interval for all comes first.
    """

    @property
    def wants(self) -> str:
        groups = ", ".join(name for name in GroupName if name is not GroupName.FULL)
        return (
            f"0, a positive multiple of the page of {PAGE_TOKENS} tokens, {DENSE}, or one of these "
            f"for each of some groups ({groups}) as in linear=4096,drafter=0"
        )

    def read(self, raw: object) -> Intervals:
        if isinstance(raw, Intervals):
            return raw
        if isinstance(raw, bool) or not isinstance(raw, int | str):
            raise ValueError
        return read_intervals(str(raw))

    def write(self, value: Any) -> str:
        return str(value)
