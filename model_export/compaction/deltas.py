"""Writes delta files: rows of a version that change while it is served."""

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
    """Writes new values for rows of a table into a version's folder, where servers find them; returns the file.

    Args:
      artifact: the version folder.
      ids: [N] int64, none twice; rows: [N, D] float32, rounded by the server where the table has fewer bits.
      sequence: of two deltas for a row the higher one counts; None: the one after the highest that is there.
      force: apply it also where a signature answers from TensorFlow's own copy of the table.

    Raises:
      ExportError: it does not fit the version, or there is another one of that number.
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
            # Without a number of its own it takes the next one: another writer was faster.
            if sequence is not None:
                raise ExportError(f"{target} has a delta of number {number} already") from error


def read_tables(artifact: Path) -> dict[str, TableInfo]:
    """Returns what deltas are held against; raises ExportError where there is no manifest."""
    check_described(artifact)
    manifest = Manifest.read(artifact)
    assert manifest is not None  # check_described has looked
    return {
        name: TableInfo(name, entry.vocabulary_size, entry.embedding_dim, entry.dtype, entry.nbytes, ())
        for name, entry in manifest.tables.items()
    }
