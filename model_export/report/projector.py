"""Writes tables as files of TensorBoard's projector: vectors.tsv and metadata.tsv of each table, one configuration.

Source of the formats: tensorboard/plugins/projector (projector_config.proto, projector_plugin.py) of TensorBoard 2.21.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from google.protobuf.text_encoding import CEscape

from model_export.errors import ExportError
from model_export.report.build import read_table_labels, row_names
from model_export.report.document import TableReport
from model_export.report.projection import sample_ids
from model_export.report.table_files import declared_tables, map_table, matrix_variables
from model_export.row_names import LabelFile, Labels
from model_export.statistics.table_health import TableRows
from service.artifact.manifest import Manifest

CONFIG = "projector_config.pbtxt"
# Maximal number of points that TensorBoard reads for a table.
MAX_ROWS = 100_000
_BLOCK_ROWS = 1024
# Fixed seed: each report on a table draws the same sample of rows.
_SEED = 0


@dataclass(frozen=True, slots=True)
class ProjectedTable:
    """Counts of one table written for TensorBoard's projector. rows: written rows. left_out: sampled rows with NaN or
    infinity.
    """

    name: str
    rows: int
    left_out: int


def write_projector(
    artifact: Path, folder: Path, max_rows: int, labels: tuple[LabelFile, ...] = ()
) -> list[ProjectedTable]:
    """Writes at most max_rows rows of each table of an artifact into a folder, as files of TensorBoard's projector.

    The folder may exist. The configuration is written last: without it TensorBoard shows nothing of the folder.

    Raises:
      ExportError: a file can not be written, or a label file can not be read.
      ArtifactError: a table or its vocabulary can not be read.
    """
    manifest = Manifest.read(artifact)
    tables = matrix_variables(artifact) if manifest is None else declared_tables(manifest)
    found = read_table_labels(artifact, manifest, tables, labels)
    written, entries = [], []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / CONFIG).unlink(missing_ok=True)
        for number, table in enumerate(tables):
            # A table's name may hold characters that a file's name can not hold, so the files are numbered.
            paths = [folder / f"{kind}-{number}.tsv" for kind in ("vectors", "metadata")]
            rows = map_table(artifact, table)
            ids = sample_ids(rows.shape[0], seed=_SEED, limit=max_rows)
            names = row_names(artifact, manifest, table.name, ids.tolist())
            kept = _write_table(rows, ids, names, found.get(table.name), *paths)
            written.append(ProjectedTable(table.name, kept, len(ids) - kept))
            if kept:
                entries.append(_entry(table, kept, *(path.name for path in paths)))
        (folder / CONFIG).write_text("".join(entries), encoding="utf-8")
    except OSError as error:
        raise ExportError(f"cannot write {error.filename or folder}: {error.strerror or error}") from error
    return written


def _write_table(
    rows: TableRows, ids: np.ndarray, names: Mapping[int, str], labels: Labels | None, vectors: Path, metadata: Path
) -> int:
    kept = 0
    with vectors.open("w", encoding="utf-8") as numbers, metadata.open("w", encoding="utf-8") as lines:
        lines.write(_line(("name", "row", *(() if labels is None else (labels.title,)))))
        for block in _blocks(ids):
            # TensorBoard's projector computes in float32; nine digits are enough for each float32 number.
            values = np.asarray(rows[block], np.float32)
            is_finite = np.isfinite(values).all(axis=1)
            np.savetxt(numbers, values[is_finite], fmt="%.9g", delimiter="\t")
            for row in block[is_finite].tolist():
                name = names.get(row) if labels is None else labels.names.get(row) or names.get(row)
                shown = (name or f"row {row}", str(row))
                lines.write(_line(shown if labels is None else (*shown, labels.labels.get(row, ""))))
            kept += int(is_finite.sum())
    return kept


def _line(cells: Sequence[str]) -> str:
    # A tab or line break inside a cell would begin another cell or another point of the TSV file.
    return "\t".join(" ".join(cell.splitlines()).replace("\t", " ") for cell in cells) + "\n"


def _blocks(ids: np.ndarray) -> Iterator[np.ndarray]:
    for start in range(0, len(ids), _BLOCK_ROWS):
        yield ids[start : start + _BLOCK_ROWS]


def _entry(table: TableReport, rows: int, vectors: str, metadata: str) -> str:
    return (
        f'embeddings {{\n  tensor_name: "{CEscape(table.name.encode(), as_utf8=False)}"\n'
        f"  tensor_shape: {rows}\n  tensor_shape: {table.embedding_dim}\n"
        f'  tensor_path: "{vectors}"\n  metadata_path: "{metadata}"\n}}\n'
    )
