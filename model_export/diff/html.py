"""Renders a comparison of two versions as one HTML page without scripts or network."""

from __future__ import annotations

import math
from pathlib import Path

from model_export.diff.text import drift_words, neighbour_words, output_words, rows_words, shape_words
from model_export.report import plots
from model_export.report.page import escape, figure, page, section, table
from service.comparison.document import Drift, TableDiff, VersionDiff


def to_html(diff: VersionDiff) -> str:
    names = ["/".join(Path(name).parts[-2:]) for name in (diff.old, diff.new)]
    sections = (_overview(diff), *(_table(found) for found in diff.tables), _predictions(diff))
    worst = "no table is judged" if diff.drift_percent is None else f"at most {diff.drift_percent:.3g} % drifted rows"
    return page(f"{names[0]} to {names[1]}", f"{len(diff.tables)} common tables, {worst}", sections)


def _overview(diff: VersionDiff) -> str:
    rows = [
        [
            found.table,
            shape_words(found),
            *(f"{rows.count:,}" for rows in (found.added, found.removed, found.moved)),
            "" if found.drift is None else f"{found.drift.drifted:,} ({found.drift.percent:.3g} %)",
            "" if found.neighbours is None else f"{found.neighbours.overlap:.1%}",
        ]
        for found in diff.tables
    ]
    heads = ("table", "size", "added", "removed", "moved", "drifted", "neighbours kept")
    lines = [f"Tables {what}: {', '.join(names)}." for what, names in _changed_tables(diff) if names]
    notes = "".join(f'<p class="note">{escape(line)}</p>' for line in (*lines, *diff.notes))
    return section("Tables", table(heads, rows, "llrrrrr"), notes)


def _changed_tables(diff: VersionDiff) -> tuple[tuple[str, tuple[str, ...]], ...]:
    return ("added", diff.added_tables), ("removed", diff.removed_tables)


def _table(found: TableDiff) -> str:
    parts = [f"<p>{escape(rows_words(found))}</p>"]
    if found.drift is not None:
        parts.append(f"<p>{escape(drift_words(found.drift))}</p>")
    if found.neighbours is not None:
        parts.append(f"<p>{escape(neighbour_words(found.neighbours))}</p>")
    parts += [f'<p class="note">{escape(note)}</p>' for note in found.notes]
    if found.drift is not None and found.drift.rows:
        parts.append(f'<div class="figures">{_figures(found.table, found.drift)}</div>')
        parts.append(_worst(found.drift))
    return section(f"Table {found.table}", *parts)


def _figures(name: str, drift: Drift) -> str:
    how = "after alignment" if drift.is_aligned else "as they are"
    cosines, ratios = drift.cosines, drift.norm_ratios
    powers = tuple(math.log2(edge) for edge in ratios.edges)
    return figure(
        "Cosine of old and new row",
        how,
        plots.value_histogram(f"Cosines of table {name}", "cosine", cosines.edges, cosines.counts),
    ) + figure(
        "Norm of new row / norm of old row",
        "1 is twice the norm, -1 half of it",
        plots.value_histogram(f"Norm ratios of table {name}", "log2 of the ratio", powers, ratios.counts),
    )


def _worst(drift: Drift) -> str:
    if not drift.worst:
        return ""
    rows = [
        [row.name, str(row.old_id), str(row.new_id), "not finite" if row.cosine is None else f"{row.cosine:.3f}"]
        for row in drift.worst
    ]
    return table(("most drifted row", "old id", "new id", "cosine"), rows, "lrrr")


def _predictions(diff: VersionDiff) -> str:
    if not diff.predictions:
        return ""
    rows = [[found.signature, found.output, output_words(found)] for found in diff.predictions]
    return section("Answers to recorded requests", table(("signature", "output", "difference"), rows))
