"""Draws line charts as SVG with the standard library alone; several charts can be stacked in one picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

_WIDTH, _HEIGHT = 800, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 44, 40
# Colours of Okabe and Ito, which colour-blind readers can tell apart.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")
_MAX_POINTS = 1000


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a chart. points: (x, y) by ascending x; a y that is not finite interrupts the line."""

    name: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Mark:
    """An event at an x, such as the kill of a server, which the chart shows as a dashed line with a name."""

    x: float
    name: str = ""


def line_chart(
    title: str,
    series: Sequence[Series],
    *,
    x_label: str = "",
    y_label: str = "",
    marks: Sequence[Mark] = (),
    y_from_zero: bool = True,
) -> str:
    """Returns one <svg> with axes, a legend and a line for each series.

    Args:
      y_from_zero: whether the y axis starts at zero; else at the smallest y.
    """
    finite = [(x, y) for one in series for x, y in one.points if math.isfinite(y)]
    xs, ys = [x for x, _ in finite] or [0.0], [y for _, y in finite] or [0.0]
    x_ticks = _ticks(min(xs), max(xs))
    y_ticks = _ticks(min(0.0, *ys) if y_from_zero else min(ys), max(ys))
    axes = _Axes(x_ticks[0], x_ticks[-1], y_ticks[0], y_ticks[-1])
    parts = [f'<text x="{_LEFT}" y="18" font-size="14">{escape(title)}</text>']
    for value in y_ticks:
        y = axes.y(value)
        parts.append(f'<path d="M{_LEFT},{y:.1f} H{_WIDTH - _RIGHT}" stroke="#ddd"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>')
    for value in x_ticks:
        parts.append(f'<text x="{axes.x(value):.1f}" y="{_HEIGHT - 22}" text-anchor="middle">{value:g}</text>')
    for mark in marks:
        x = axes.x(min(max(mark.x, axes.x_low), axes.x_high))
        parts.append(f'<path d="M{x:.1f},{_TOP} V{_HEIGHT - _BOTTOM}" stroke="#999" stroke-dasharray="3 3"/>')
        parts.append(f'<text x="{x + 3:.1f}" y="{_TOP + 10}" font-size="9" fill="#666">{escape(mark.name)}</text>')
    parts.append(f'<text x="{_WIDTH - _RIGHT}" y="{_HEIGHT - 6}" text-anchor="end">{escape(x_label)}</text>')
    parts.append(f'<text x="{_LEFT}" y="34" fill="#555">{escape(y_label)}</text>')
    across = _WIDTH - _RIGHT
    for number, one in reversed(list(enumerate(series))):
        colour = _COLOURS[number % len(_COLOURS)]
        parts += [_polyline(stretch, axes, colour) for stretch in _stretches(_thinned(one.points))]
        across -= 7 * len(one.name) + 24
        parts.append(f'<path d="M{across},30 h14" stroke="{colour}" stroke-width="3"/>')
        parts.append(f'<text x="{across + 18}" y="34">{escape(one.name)}</text>')
    return _svg(_HEIGHT, "\n".join(parts))


def stacked(charts: Sequence[str]) -> str:
    """Returns one <svg> with several charts of line_chart() below each other."""
    placed = (chart.replace("<svg ", f'<svg y="{_HEIGHT * number}" ', 1) for number, chart in enumerate(charts))
    return _svg(_HEIGHT * len(charts), "".join(placed))


@dataclass(frozen=True, slots=True)
class _Axes:
    x_low: float
    x_high: float
    y_low: float
    y_high: float

    def x(self, value: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * (value - self.x_low) / (self.x_high - self.x_low)

    def y(self, value: float) -> float:
        return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * (value - self.y_low) / (self.y_high - self.y_low)


def _ticks(low: float, high: float) -> list[float]:
    """Returns at most eleven round numbers that span the range from low to high."""
    if high <= low:
        high = low + (abs(low) or 1.0)
    step = 10.0 ** math.floor(math.log10((high - low) / 5))
    for factor in (1, 2, 5, 10):
        first, last = math.floor(low / (step * factor) + 1e-9), math.ceil(high / (step * factor) - 1e-9)
        if last - first <= 8:
            break
    return [round(n * step * factor, 12) for n in range(first, last + 1)]


def _thinned(points: Sequence[tuple[float, float]]) -> Sequence[tuple[float, float]]:
    """Reduces points to few enough for a picture; each group of neighbours is replaced by its highest point."""
    size = -(-len(points) // _MAX_POINTS)
    if size <= 1:
        return points
    groups = (points[begin : begin + size] for begin in range(0, len(points), size))
    return [max(group, key=lambda point: point[1] if math.isfinite(point[1]) else -math.inf) for group in groups]


def _stretches(points: Sequence[tuple[float, float]]) -> list[list[tuple[float, float]]]:
    stretches: list[list[tuple[float, float]]] = [[]]
    for x, y in points:
        if math.isfinite(y):
            stretches[-1].append((x, y))
        elif stretches[-1]:
            stretches.append([])
    return [stretch for stretch in stretches if stretch]


def _polyline(points: Sequence[tuple[float, float]], axes: _Axes, colour: str) -> str:
    placed = [f"{axes.x(x):.1f},{axes.y(y):.1f}" for x, y in points]
    if len(placed) == 1:
        x, y = placed[0].split(",")
        return f'<circle cx="{x}" cy="{y}" r="3" fill="{colour}"/>'
    return f'<polyline points="{" ".join(placed)}" fill="none" stroke="{colour}" stroke-width="1.5"/>'


def _svg(height: int, inner: str) -> str:
    size = f'width="{_WIDTH}" height="{height}" viewBox="0 0 {_WIDTH} {height}"'
    style = 'font-family="sans-serif" font-size="11"'
    background = f'<rect width="{_WIDTH}" height="{height}" fill="white"/>'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>\n{background}\n{inner}\n</svg>\n'
