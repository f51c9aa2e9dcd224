"""Renders a report as plain text for a terminal, at most 100 columns wide, or as one HTML page; findings come first.

The page has inline pictures, needs no network, and suits light and dark screens. All text from an artifact is escaped.
The page's Content-Security-Policy forbids loading, and all scripts except pictures.js of this program, with which a
reader zooms pictures and sees the nearest rows.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path

from model_export.parity.comparison import ParityReport
from model_export.report.document import ArtifactReport
from model_export.report.page import details, escape, figure, page, section, table
from model_export.report.sections import (
    Block,
    Figure,
    Group,
    Lines,
    Section,
    Table,
    agreement_words,
    bytes_words,
    is_drawn,
    parity_blocks,
    sections,
)

WIDTH = 100
# The marks before sentences, by their kind.
_MARKS = {"bad": "! ", "note": "- "}


def to_text(report: ArtifactReport) -> str:
    tags = "; ".join("{" + ",".join(graph.tags) + "}" for graph in report.meta_graphs)
    lookups = "with" if report.has_manifest else "without"
    heads = (
        f"{report.folder}  ({len(report.files)} files, {bytes_words(report.nbytes)})",
        f"SavedModel with MetaGraphs {tags}, {lookups} a lookup manifest",
    )
    return sections_text(heads, sections(report))


def sections_text(heads: Iterable[str], parts: Iterable[Section]) -> str:
    lines = [line for head in heads for line in _wrap(head, "")]
    for part in parts:
        lines += ["", *_wrap(part.title, ""), *_blocks(part.blocks, "  ")]
    return _printed(lines)


def verification_text(artifact: Path, parity: ParityReport | None, faults: Sequence[str]) -> str:
    lines = [] if parity is None else [*_blocks(parity_blocks(parity), "  ")]
    if faults:
        lines += ["", "DISAGREEMENTS", *(f"  ! {fault}" for fault in faults)]
    else:
        # The report's line with the artifact's path is not wrapped, because a script may search for it.
        lines += [f"{artifact}: {agreement_words(parity)}"]
    return _printed(lines)


def _blocks(blocks: Iterable[Block], indent: str) -> Iterator[str]:
    for block in blocks:
        match block:
            case Lines(lines, kind):
                for line in lines:
                    yield from _wrap(line, indent + _MARKS.get(kind, ""))
            case Table(heads, rows):
                for row in rows:
                    yield from _wrap(_row(heads, row), indent)
            case Figure(title, caption, _, text):
                yield from _wrap(f"{title}: {caption or text}", indent) if caption or text else ()
                yield from _wrap(text, indent + "  ") if caption and text else ()
            case Group(title, parts):
                yield from _wrap(title, indent)
                yield from _blocks(parts, indent + "  ")


def _row(heads: Sequence[str], row: Sequence[str]) -> str:
    # The cells of a table of two columns, or of one whose rows have labels, need no heads.
    if len(heads) == 2 or not heads[0]:
        return "  ".join(row)
    cells = [f"{head} {cell}" for head, cell in zip(heads[1:], row[1:], strict=True) if cell]
    return f"{row[0]}  {'; '.join(cells)}"


def _wrap(text: str, indent: str) -> list[str]:
    rest = " " * (len(indent) + 2)
    return textwrap.wrap(text, WIDTH, initial_indent=indent, subsequent_indent=rest, break_on_hyphens=False)


def _printed(lines: Iterable[str]) -> str:
    shown = ("".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in line) for line in lines)
    return "".join(f"{line}\n" for line in shown)


def to_html(report: ArtifactReport) -> str:
    files = Table(("file", "bytes"), [[name, f"{size:,}"] for name, size in report.files.items()], "lr")
    parts = [*sections(report), Section("Files", [Group(f"{len(report.files)} files", [files])])]
    name = "/".join(Path(report.folder).parts[-2:])
    tables = "tables" if report.has_manifest else "2-D variables"
    summary = (
        f"{len(report.tables)} {tables}, {len(report.features)} features, "
        f"{sum(len(graph.signatures) for graph in report.meta_graphs)} signatures, {bytes_words(report.nbytes)}"
    )
    return sections_page(name, summary, parts, has_pictures_of_rows=any(map(is_drawn, report.tables)))


def sections_page(title: str, summary: str, parts: Iterable[Section], *, has_pictures_of_rows: bool = False) -> str:
    shown = [section(part.title, _html_blocks(part.blocks)) for part in parts]
    return page(title, summary, shown, has_pictures_of_rows=has_pictures_of_rows)


def _html_blocks(blocks: Iterable[Block]) -> str:
    # Pictures that follow one another stand side by side.
    parts = []
    for are_figures, some in groupby(blocks, lambda block: isinstance(block, Figure)):
        drawn = "".join(map(_html_block, some))
        parts.append(f'<div class="figures">{drawn}</div>' if are_figures else drawn)
    return "".join(parts)


def _html_block(block: Block) -> str:
    match block:
        case Lines(lines, "good"):
            return "".join(f'<p class="good">{escape(line)}</p>' for line in lines)
        case Lines(lines, kind):
            items = "".join(f"<li>{escape(line)}</li>" for line in lines)
            return f'<ul class="{kind or "note"}">{items}</ul>' if items else ""
        case Table(heads, rows, align):
            return table(heads, rows, align)
        case Figure(title, caption, draw):
            return figure(title, caption, draw(), is_wide=block.is_wide, kind=block.kind)
        case Group(title, parts):
            return details(title, _html_blocks(parts))
