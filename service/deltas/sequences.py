"""Stores the sequence numbers of a version's deltas as ranges: many successive numbers take one entry."""

from __future__ import annotations

from bisect import bisect_right


class Sequences:
    """A set of the sequence numbers of deltas, which start at 1. Concurrency: one caller at a time.

    >>> seen = Sequences()
    >>> [seen.add(number) for number in (1, 2, 5, 5)], seen.last, seen.missing
    ([True, True, True, False], 5, 2)
    """

    def __init__(self) -> None:
        # The set of sequence numbers is kept as ranges of consecutive numbers: _starts has the first number of each
        # range and _ends the last one, both ascending.
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._count = 0

    def add(self, number: int) -> bool:
        """Adds a delta's sequence number to this set of numbers; returns False if the set has it already."""
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
        """The highest of the deltas' sequence numbers in this set; 0 if the set is empty."""
        return self._ends[-1] if self._ends else 0

    @property
    def missing(self) -> int:
        """How many of the deltas' sequence numbers, from 1 to the highest one in this set, the set lacks."""
        return self.last - self._count
