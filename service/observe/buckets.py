"""Bucket limits: ours in seconds, TensorFlow Serving's in microseconds and rows, and one recording that serves both.

Source: tensorflow_serving/servables/tensorflow/util.cc, batching/{batching_session.cc,batching_util.h} (9d981c5).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass


def _exponential(scale: float, factor: float, count: int) -> tuple[float, ...]:
    # One product after the other, as TensorFlow does: a power would differ in the last bit.
    limits = [scale]
    while len(limits) < count:
        limits.append(limits[-1] * factor)
    return tuple(limits)


# Lookups take microseconds and cold graph runs seconds: 20 us to 10 s, about 2.5-fold steps.
SECONDS = (2e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
# TensorFlow Serving's, of latencies.
MICROSECONDS = _exponential(10, 1.8, 33)
QUEUE_MICROSECONDS = _exponential(100, 1.2, 52)
# And of rows, in a request and in a batch.
EXAMPLES = _exponential(1, 2, 15)
BATCH_ROWS = _exponential(1, 2, 14)


@dataclass(frozen=True, slots=True)
class Durations:
    """Limits between which a duration is counted once, for both families of names to be read from.

    limits_s: all of them. seconds, microseconds: where in limits_s ours and TensorFlow Serving's lie.
    """

    limits_s: tuple[float, ...]
    seconds: tuple[int, ...]
    microseconds: tuple[int, ...]


def _joined(microseconds: tuple[float, ...]) -> Durations:
    theirs = tuple(us / 1e6 for us in microseconds)
    limits_s = tuple(sorted({*SECONDS, *theirs}))
    return Durations(limits_s, tuple(map(limits_s.index, SECONDS)), tuple(map(limits_s.index, theirs)))


REQUEST = _joined(MICROSECONDS)
QUEUE = _joined(QUEUE_MICROSECONDS)


class Times:
    """Durations between limits. Concurrency: one caller at a time.

    counts: one more than limits, the last for what is over all of them. seconds: their sum.
    """

    __slots__ = ("limits", "counts", "seconds", "_limits_s")

    def __init__(self, limits: Durations) -> None:
        self.limits = limits
        self._limits_s = limits.limits_s
        self.counts = [0] * (len(limits.limits_s) + 1)
        self.seconds = 0.0

    def add(self, seconds: float) -> None:
        """Counts one duration."""
        self.counts[bisect_left(self._limits_s, seconds)] += 1
        self.seconds += seconds

    def merge(self, other: Times) -> None:
        """Adds what another with the same limits counted, which may be counting on in its thread."""
        self.counts = [a + b for a, b in zip(self.counts, other.counts, strict=True)]
        self.seconds += other.seconds


class Rows:
    """Counts of rows between TensorFlow Serving's limits. Concurrency: one caller at a time.

    counts: one more than limits, the last for what is over all of them.
    """

    __slots__ = ("limits", "counts", "total")

    def __init__(self, limits: Sequence[float]) -> None:
        self.limits = limits
        self.counts = [0] * (len(limits) + 1)
        self.total = 0

    def add(self, rows: int) -> None:
        """Counts one number of rows; a limit itself belongs to what is above it, as in TensorFlow."""
        self.counts[bisect_right(self.limits, rows)] += 1
        self.total += rows

    def merge(self, other: Rows) -> None:
        """Adds what another with the same limits counted, which may be counting on in its thread."""
        self.counts = [a + b for a, b in zip(self.counts, other.counts, strict=True)]
        self.total += other.total
