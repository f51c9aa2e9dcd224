"""Renders a report as plain text for a terminal, at most 100 columns wide, with the findings first."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from model_export.parity.comparison import ParityReport
from model_export.report.document import ArtifactReport
from model_export.report.sections import (
    Block,
    Figure,
    Group,
    Lines,
    Section,
    Table,
    agreement_words,
    bytes_words,
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
    for section in parts:
        lines += ["", *_wrap(section.title, ""), *_blocks(section.blocks, "  ")]
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
