"""How long runs of a graph take by themselves, so that short ones need no thread."""

from __future__ import annotations

import math

# By how much of the difference a run that took longer counts: most of those shared the processor with something else.
_OLDER = 64


class RunTimes:
    """The least that recent runs of about so many rows took. Concurrency: any thread; one of two may be lost."""

    def __init__(self) -> None:
        # By the number of bits of their rows.
        self._least_s: dict[int, float] = {}

    def expected_s(self, rows: int) -> float:
        """Returns what a run will take; infinity where there was none of this size."""
        return self._least_s.get(rows.bit_length(), math.inf)

    def learn(self, rows: int, seconds: float) -> None:
        """Takes in what a run took."""
        size = rows.bit_length()
        least_s = self._least_s.get(size, math.inf)
        self._least_s[size] = seconds if seconds < least_s else least_s + (seconds - least_s) / _OLDER
