"""Renders a report as one HTML page with inline pictures, without network, for light and dark screens.

All text from an artifact is escaped. The page's Content-Security-Policy forbids loading, and all scripts except
pictures.js of this program, with which a reader zooms pictures and sees the nearest rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

from model_export.report.document import ArtifactReport
from model_export.report.page import details, escape, figure, page, section, table
from model_export.report.sections import Block, Figure, Group, Lines, Section, Table, bytes_words, is_drawn, sections


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
    shown = [section(part.title, _blocks(part.blocks)) for part in parts]
    return page(title, summary, shown, has_pictures_of_rows=has_pictures_of_rows)


def _blocks(blocks: Iterable[Block]) -> str:
    # Pictures that follow one another stand side by side.
    parts = []
    for are_figures, some in groupby(blocks, lambda block: isinstance(block, Figure)):
        drawn = "".join(map(_block, some))
        parts.append(f'<div class="figures">{drawn}</div>' if are_figures else drawn)
    return "".join(parts)


def _block(block: Block) -> str:
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
            return details(title, _blocks(parts))
