"""Which numbers were seen, kept as runs: hundreds of thousands of them in a row are one."""

from __future__ import annotations

from bisect import bisect_right


class Sequences:
    """A set of numbers from 1 on. Concurrency: one caller at a time.

    >>> seen = Sequences()
    >>> [seen.add(number) for number in (1, 2, 5, 5)], seen.last, seen.missing
    ([True, True, True, False], 5, 2)
    """

    def __init__(self) -> None:
        # Ascending and apart: where each run starts, and its last number.
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._count = 0

    def add(self, number: int) -> bool:
        """Adds a number; False where it was there."""
        place = bisect_right(self._starts, number)
        if place and self._ends[place - 1] >= number:
            return False
        self._count += 1
        joins_left = place > 0 and self._ends[place - 1] == number - 1
        joins_right = place < len(self._starts) and self._starts[place] == number + 1
        if joins_left and joins_right:
            self._ends[place - 1] = self._ends.pop(place)
            del self._starts[place]
        elif joins_left:
            self._ends[place - 1] = number
        elif joins_right:
            self._starts[place] = number
        else:
            self._starts.insert(place, number)
            self._ends.insert(place, number)
        return True

    @property
    def last(self) -> int:
        """The highest; 0 where there is none."""
        return self._ends[-1] if self._ends else 0

    @property
    def missing(self) -> int:
        """How many numbers below the last were not seen."""
        return self.last - self._count
