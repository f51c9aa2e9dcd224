"""Implements the command `model-export diff`: compares two versions, as text, as JSON or as one HTML page."""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
import math
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from model_export.errors import ExportError
from model_export.folder_checks import check_saved_model
from model_export.report import plots
from model_export.report.rendering import sections_page, sections_text
from model_export.report.sections import Block, Figure, Lines, Section, Table, spark
from service.comparison.document import (
    DRIFTED_COSINE,
    MAX_ROW_FACTOR,
    Drift,
    Neighbours,
    OutputDiff,
    Rows,
    TableDiff,
    VersionDiff,
)
from service.comparison.tables import Budget
from service.comparison.versions import compare_versions
from service.errors import DataLoss, os_errors_as


def diff(arguments: argparse.Namespace) -> None:
    """Compares two version folders and prints what changed.

    Raises:
      ExportError: a folder is no version, its files changed meanwhile, or the drift is beyond --max_drift.
      ArtifactError: the files of a version do not fit its manifest.
    """
    for folder in (arguments.old, arguments.new):
        check_saved_model(folder)
    try:
        found = compare_versions(arguments.old, arguments.new, budget=Budget(rows=arguments.rows))
    except DataLoss as error:
        raise ExportError(error.message) from error
    if not arguments.no_predictions:
        found = _with_predictions(found, arguments.old, arguments.new)
    if arguments.json:
        sys.stdout.write(json.dumps(found.to_json(), indent=1, allow_nan=False) + "\n")
    elif arguments.html is None:
        sys.stdout.write(to_text(found))
    if arguments.html is not None:
        with os_errors_as(ExportError, f"cannot write {arguments.html}"):
            arguments.html.write_text(to_html(found), encoding="utf-8")
        sys.stderr.write(f"comparison written to {arguments.html}\n")
    if arguments.max_drift is not None and (faults := found.refusals(arguments.max_drift)):
        raise ExportError(f"drifted (--max_drift={arguments.max_drift:g}): {'; '.join(faults)}")


def _with_predictions(found: VersionDiff, old: Path, new: Path) -> VersionDiff:
    if importlib.util.find_spec("tensorflow") is None:
        note = "Recorded requests were not run: TensorFlow is not installed."
        return dataclasses.replace(found, notes=(*found.notes, note))
    from model_export.diff.predictions import compare_predictions, recorded_requests

    requests = recorded_requests(old)
    if not requests:
        note = f"{old} has no recorded predict requests."
        return dataclasses.replace(found, notes=(*found.notes, note))
    predictions, notes = compare_predictions(old, new, requests)
    return dataclasses.replace(found, predictions=predictions, notes=(*found.notes, *notes))


def to_text(diff: VersionDiff) -> str:
    return sections_text([f"{diff.old} -> {diff.new}"], _sections(diff))


def to_html(diff: VersionDiff) -> str:
    names = ["/".join(Path(name).parts[-2:]) for name in (diff.old, diff.new)]
    worst = "no table is judged" if diff.drift_percent is None else f"at most {diff.drift_percent:.3g} % drifted rows"
    return sections_page(f"{names[0]} to {names[1]}", f"{len(diff.tables)} common tables, {worst}", _sections(diff))


def _sections(diff: VersionDiff) -> Iterator[Section]:
    rows = [
        [
            found.table,
            _shape_words(found),
            *(f"{rows.count:,}" for rows in (found.added, found.removed, found.moved)),
            "" if found.drift is None else f"{found.drift.drifted:,} ({found.drift.percent:.3g} %)",
            "" if found.neighbours is None else f"{found.neighbours.overlap:.1%}",
        ]
        for found in diff.tables
    ]
    heads = ("table", "size", "added", "removed", "moved", "drifted", "neighbours kept")
    changed = (("added", diff.added_tables), ("removed", diff.removed_tables))
    lines = [f"Tables {what}: {', '.join(names)}." for what, names in changed if names]
    yield Section("Tables", [Table(heads, rows, "llrrrrr"), Lines([*lines, *diff.notes], "note")])
    for found in diff.tables:
        yield Section(f"Table {found.table}", [*_table(found)])
    if diff.predictions:
        answers = [[found.signature, found.output, _output_words(found)] for found in diff.predictions]
        yield Section("Answers to recorded requests", [Table(("signature", "output", "difference"), answers)])


