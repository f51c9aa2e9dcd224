"""The HTML page of a report: its frame, its tables, and SVG in it. The page's style, page.css, defines the colours.

>>> ticks(0.0, 1.0, 5)
[0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
>>> short(1234567.0), short(0.00012)
('1.23M', '1.2e-04')
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Number of CSS classes for colours (.c0, .c1, ...) in the page's style.
NUM_COLOURS = 8


def escape(text: object) -> str:
    """Escapes text for HTML and SVG, also within attributes; control characters are shown as hexadecimal codes."""
    shown = "".join(char if char.isprintable() or char == "\n" else f"\\x{ord(char):02x}" for char in str(text))
    return html.escape(shown, quote=True)


def clip(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def short(value: float) -> str:
    """Formats a number in few characters, with a unit such as k or M for a large number."""
    size = abs(value)
    if size and (size < 0.001 or size >= 1e12):
        return f"{value:.1e}"
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if size >= limit:
            return f"{value / {'G': 1e9, 'M': 1e6, 'k': 1e3}[unit]:.3g}{unit}"
    return f"{value:,.0f}" if size >= 1000 else f"{value:.4g}"


def ticks(low: float, high: float, about: int) -> list[float]:
    """Returns round numbers between low and high for the marks of an axis, about as many as `about`."""
    span = high - low
    if not math.isfinite(span) or span <= 0:
        return [low]
    power = 10.0 ** math.floor(math.log10(span / about))
    step = next(power * factor for factor in (1, 2, 5, 10) if span / (power * factor) <= about)
    first = math.ceil(low / step - 1e-9)
    # Each mark is rounded to the step's number of decimals, so that 3 * 0.1 is not shown as 0.30000000000000004.
    digits = max(0, -math.floor(math.log10(step)))
    return [round(i * step, digits) for i in range(first, math.floor(high / step + 1e-9) + 1)]


@dataclass(frozen=True, slots=True)
class Frame:
    """The plotting area of an SVG plot: its edges in pixels, and the x and y values at the edges."""

    left: float
    right: float
    top: float
    bottom: float
    x: tuple[float, float]
    y: tuple[float, float]

    def px(self, value: float) -> float:
        return self.left + (self.right - self.left) * _share(value, self.x)

    def py(self, value: float) -> float:
        return self.bottom - (self.bottom - self.top) * _share(value, self.y)

    def clipped(self, body: str, kind: str) -> str:
        """Wraps shapes so that they show only inside the plotting area; kind is their CSS class. The page's script
        reads the area.
        """
        width, height = self.right - self.left, self.bottom - self.top
        return (
            f'<svg x="{self.left:.1f}" y="{self.top:.1f}" width="{width:.1f}" height="{height:.1f}" '
            f'viewBox="{self.left:.1f} {self.top:.1f} {width:.1f} {height:.1f}" '
            f'data-x="{self.x[0]!r} {self.x[1]!r}" data-y="{self.y[0]!r} {self.y[1]!r}">'
            f'<g class="{kind}">{body}</g></svg>'
        )

    def axes(self, x_title: str, y_title: str, *, x_ticks: Sequence[float] | None = None) -> str:
        """Draws a plot's axes with grid lines. x_ticks: None for round numbers, [] for no numbers at the x axis."""
        parts = []
        for value in ticks(*self.y, max(4, round((self.bottom - self.top) / 70))):
            at = self.py(value)
            parts.append(f'<line class="grid" x1="{self.left}" x2="{self.right}" y1="{at:.1f}" y2="{at:.1f}"/>')
            parts.append(text(self.left - 6, at + 4, short(value), anchor="end"))
        for value in ticks(*self.x, 6) if x_ticks is None else x_ticks:
            parts.append(text(self.px(value), self.bottom + 16, short(value), anchor="middle"))
        parts.append(
            f'<line class="axis" x1="{self.left}" x2="{self.right}" y1="{self.bottom:.1f}" y2="{self.bottom:.1f}"/>'
        )
        parts.append(text((self.left + self.right) / 2, self.bottom + 34, x_title, anchor="middle", kind="title"))
        parts.append(text(self.left, self.top - 8, y_title, anchor="start", kind="title"))
        return "".join(parts)


def text(x: float, y: float, content: str, *, anchor: str = "start", kind: str = "tick") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(content)}</text>'


def picture(width: float, height: float, description: str, body: str) -> str:
    """Wraps SVG shapes into an inline picture; description is for screen readers."""
    return (
        f'<svg role="img" aria-label="{escape(description)}" viewBox="0 0 {width:g} {height:g}" '
        f'style="max-width:{width:g}px" xmlns="http://www.w3.org/2000/svg">{body}</svg>'
    )


