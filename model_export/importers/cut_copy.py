"""Makes a small copy of an imported model: the first rows of each table, and the same graph.

TensorFlow holds whole tables in memory, so the import compares the graph of this small copy with the numpy oracle. The
two models differ only in their numbers of rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from model_export.exporter.bundle_writer import BundleWriter
from model_export.importers.table_copy import CopiedTable
from service.artifact.manifest import Manifest, TableEntry, TableScale
from service.types import TABLE_DTYPES, Array, saved_dtype


def cut_tables(tables: Sequence[CopiedTable], rows: int) -> list[CopiedTable]:
    """Returns copies of the descriptions of imported tables, each cut to at most `rows` rows."""
    return [replace(t, read=replace(t.read, vocabulary_size=min(rows, t.read.vocabulary_size))) for t in tables]


def copy_first_rows(artifact: Path, manifest: Manifest, tables: Sequence[CopiedTable], prefix: Path) -> None:
    """Writes a checkpoint with the first rows of an artifact's tables; `tables` gives each table's number of rows."""
    with BundleWriter(prefix) as writer:
        for table in tables:
            entry, rows = manifest.tables[table.read.name], table.read.vocabulary_size
            part = entry.nbytes // entry.vocabulary_size * rows
            writer.add(table.key, saved_dtype(table.dtype), [_rows(artifact, entry, table.dtype, part, rows)])
            if entry.scale is not None and table.scale_key is not None:
                writer.add(table.scale_key, "float32", [_rows(artifact, entry.scale, "float32", 4 * rows, rows)])


def _rows(artifact: Path, part: TableEntry | TableScale, dtype: str, nbytes: int, rows: int) -> Array:
    with (artifact / part.file).open("rb") as file:
        file.seek(part.offset)
        return np.frombuffer(file.read(nbytes), TABLE_DTYPES[dtype]).reshape(rows, -1)
