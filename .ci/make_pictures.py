"""Draws the pictures of README.md and docs/request.md as SVG files; `--check` only compares the files."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from html import escape

import generated_page

_LINE, _TEXT, _FAINT, _MAIN, _ASIDE, _FRAME = "#3949ab", "#222", "#777", "#e8eaf6", "#f5f5f5", "#fff"


def overview() -> str:
    """Returns the SVG picture of the server: the programs that write its models, and the clients that ask it."""
    parts = [
        _box(20, 50, 190, 92, "model-export", ["trains or adopts a model,", "checks every lookup"], _ASIDE),
        _box(20, 170, 190, 92, "another program", ["writes any SavedModel"], _ASIDE),
        _box(
            280,
            50,
            220,
            212,
            "models/movielens/2/",
            ["saved_model.pb", "variables/", "assets/  (vocabularies)", "assets.extra/", "  lookup_manifest.json"],
            _ASIDE,
        ),
        _box(580, 20, 290, 262, "embedding-server", [], _FRAME),
        _box(600, 60, 250, 92, "lookup", ["kernels on the mapped tables;", "microseconds, no TensorFlow"], _MAIN),
        _box(600, 170, 250, 92, "predict", ["lookups on the same tables,", "the rest in TensorFlow"], _MAIN),
        _box(950, 50, 200, 60, "HTTP :8501", ["JSON, Open Inference"], _ASIDE),
        _box(950, 126, 200, 60, "gRPC :8500", ["PredictionService"], _ASIDE),
        _box(950, 202, 200, 60, "Prometheus", ["/metrics"], _ASIDE),
        _arrow(210, 96, 280, 96),
        _arrow(210, 216, 280, 216),
        _arrow(500, 156, 580, 156, "mapped"),
        _arrow(950, 80, 870, 80),
        _arrow(950, 156, 870, 156),
        _arrow(950, 232, 870, 232),
    ]
    return _picture(1170, 300, parts)


_STEPS = (
    ("Connection", ["TLS, HTTP/1.1 or HTTP/2; limits; who the caller is; deadline and request id"], "native/src/edge"),
    (
        "Route",
        ["path to model, version and signature; the version is held until the answer is sent"],
        "native/src/plan",
    ),
    ("Form", ["finds ids, row splits and weights in the body, without a copy of them"], "native/src/forms"),
    ("Plan", ["names and dtypes fit the signature; the answer's size is known, and memory for it"], "native/src/plan"),
    ("Tables", ["reads rows of the mapped files and combines them straight into the answer"], "native/src/tables"),
    ("Connection", ["the answer is sent and counted; the version is let go of"], "native/src/edge"),
)
# Number of a step in the picture -> why some requests leave the path there.
_EXITS = {
    0: "over a limit: refused, 503 or 413",
    2: "not plain: forwarded to Python",
    4: "a predict: on to TensorFlow",
}


def request() -> str:
    """Returns the SVG picture of the steps of most requests through the server."""
    parts = [_box(240, 10, 160, 40, "client", [], _ASIDE), _arrow(320, 50, 320, 80)]
    for place, (title, lines, folder) in enumerate(_STEPS):
        top = 80 + place * 92
        parts.append(_box(20, top, 600, 62, f"{place + 1}. {title}", lines, _MAIN, folder))
        if place in _EXITS:
            parts += [_arrow(620, top + 31, 670, top + 31), _label(680, top + 36, _EXITS[place], _FAINT)]
        parts.append(_arrow(320, top + 62, 320, top + 92))
    parts.append(_box(240, 80 + len(_STEPS) * 92, 160, 40, "client", [], _ASIDE))
    return _picture(980, 130 + len(_STEPS) * 92, parts)


def _picture(width: int, height: int, parts: Sequence[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="14">\n'
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        f'<path d="M0,0 L8,4 L0,8 z" fill="{_LINE}"/></marker></defs>\n'
        # The background is white, so that the dark lines can be seen on a dark page, too.
        f'<rect width="{width}" height="{height}" fill="white"/>\n'
    )
    return head + "".join(f"{part}\n" for part in parts) + "</svg>\n"


def _box(x: int, y: int, width: int, height: int, title: str, lines: Sequence[str], fill: str, folder: str = "") -> str:
    rows = [f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6" fill="{fill}" stroke="{_LINE}"/>']
    rows.append(f'<text x="{x + 12}" y="{y + 25}" font-weight="bold" fill="{_TEXT}">{escape(title)}</text>')
    if folder:
        rows.append(
            f'<text x="{x + width - 12}" y="{y + 25}" text-anchor="end" fill="{_FAINT}" font-family="monospace" '
            f'font-size="12">{escape(folder)}</text>'
        )
    for place, line in enumerate(lines):
        rows.append(_label(x + 12, y + 48 + 22 * place, line))
    return "\n".join(rows)


def _label(x: int, y: int, text: str, colour: str = _TEXT) -> str:
    return f'<text x="{x}" y="{y}" fill="{colour}" xml:space="preserve">{escape(text)}</text>'


def _arrow(x1: int, y1: int, x2: int, y2: int, text: str = "") -> str:
    line = f'<path d="M{x1},{y1} L{x2},{y2}" stroke="{_LINE}" fill="none" marker-end="url(#tip)"/>'
    return line + (
        f'\n<text x="{(x1 + x2) // 2 - 28}" y="{(y1 + y2) // 2 - 12}" fill="{_FAINT}">{text}</text>' if text else ""
    )


if __name__ == "__main__":
    sys.exit(generated_page.run({"overview.svg": overview(), "request.svg": request()}))
