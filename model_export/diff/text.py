"""Renders a comparison of two versions as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

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


def to_text(diff: VersionDiff) -> str:
    return "\n".join(_lines(diff)) + "\n"


def drift_words(drift: Drift) -> str:
    """Returns one sentence on how far a table's rows drifted from the old version to the new one.

    >>> from service.comparison.document import Histogram
    >>> empty = Histogram((), ())
    >>> drift_words(Drift(200, True, empty, empty, 0.98, 0.1, 1.0, 0, (8.0, 8.0), 0, 2, 1.0, ()))
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


def norm_words(drift: Drift) -> str:
    """Returns one sentence on how the norms and the spread of a table's rows changed.

    >>> from service.comparison.document import Histogram
    >>> empty = Histogram((), ())
    >>> norm_words(Drift(200, True, empty, empty, 0.98, 0.1, 1.25, 3, (8.0, 7.5), 0, 2, 1.0, ()))
    'norms x1.25 (median), 3 rows by more than x32; the rows spread over 8.0 dimensions, now 7.5'
    """
    ratio = "none" if drift.median_norm_ratio is None else f"x{drift.median_norm_ratio:.3g} (median)"
    words = f"norms {ratio}, {drift.outlying:,} rows by more than x{MAX_ROW_FACTOR:g}"
    if drift.is_aligned:
        words += f"; the rows spread over {drift.directions[0]:.1f} dimensions, now {drift.directions[1]:.1f}"
    return words


def neighbour_words(found: Neighbours) -> str:
    which = "hottest" if found.is_hottest else "sampled"
    return (
        f"{found.overlap:.1%} of the {found.k} nearest neighbours of {found.queries:,} {which} rows stayed "
        f"(among {found.pool:,} rows; unrelated tables: {found.chance:.2%})"
    )


def rows_words(table: TableDiff) -> str:
    parts = [
        f"{rows.count:,} {what}{_first(rows)}"
        for what, rows in (("added", table.added), ("removed", table.removed), ("moved", table.moved))
    ]
    return f"{table.common:,} rows in both by {table.matched_by}; " + ", ".join(parts)


def output_words(found: OutputDiff) -> str:
    likeness = "" if found.correlation is None else f", correlation {found.correlation:.4f}"
    return (
        f"{found.changed:,} of {found.values:,} numbers of {found.requests} requests differ, by "
        f"{found.mean_absolute:.3g} on average and {found.max_absolute:.3g} at most{likeness}"
    )


def shape_words(table: TableDiff) -> str:
    """Returns rows, columns and dtype of a table as "old -> new", or only once if both versions have the same."""
    old = f"{table.old_rows:,} x {table.old_dim} {table.old_dtype}"
    new = f"{table.new_rows:,} x {table.new_dim} {table.new_dtype}"
    return old if old == new else f"{old} -> {new}"


def _lines(diff: VersionDiff) -> Iterator[str]:
    yield f"{diff.old} -> {diff.new}"
    for what, names in (("added", diff.added_tables), ("removed", diff.removed_tables)):
        if names:
            yield f"tables {what}: {', '.join(names)}"
    for table in diff.tables:
        yield ""
        yield f"table {table.table}  {shape_words(table)}"
        yield f"  {rows_words(table)}"
        if table.drift is not None:
            yield f"  {drift_words(table.drift)}"
            yield f"  {norm_words(table.drift)}"
            for row in table.drift.worst:
                cosine = "a number that is not finite" if row.cosine is None else f"cosine {row.cosine:.3f}"
                yield f"    row {row.name}: {cosine}"
        if table.neighbours is not None:
            yield f"  {neighbour_words(table.neighbours)}"
        yield from (f"  {note}" for note in table.notes)
    if diff.predictions:
        yield ""
        yield "answers to recorded requests"
        yield from (f"  {found.signature}/{found.output}: {output_words(found)}" for found in diff.predictions)
    yield from (("", *diff.notes) if diff.notes else ())


def _first(rows: Rows) -> str:
    if not rows.count:
        return ""
    more = ", ..." if rows.count > len(rows.first) else ""
    return f" ({', '.join(rows.first)}{more})"
