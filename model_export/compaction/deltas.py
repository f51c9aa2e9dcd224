"""Writes delta files, which change rows of a version while it is served."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np

from model_export.errors import ExportError
from model_export.folder_checks import check_described
from service.artifact.delta_checks import check_delta
from service.artifact.delta_file import (
    DELTAS_FOLDER,
    Delta,
    DeltaFault,
    encode,
    file_name,
    fingerprint_of,
    sequence_of,
    write_file,
)
from service.artifact.manifest import Manifest
from service.types import Array, TableInfo


def write_delta(
    artifact: str | os.PathLike[str],
    table: str,
    ids: Array,
    rows: Array,
    *,
    sequence: int | None = None,
    force: bool = False,
) -> Path:
    """Writes new values for rows of a table as a delta file into the version's folder; returns the file.

    Args:
      artifact: the version folder.
      ids: [N] int64, without duplicates; rows: [N, D] float32, which the server rounds if the table has fewer bits.
      sequence: number of the delta; of two deltas for a row the higher one counts. None: one above the highest present.
      force: write the delta even if a signature answers from TensorFlow's own copy of the table.

    Raises:
      ExportError: the delta does not fit the version, or the version has a delta of that number.
    """
    folder = Path(artifact)
    tables, fingerprint = read_tables(folder), fingerprint_of(folder)
    own = np.ascontiguousarray(ids, np.int64), np.ascontiguousarray(rows, np.float32)
    if own[0].ndim != 1 or own[1].ndim != 2 or not 0 < len(own[0]) == len(own[1]):
        raise ExportError(f"ids {list(own[0].shape)} and rows {list(own[1].shape)}: expected [N] and [N, D]")
    target = folder / DELTAS_FOLDER
    target.mkdir(exist_ok=True)
    while True:
        number = sequence or 1 + max((sequence_of(name) or 0 for name in os.listdir(target)), default=0)
        delta = Delta(number, table, *own, fingerprint, time.time_ns() // 1000, force)
        try:
            check_delta(delta, tables, fingerprint)
            return write_file(target, encode(delta), file_name(number))
        except DeltaFault as fault:
            raise ExportError(str(fault)) from fault
        except FileExistsError as error:
            # Another writer was the first to use this number for a delta. If the caller gave no number, try the next
            # number.
            if sequence is not None:
                raise ExportError(f"{target} has a delta of number {number} already") from error


def read_tables(artifact: Path) -> dict[str, TableInfo]:
    check_described(artifact)
    manifest = Manifest.read(artifact)
    # check_described() raises ExportError for an artifact without a manifest, so the manifest is not None here.
    assert manifest is not None
    return {
        name: TableInfo(name, entry.vocabulary_size, entry.embedding_dim, entry.dtype, entry.nbytes, ())
        for name, entry in manifest.tables.items()
    }