def marker(index: int, x: float, y: float, title: str = "", radius: float = 3.2, *, row: int | None = None) -> str:
    """Draws a point in the shape of its group, so that groups can be told apart without colour.

    Args:
      row: number of the table's row for the page's script.
    """
    inside = f"<title>{escape(title)}</title>" if title else ""
    shape = _SHAPES[index % len(_SHAPES)](x, y, radius)
    tag = shape.split(" ", 1)[0]
    if row is not None:
        shape += f' data-row="{row}"'
    return f"<{shape}>{inside}</{tag}>" if inside else f"<{shape}/>"


def _share(value: float, limits: tuple[float, float]) -> float:
    low, high = limits
    return (value - low) / (high - low) if high > low else 0.5


def _polygon(*corners: tuple[float, float]) -> Callable[[float, float, float], str]:
    def draw(x: float, y: float, radius: float) -> str:
        points = " ".join(f"{x + radius * dx:.1f},{y + radius * dy:.1f}" for dx, dy in corners)
        return f'polygon points="{points}"'

    return draw


_SHAPES: tuple[Callable[[float, float, float], str], ...] = (
    lambda x, y, radius: f'circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}"',
    _polygon((-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)),
    _polygon((0, -1.2), (1.1, 0.8), (-1.1, 0.8)),
    _polygon((0, -1.3), (1.3, 0), (0, 1.3), (-1.3, 0)),
    _polygon((0, 1.2), (1.1, -0.8), (-1.1, -0.8)),
)


_SCRIPT = Path(__file__).with_name("pictures.js")
# Each colour of texts and points in it has one shade for light screens and one for dark screens, with a contrast of at
# least 3:1 to the background and to the cards. The CSS class `other` colours the points of a plot that have no group.
_STYLE = _SCRIPT.with_name("page.css")


def page(title: str, summary: str, sections: Iterable[str], *, has_pictures_of_rows: bool = False) -> str:
    """Returns a whole HTML document; sections are HTML, title and summary are plain text.

    Args:
      has_pictures_of_rows: whether the page gets the script for pictures of rows. The page runs no other script.
    """
    script = _SCRIPT.read_text(encoding="utf-8") if has_pictures_of_rows else ""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    style = _STYLE.read_text(encoding="utf-8")
    allowed = f"script-src 'sha256-{digest}'; " if script else ""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        # Content-Security-Policy is a second defence: HTML that was not escaped by mistake can still not run or load
        # anything. The script of this program is allowed by its hash.
        '<meta http-equiv="Content-Security-Policy" '
        f"content=\"default-src 'none'; {allowed}style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'\">\n"
        '<meta name="viewport" content="width=device-width,initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n"
        f"<header><h1>{escape(title)}</h1><p>{escape(summary)}</p></header>\n<main>\n"
        + "\n".join(part for part in sections if part)
        + "\n</main>\n"
        + (f"<script>{script}</script>\n" if script else "")
        + "</body>\n</html>\n"
    )


def section(title: str, *parts: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{''.join(parts)}</section>"


def figure(title: str, caption: str, drawing: str, *, is_wide: bool = False, kind: str = "") -> str:
    words = f"<figcaption><b>{escape(title)}</b><span>{escape(caption)}</span></figcaption>"
    kinds = " ".join(name for name in ("wide" if is_wide else "", kind) if name)
    return f'<figure class="{kinds}">{words}{drawing}</figure>' if kinds else f"<figure>{words}{drawing}</figure>"


def data(values: Mapping[str, Any]) -> str:
    # A "<" in the JSON could begin the end tag of the <script> element.
    text = json.dumps(values, allow_nan=False).replace("<", "\\u003c")
    return f'<script type="application/json">{text}</script>'


def details(title: str, body: str) -> str:
    return f"<details><summary>{escape(title)}</summary>{body}</details>"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], align: str = "") -> str:
    def cell(tag: str, column: int, content: str) -> str:
        kind = ' class="r"' if align[column : column + 1] == "r" else ""
        scope = ' scope="col"' if tag == "th" else ""
        return f"<{tag}{scope}{kind}>{escape(content)}</{tag}>"

    lines = [
        "<tr>" + "".join(cell(tag, i, content) for i, content in enumerate(row)) + "</tr>"
        for tag, part in (("th", [heads]), ("td", rows))
        for row in part
    ]
    return f'<div class="scroll"><table>{"".join(lines)}</table></div>'
