"""Writes lines of metrics in Prometheus' text format, version 0.0.4, and declares the buckets of histograms.

This server's buckets have limits in seconds, TensorFlow Serving's in microseconds.

Source: prometheus.io/docs/instrumenting/exposition_formats; TensorFlow Serving's peculiarities (no HELP lines, braces
  without labels, limits of six digits) are from util/prometheus_exporter.cc, its buckets from
  servables/tensorflow/util.cc and batching/{batching_session.cc,batching_util.h} (9d981c5).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from operator import attrgetter
from typing import Any, Literal

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Kind = Literal["counter", "gauge", "histogram"]
# Labels of a sample: name -> value.
Named = Mapping[str, object]
# Metrics of one kind of object: the end of each name, what the metric means, and the attribute with its value.
Families = Sequence[tuple[str, str, str]]
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def labels(named: Named) -> str:
    r"""Returns the labels of a metric sample in Prometheus' text format, without braces.

    >>> labels({"model": 'a"b', "version": 3})
    'model="a\\"b",version="3"'
    """
    return ",".join(f'{name}="{str(value).translate(_ESCAPES)}"' for name, value in named.items())


def family(name: str, kind: Kind, about: str = "") -> list[str]:
    """Returns the first lines of a metric family (# TYPE, and # HELP if there is a text), which its samples follow."""
    return [f"# HELP {name} {about}", f"# TYPE {name} {kind}"] if about else [f"# TYPE {name} {kind}"]


def sample(name: str, labelled: str, value: float) -> str:
    return f"{name}{{{labelled}}} {value!r}"


def series(name: str, about: str, values: Iterable[tuple[Named, float]]) -> list[str]:
    """Returns the lines of a metric family, a counter if the name ends in "_total", else a gauge."""
    return _family_of(name, about, [(labels(named), value) for named, value in values])


def _family_of(name: str, about: str, values: Iterable[tuple[str, float]]) -> list[str]:
    kind: Kind = "counter" if name.endswith("_total") else "gauge"
    return family(name, kind, about) + [sample(name, labelled, float(value)) for labelled, value in values]


def lines_of(prefix: str, families: Families, found: Sequence[tuple[Named, Any]]) -> list[str]:
    lines, labelled = [], [(labels(named), one) for named, one in found]
    for end, about, attribute in families:
        read = attrgetter(attribute)
        lines += _family_of(prefix + end, about, [(text, read(one) or 0) for text, one in labelled])
    return lines


@cache
def limit_texts(limits: tuple[float, ...]) -> tuple[str, ...]:
    """Returns the texts of bucket limits (label le) in TensorFlow Serving's form.

    >>> limit_texts((10, 18.0, 104.976, 1474161517.2))
    ('10', '18', '104.976', '1.47416e+09')
    """
    return tuple(f"{limit:.6g}" for limit in limits)


def histogram(
    name: str,
    labelled: str,
    *,
    limits: Sequence[str],
    counts: Sequence[int],
    total: float,
    places: Sequence[int] | None = None,
) -> list[str]:
    """Returns the lines of one histogram: its buckets, sum and count.

    Args:
      limits: texts of the bucket limits (le), without +Inf.
      counts: counts of the buckets; the last one is above all limits.
      places: positions of the limits in counts; None: limits and counts correspond one to one.
    """
    sums = list(accumulate(counts))
    below = sums[:-1] if places is None else [sums[place] for place in places]
    comma = "," if labelled else ""
    lines = [f'{name}_bucket{{{labelled}{comma}le="{le}"}} {n}' for le, n in zip(limits, below, strict=True)]
    lines.append(f'{name}_bucket{{{labelled}{comma}le="+Inf"}} {sums[-1]}')
    lines.append(sample(f"{name}_sum", labelled, total))
    lines.append(sample(f"{name}_count", labelled, sums[-1]))
    return lines


def _exponential(scale: float, factor: float, count: int) -> tuple[float, ...]:
    # Each bucket limit is computed as the previous limit times the factor, as in TensorFlow; factor**n would differ in
    # the last bit.
    limits = [scale]
    while len(limits) < count:
        limits.append(limits[-1] * factor)
    return tuple(limits)


# This server's bucket limits in seconds, from 20 us to 10 s in about 2.5-fold steps, because lookups take microseconds
# and first graph runs seconds.
SECONDS = (2e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
# TensorFlow Serving's bucket limits of latencies, in microseconds.
MICROSECONDS = _exponential(10, 1.8, 33)
QUEUE_MICROSECONDS = _exponential(100, 1.2, 52)
# TensorFlow Serving's bucket limits of numbers of rows, in a request and in a batch.
EXAMPLES = _exponential(1, 2, 15)
BATCH_ROWS = _exponential(1, 2, 14)


@dataclass(frozen=True, slots=True)
class Durations:
    """Bucket limits of durations: this server's and TensorFlow Serving's merged, so that one histogram serves both.

    limits_s: all limits. seconds, microseconds: positions in limits_s of this server's limits and of TensorFlow
      Serving's.
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


def quantile_s(counts: Sequence[int], limits_s: Sequence[float], share: float) -> float | None:
    """Returns a quantile of a histogram of durations in seconds; within a bucket, durations count as spread evenly.

    Returns None without durations; the last limit if the quantile is above it. Source: Prometheus, histogram_quantile.

    >>> quantile_s([0, 4, 0], [1.0, 2.0], 0.5)
    1.5
    """
    wanted, below = share * sum(counts), 0
    for at, (count, limit_s) in enumerate(zip(counts, limits_s, strict=False)):
        if count and below + count >= wanted:
            begin_s = limits_s[at - 1] if at else 0.0
            return begin_s + (limit_s - begin_s) * max(wanted - below, 0) / count
        below += count
    return limits_s[-1] if wanted else None


class Times:
    """A histogram of durations in seconds. Concurrency: one caller at a time.

    counts: number of durations in each bucket; the last bucket is above all limits. seconds: sum of all durations.
    """

    __slots__ = ("limits", "counts", "seconds")

    def __init__(self, limits: Durations, counts: list[int] | None = None, seconds: float = 0.0) -> None:
        self.limits = limits
        self.counts = counts or [0] * (len(limits.limits_s) + 1)
        self.seconds = seconds

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(self.limits.limits_s, seconds)] += 1
        self.seconds += seconds

    def merge(self, other: Times) -> None:
        self.counts = [a + b for a, b in zip(self.counts, other.counts, strict=True)]
        self.seconds += other.seconds


class Rows:
    """A histogram of numbers of rows, with TensorFlow Serving's bucket limits. Concurrency: one caller at a time.

    counts: counts in each bucket; the last bucket is above all limits. total: sum of all numbers of rows.
    """

    __slots__ = ("limits", "counts", "total")

    def __init__(self, limits: tuple[float, ...], counts: list[int] | None = None, total: int = 0) -> None:
        self.limits = limits
        self.counts = counts or [0] * (len(limits) + 1)
        self.total = total

    def merge(self, other: Rows) -> None:
        self.counts = [a + b for a, b in zip(self.counts, other.counts, strict=True)]
        self.total += other.total
