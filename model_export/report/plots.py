"""Draws the pictures of a report as inline SVG, one function per kind of picture."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from model_export.report.document import Curve, Projection
from model_export.report.page import NUM_COLOURS, Frame, clip, escape, marker, picture, short, text
from model_export.statistics.table_health import Histogram

_WIDTH, _HEIGHT = 560, 250
_WIDE, _LEGEND_WIDTH = 860, 190
_MAX_NAMED_POINTS = 60
# Margins of a plot, in pixels, for the numbers and titles of its axes.
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 14, 26, 42


def norm_histogram(table: str, histogram: Histogram) -> str:
    counts, last = histogram.counts, histogram.edges[-1]
    beyond = f"; {histogram.above:,} rows lie above {short(last)}" if histogram.above else ""
    title, note = f"Histogram of row norms of table {table}", f", at most {max(counts):,} in one bin{beyond}"
    return value_histogram(title, f"norm of a row{beyond}", histogram.edges, counts, what="norm ", note=note)


def value_histogram(
    title: str, x_title: str, edges: Sequence[float], counts: Sequence[int], *, what: str = "", note: str = ""
) -> str:
    frame = _frame(_WIDTH, _HEIGHT, (edges[0], edges[-1]), (0, max(counts)))
    bars = []
    for low, high, count in zip(edges[:-1], edges[1:], counts, strict=True):
        # If all values are equal, the only bin has width 0, so its bar gets a fixed width.
        left, right = (frame.px(low), frame.px(high)) if high > low else (frame.left + 180, frame.right - 180)
        tip = f"{count:,} rows, {what}{short(low)} to {short(high)}"
        bars.append(_bar(left + 0.5, frame.py(count), right - left - 1, frame.bottom - frame.py(count), tip))
    description = f"{title}: {sum(counts):,} rows from {short(edges[0])} to {short(edges[-1])}{note}"
    return picture(_WIDTH, _HEIGHT, description, frame.axes(x_title, "rows") + f'<g class="c0">{"".join(bars)}</g>')


def line_chart(curves: Sequence[Curve]) -> str:
    """Draws curves over the same x in one chart, with a legend; each curve has at least one point."""
    xs = [x for curve in curves for x, _ in curve.points]
    ys = [y for curve in curves for _, y in curve.points]
    margin = 0.06 * (max(ys) - min(ys))
    frame = _frame(_WIDTH, _HEIGHT, (min(xs), max(xs)), (min(ys) - margin, max(ys) + margin), top=46)
    lines = []
    for index, curve in enumerate(curves):
        points = [(frame.px(x), frame.py(y)) for x, y in curve.points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        # A long curve is drawn without markers, because they would overlap.
        dots = zip(points, curve.points, strict=True) if len(points) <= 60 else ()
        drawn = "".join(
            marker(index, px, py, f"{curve.name} {value:.6g} at {curve.x_name} {x:g}") for (px, py), (x, value) in dots
        )
        at = frame.left + 10 + 170 * index
        lines.append(
            f'<g class="c{index % NUM_COLOURS}"><polyline class="line" points="{path}"/>{drawn}{marker(index, at, 14)}'
            f"</g>{text(at + 10, 18, clip(curve.name, 22), kind='legend')}"
        )
    described = "; ".join(f"{c.name} from {c.points[0][1]:.4g} to {c.points[-1][1]:.4g}" for c in curves)
    description = f"Curves over {curves[0].x_name}: {described}"
    return picture(_WIDTH, _HEIGHT, description, frame.axes(curves[0].x_name, "") + "".join(lines))


def scatter(table: str, projection: Projection) -> str:
    """Draws rows of a table on two principal components, coloured by label; the legend has eight labels at most."""
    spans = [max(axis) - min(axis) or 1.0 for axis in zip(*projection.points, strict=True)]
    # Both axes have the same scale, so that distances in the picture are proportional to distances in the projection.
    width = _WIDE if projection.labels else _WIDTH
    inner = width - _LEFT - _RIGHT
    height = min(520.0, max(240.0, inner * spans[1] / spans[0])) + _TOP + _BOTTOM
    legend = _groups(projection)
    frame = _same_unit(_frame(width, height, *_limits(projection)))
    radius = 3.2 if len(projection.ids) <= 500 else 2.6
    labels = projection.labels or (None,) * len(projection.ids)
    names = projection.names or ("",) * len(projection.ids)
    drawn: dict[str, list[str]] = {group: [] for group in legend}
    for row, (x, y), label, name in zip(projection.ids, projection.points, labels, names, strict=True):
        group = label if label in drawn else next(reversed(legend))
        title = " · ".join(part for part in (f"row {row}", name, label or "") if part)
        drawn[group].append(marker(legend[group], frame.px(x), frame.py(y), title, radius, row=row))
    # Points without a colour are drawn first and the commonest labels next, so that points of rare labels are not
    # hidden.
    order = sorted(drawn, key=lambda group: (legend[group] != _OTHER, legend[group]))
    body = "".join(f'<g class="{_class(legend[group])} point">{"".join(drawn[group])}</g>' for group in order)
    # The page's script can zoom the picture: it moves the points, and draws the axes of the part that it shows.
    body = frame.clipped(body + _point_names(frame, projection), "map")
    if projection.labels:
        lines = enumerate(legend.items())
        body += "".join(_legend_line(width, i, group, index, len(drawn[group])) for i, (group, index) in lines)
        width += _LEGEND_WIDTH
    shares = [f"{share:.0%}" for share in projection.explained]
    axes = frame.axes(f"first component ({shares[0]} of the variance)", f"second component ({shares[1]})")
    described = ", ".join(f"{len(drawn[group]):,} {group}" for group in legend)
    description = f"{len(projection.ids):,} rows of table {table} on their first two principal components: {described}"
    return picture(width, height, description, f'<g class="axes">{axes}</g>{body}')


def columns(title: str, x_title: str, y_title: str, values: Sequence[tuple[int, int]]) -> str:
    xs = [x for x, _ in values]
    frame = _frame(_WIDTH, 190, (min(xs) - 0.5, max(xs) + 0.5), (0, max(count for _, count in values)))
    pixel = frame.px(1) - frame.px(0)
    bars = "".join(
        _bar(frame.px(x - 0.5) + 0.1 * pixel, frame.py(n), 0.8 * pixel, frame.bottom - frame.py(n), f"{x}: {n:,}")
        for x, n in values
    )
    total = sum(count for _, count in values)
    description = f"{title}: {total:,} in all, from {min(xs)} to {max(xs)}"
    axes = frame.axes(x_title, y_title, x_ticks=xs if len(xs) <= 12 else None)
    return picture(_WIDTH, 190, description, axes + f'<g class="c0">{bars}</g>')


def ranking(title: str, values: Sequence[tuple[str, int]]) -> str:
    height = 22 * len(values) + 8
    top = max(count for _, count in values) or 1
    lines = []
    for i, (name, count) in enumerate(values):
        length = 300 * count / top
        lines.append(text(190, 22 * i + 18, clip(name, 28), anchor="end", kind="legend"))
        lines.append(f'<g class="c0">{_bar(198, 22 * i + 6, length, 15, f"{name}: {count:,}")}</g>')
        lines.append(text(204 + length, 22 * i + 18, f"{count:,}"))
    described = ", ".join(f"{name} {count:,}" for name, count in values)
    return picture(_WIDTH, height, f"{title}: {described}", "".join(lines))


_OTHER = NUM_COLOURS
_OTHER_LABELS, _NO_LABEL = "other labels", "no label"


def _groups(projection: Projection) -> dict[str, int]:
    # Maps each entry of a plot's legend to the index of the entry's colour and shape.
    counts = Counter(label for label in projection.labels if label is not None)
    if not counts:
        return {"rows": 0}
    common = [label for label, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))]
    groups = {label: index for index, label in enumerate(common[:NUM_COLOURS])}
    if len(common) > NUM_COLOURS or None in projection.labels:
        groups[_OTHER_LABELS if len(common) > NUM_COLOURS else _NO_LABEL] = _OTHER
    return groups


def _class(index: int) -> str:
    return "other" if index == _OTHER else f"c{index}"


def _legend_line(left: float, i: int, group: str, index: int, count: int) -> str:
    at = _TOP + 8 + 22 * i
    return (
        f'<g class="{_class(index)}">{marker(index, left + 12, at, radius=4.5)}</g>'
        f"{text(left + 24, at + 4, f'{clip(group, 20)} ({count:,})', kind='legend')}"
    )


def _point_names(frame: Frame, projection: Projection) -> str:
    # If there are few points, their names are written beside them; a name that would cover another is shown only in the
    # tooltip.
    if len(projection.names) > _MAX_NAMED_POINTS:
        return ""
    taken: list[tuple[float, float, float]] = []
    drawn = []
    for (x, y), name in zip(projection.points, projection.names, strict=False):
        shown = clip(name, 20)
        left, line, width = frame.px(x) + 6, frame.py(y) + 4, 6.0 * len(shown)
        if left + width > frame.right:
            left -= width + 12
        is_free = all(abs(line - at) > 11 or left > end or left + width < start for start, end, at in taken)
        if shown and is_free:
            taken.append((left, left + width, line))
            # When the page's script zooms the picture, a name keeps its size and its distance from the point.
            origin = f"transform-origin:{frame.px(x):.1f}px {frame.py(y):.1f}px"
            drawn.append(f'<g class="name" style="{origin}">{text(left, line, shown, kind="name")}</g>')
    return "".join(drawn)


def _limits(projection: Projection) -> tuple[tuple[float, float], tuple[float, float]]:
    (x_low, x_high), (y_low, y_high) = [(min(axis), max(axis)) for axis in zip(*projection.points, strict=True)]
    margins = [0.03 * (x_high - x_low) or 0.5, 0.03 * (y_high - y_low) or 0.5]
    return (x_low - margins[0], x_high + margins[0]), (y_low - margins[1], y_high + margins[1])


def _same_unit(frame: Frame) -> Frame:
    # Extends the limits of one axis until a unit of x and a unit of y have the same length in pixels.
    width, height = frame.right - frame.left, frame.bottom - frame.top
    unit = max((frame.x[1] - frame.x[0]) / width, (frame.y[1] - frame.y[0]) / height)
    centres = sum(frame.x) / 2, sum(frame.y) / 2
    return Frame(
        frame.left,
        frame.right,
        frame.top,
        frame.bottom,
        (centres[0] - unit * width / 2, centres[0] + unit * width / 2),
        (centres[1] - unit * height / 2, centres[1] + unit * height / 2),
    )


def _frame(width: float, height: float, x: tuple[float, float], y: tuple[float, float], top: float = _TOP) -> Frame:
    return Frame(_LEFT, width - _RIGHT, top, height - _BOTTOM, x, y)


def _bar(x: float, y: float, width: float, height: float, title: str) -> str:
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 0.5):.1f}" height="{height:.1f}">'
        f"<title>{escape(title)}</title></rect>"
    )
