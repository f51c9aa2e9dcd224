"""Writes delta files for a version that is served, and folds deltas and journals into the tables of the next one."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from model_export.errors import ExportError
from model_export.exporter.bundle_writer import replace_checksums
from model_export.folder_checks import check_described
from service.artifact.bundle import prefix_of
from service.artifact.delta_file import (
    DELTAS_FOLDER,
    Delta,
    DeltaFault,
    Inbox,
    check_delta,
    encode,
    file_name,
    fingerprint_of,
    sequence_of,
)
from service.artifact.delta_journal import Journal
from service.artifact.files import write_whole
from service.artifact.hashes import crc32c_in, masked
from service.artifact.manifest import Manifest, TableEntry, TableScale
from service.artifact.stored_tables import rounded
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
    while True:
        number = sequence or 1 + max((sequence_of(path.name) or 0 for path in target.glob("*")), default=0)
        delta = Delta(number, table, *own, fingerprint, time.time_ns() // 1000, force)
        try:
            check_delta(delta, tables, fingerprint)
            file = target / file_name(number)
            write_whole(file, encode(delta), is_new=True)
            return file
        except DeltaFault as fault:
            raise ExportError(str(fault)) from fault
        except FileExistsError as error:
            # Another writer was the first to use this number for a delta. If the caller gave no number, try the next
            # number.
            if sequence is not None:
                raise ExportError(f"{target} has a delta of number {number} already") from error


def read_tables(artifact: Path) -> dict[str, TableInfo]:
    return {
        name: TableInfo(name, entry.vocabulary_size, entry.embedding_dim, entry.dtype, entry.nbytes, ())
        for name, entry in check_described(artifact).tables.items()
    }


_UNLIMITED = 1 << 60


def read_deltas(folder: Path, journal: Path | None) -> tuple[list[Delta], list[str]]:
    """Reads a version's deltas; returns those that a server would apply, in order, and a fault for each other delta."""
    faults: list[str] = []
    tables, fingerprint = read_tables(folder), fingerprint_of(folder)

    def refused(fault: DeltaFault, where: str) -> None:
        faults.append(f"{where}: {fault}")

    found: list[tuple[int, Delta]] = []

    def collect(deltas: Iterable[Delta], *, is_journaled: bool) -> None:
        for delta in deltas:
            try:
                check_delta(delta, tables, fingerprint)
                # Deltas and upserts come in the same order as in service.deltas.version_deltas: with equal numbers, an
                # acknowledged upsert wins over a delta file.
                found.append((2 * delta.sequence + is_journaled, delta))
            except DeltaFault as fault:
                refused(fault, f"delta {delta.sequence} of table {delta.table!r}")

    if journal is not None:
        if not journal.is_file():
            raise ExportError(f"{journal} is no journal" if journal.exists() else f"{journal} does not exist")
        upserts = Journal(journal, max_bytes=_UNLIMITED, max_record_bytes=_UNLIMITED, refused=refused)
        try:
            collect(upserts.read(_UNLIMITED), is_journaled=True)
        finally:
            upserts.close()
    collect(Inbox(folder, max_bytes=_UNLIMITED, refused=refused).read(_UNLIMITED), is_journaled=False)
    return [delta for _, delta in sorted(found, key=lambda item: item[0])], faults


def write_deltas(artifact: Path, manifest: Manifest, deltas: Sequence[Delta]) -> dict[str, TableEntry]:
    for delta in deltas:
        _write(artifact, manifest.tables[delta.table], delta)
    return _with_checksums(artifact, manifest, {delta.table for delta in deltas})


def _write(artifact: Path, table: TableEntry, delta: Delta) -> None:
    numbers, scales = rounded(delta.rows, table.dtype)
    _patch(artifact, table, table.vocabulary_size, delta.ids, numbers)
    if table.scale is not None and scales is not None:
        _patch(artifact, table.scale, table.vocabulary_size, delta.ids, scales)


def _patch(artifact: Path, part: TableEntry | TableScale, rows: int, ids: Array, numbers: Array) -> None:
    shape = (rows, part.nbytes // rows)
    octets = np.memmap(artifact / part.file, np.uint8, "r+", part.offset, shape)
    octets[ids] = np.ascontiguousarray(numbers).view(np.uint8).reshape(len(ids), -1)
    octets.flush()


def _with_checksums(artifact: Path, manifest: Manifest, changed: Iterable[str]) -> dict[str, TableEntry]:
    tables: dict[str, TableEntry] = dict(manifest.tables)
    by_index: dict[Path, dict[str, int]] = {}

    def note(part: TableEntry | TableScale) -> int:
        with (artifact / part.file).open("rb") as file:
            checksum = masked(crc32c_in(file, part.offset, part.nbytes) or 0)
        by_index.setdefault(prefix_of(artifact / part.file), {})[part.variable] = checksum
        return checksum

    for name in changed:
        table = tables[name]
        scale = table.scale
        if scale is not None:
            scale = dataclasses.replace(scale, crc32c=note(scale))
        tables[name] = dataclasses.replace(table, crc32c=note(table), scale=scale)
    for prefix, checksums in by_index.items():
        index = prefix.with_name(prefix.name + ".index")
        index.write_bytes(replace_checksums(index.read_bytes(), checksums))
    return tables