def _table(found: TableDiff) -> Iterator[Block]:
    drift = found.drift
    lines = [_rows_words(found), *([] if drift is None else [_drift_words(drift), _norm_words(drift)])]
    yield Lines([*lines, *([] if found.neighbours is None else [_neighbour_words(found.neighbours)])])
    yield Lines(found.notes, "note")
    if drift is None or not drift.rows:
        return
    cosines, ratios = drift.cosines, drift.norm_ratios
    yield Figure(
        "Cosine of old and new row",
        "after alignment" if drift.is_aligned else "as they are",
        partial(plots.value_histogram, f"Cosines of table {found.table}", "cosine", cosines.edges, cosines.counts),
        spark(cosines.edges, cosines.counts),
    )
    powers = tuple(math.log2(edge) for edge in ratios.edges)
    title = f"Norm ratios of table {found.table}"
    yield Figure(
        "Norm of new row / norm of old row",
        "1 is twice the norm, -1 half of it",
        partial(plots.value_histogram, title, "log2 of the ratio", powers, ratios.counts),
        spark(powers, ratios.counts),
    )
    if drift.worst:
        rows = [
            [row.name, str(row.old_id), str(row.new_id), "not finite" if row.cosine is None else f"{row.cosine:.3f}"]
            for row in drift.worst
        ]
        yield Table(("most drifted row", "old id", "new id", "cosine"), rows, "lrrr")


def _drift_words(drift: Drift) -> str:
    """Returns one sentence on how far a table's rows drifted from the old version to the new one.

    >>> from service.comparison.document import Histogram
    >>> empty = Histogram((), ())
    >>> _drift_words(Drift(200, True, empty, empty, 0.98, 0.1, 1.0, 0, (8.0, 8.0), 0, 2, 1.0, ()))
    '2 of 200 rows drifted (1 %): cosine below 0.3 after alignment; median cosine 0.980, before alignment 0.100'
    """
    how = "after alignment" if drift.is_aligned else "as they are"
    words = (
        f"{drift.drifted:,} of {drift.rows:,} rows drifted ({drift.percent:.3g} %): cosine below "
        f"{DRIFTED_COSINE:g} {how}"
    )
    if drift.median_cosine is not None:
        words += f"; median cosine {drift.median_cosine:.3f}"
        if drift.is_aligned and drift.median_unaligned_cosine is not None:
            words += f", before alignment {drift.median_unaligned_cosine:.3f}"
    return words


def _norm_words(drift: Drift) -> str:
    """Returns one sentence on how the norms and the spread of a table's rows changed.

    >>> from service.comparison.document import Histogram
    >>> empty = Histogram((), ())
    >>> _norm_words(Drift(200, True, empty, empty, 0.98, 0.1, 1.25, 3, (8.0, 7.5), 0, 2, 1.0, ()))
    'norms x1.25 (median), 3 rows by more than x32; the rows spread over 8.0 dimensions, now 7.5'
    """
    ratio = "none" if drift.median_norm_ratio is None else f"x{drift.median_norm_ratio:.3g} (median)"
    words = f"norms {ratio}, {drift.outlying:,} rows by more than x{MAX_ROW_FACTOR:g}"
    if drift.is_aligned:
        words += f"; the rows spread over {drift.directions[0]:.1f} dimensions, now {drift.directions[1]:.1f}"
    return words


def _neighbour_words(found: Neighbours) -> str:
    which = "hottest" if found.is_hottest else "sampled"
    return (
        f"{found.overlap:.1%} of the {found.k} nearest neighbours of {found.queries:,} {which} rows stayed "
        f"(among {found.pool:,} rows; unrelated tables: {found.chance:.2%})"
    )


def _rows_words(table: TableDiff) -> str:
    parts = [
        f"{rows.count:,} {what}{_first(rows)}"
        for what, rows in (("added", table.added), ("removed", table.removed), ("moved", table.moved))
    ]
    return f"{table.common:,} rows in both by {table.matched_by}; " + ", ".join(parts)


def _output_words(found: OutputDiff) -> str:
    likeness = "" if found.correlation is None else f", correlation {found.correlation:.4f}"
    return (
        f"{found.changed:,} of {found.values:,} numbers of {found.requests} requests differ, by "
        f"{found.mean_absolute:.3g} on average and {found.max_absolute:.3g} at most{likeness}"
    )


def _shape_words(table: TableDiff) -> str:
    """Returns rows, columns and dtype of a table as "old -> new", or only once if both versions have the same."""
    old = f"{table.old_rows:,} x {table.old_dim} {table.old_dtype}"
    new = f"{table.new_rows:,} x {table.new_dim} {table.new_dtype}"
    return old if old == new else f"{old} -> {new}"


def _first(rows: Rows) -> str:
    if not rows.count:
        return ""
    more = ", ..." if rows.count > len(rows.first) else ""
    return f" ({', '.join(rows.first)}{more})"
