"""Writes lines of metrics in Prometheus' text format, version 0.0.4.

Source: prometheus.io/docs/instrumenting/exposition_formats; TensorFlow Serving's peculiarities (no HELP lines, braces
  without labels, limits of six digits) are from util/prometheus_exporter.cc (9d981c5).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Literal

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Kind = Literal["counter", "gauge", "histogram"]
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def labels(named: Mapping[str, object]) -> str:
    r"""Returns the labels of a metric sample in Prometheus' text format, without braces.

    >>> labels({"model": 'a"b', "version": 3})
    'model="a\\"b",version="3"'
    """
    return ",".join(f'{name}="{str(value).translate(_ESCAPES)}"' for name, value in named.items())


def family(name: str, kind: Kind, about: str = "") -> list[str]:
    """Returns the first lines of a metric family (# TYPE, and # HELP if there is a text), which its samples follow."""
    return [f"# HELP {name} {about}", f"# TYPE {name} {kind}"] if about else [f"# TYPE {name} {kind}"]


def sample(name: str, labelled: str, value: float) -> str:
    """Returns the line of one metric sample; a value of type int is written without decimal point or exponent."""
    return f"{name}{{{labelled}}} {value!r}"


def limit_texts(limits: Iterable[float]) -> tuple[str, ...]:
    """Returns the texts of bucket limits (label le) in TensorFlow Serving's form.

    >>> limit_texts([10, 18.0, 104.976, 1474161517.2])
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
      total: sum of the counted values.
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
