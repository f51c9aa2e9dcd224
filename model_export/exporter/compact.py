"""Folds the deltas of a version into a new one, so that its variables have them; no TensorFlow here.

The new version is the old one's files but for the rows, their checksums in the index and in the manifest, and what was
recorded of the old rows' answers. Servers start it without deltas.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from model_export.errors import ExportError
from model_export.exporter.bundle_index import replace_checksums
from model_export.exporter.deltas import read_tables
from model_export.exporter.extra_assets import RECORDED_PATH
from model_export.exporter.finishing import finish
from model_export.exporter.folder_checks import check_described
from model_export.exporter.integrity import file_sizes
from model_export.exporter.versions import new_version_folder
from service.core.manifest import Manifest, TableEntry, TableScale
from service.core.types import Array
from service.deltas.checks import check_delta
from service.deltas.delta_file import DELTAS_FOLDER, Delta, DeltaFault, fingerprint_of
from service.deltas.inbox import Inbox
from service.deltas.journal import Journal
from service.deltas.rounding import rounded
from service.files.crc32c import crc32c_of
from service.lookup.bundle import prefix_of

# In provenance: which version the rows were folded into, and how far.
COMPACTED_KEY = "compacted"
# TensorFlow's note on a SavedModel's checkpoint; it would be one on another's.
_FINGERPRINT = "fingerprint.pb"
_UNLIMITED = 1 << 60
_CHUNK_BYTES = 16 << 20


def compact(
    artifact: str | os.PathLike[str],
    out: str | os.PathLike[str] | None = None,
    *,
    version: int | None = None,
    journal: str | os.PathLike[str] | None = None,
    skip_refused: bool = False,
) -> Path:
    """Writes a new version whose tables have a version's deltas; returns its folder.

    Args:
      artifact: the version folder; it is not changed.
      out: folder of the versions; None: the one that artifact is in.
      version: its number; None: the next.
      journal: of the version's upserts.
      skip_refused: leave out what a server refuses, too.

    Raises:
      ExportError: there is nothing to fold, or a delta that a server refuses.
    """
    folder = Path(artifact).absolute()
    check_described(folder)
    manifest = Manifest.read(folder)
    deltas, faults = _deltas(folder, None if journal is None else Path(journal))
    if manifest is None or not deltas:
        raise ExportError(f"{folder} has no deltas to fold")
    if faults and not skip_refused:
        raise ExportError(f"{'; '.join(faults)} (--skip_refused leaves them out, as servers do)")
    base = folder.parent if out is None else Path(out)
    target = new_version_folder(base, version)
    base.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=".tmp-", dir=base))
    try:
        copy = temporary / target.name
        left_out = shutil.ignore_patterns(DELTAS_FOLDER, _FINGERPRINT, Path(RECORDED_PATH).name)
        shutil.copytree(folder, copy, ignore=left_out)
        for delta in deltas:
            _write(copy, manifest.tables[delta.table], delta)
        tables = _with_checksums(copy, manifest, {delta.table for delta in deltas})
        told = {"of": folder.name, "deltas": len(deltas), "last_sequence": deltas[-1].sequence}
        folded = dataclasses.replace(
            manifest,
            tables=tables,
            provenance={**manifest.provenance, "version": int(target.name), COMPACTED_KEY: told},
            parity={},
        )
        finish(copy, dataclasses.replace(folded, files=file_sizes(copy)), target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return target


def _deltas(folder: Path, journal: Path | None) -> tuple[list[Delta], list[str]]:
    """Returns the deltas that a server would apply, in their order, and what it would refuse."""
    faults: list[str] = []
    tables, fingerprint = read_tables(folder), fingerprint_of(folder)

    def refused(fault: DeltaFault, where: str) -> None:
        faults.append(f"{where}: {fault}")

    found: list[tuple[int, Delta]] = []

    def take(deltas: Iterable[Delta], *, is_journaled: bool) -> None:
        for delta in deltas:
            try:
                check_delta(delta, tables, fingerprint)
                # As in service.deltas.version_deltas: what was acknowledged counts more.
                found.append((2 * delta.sequence + is_journaled, delta))
            except DeltaFault as fault:
                refused(fault, f"delta {delta.sequence} of table {delta.table!r}")

    if journal is not None:
        if not journal.is_file():
            raise ExportError(f"{journal} is no journal")
        upserts = Journal(journal, max_bytes=_UNLIMITED, max_record_bytes=_UNLIMITED, refused=refused)
        try:
            take(upserts.read(_UNLIMITED), is_journaled=True)
        finally:
            upserts.close()
    take(Inbox(folder, max_bytes=_UNLIMITED, refused=refused).read(_UNLIMITED), is_journaled=False)
    return [delta for _, delta in sorted(found, key=lambda item: item[0])], faults


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
        masked = _masked(_checksum(artifact, part))
        by_index.setdefault(prefix_of(artifact / part.file), {})[part.variable] = masked
        return masked

    for name in changed:
        table = tables[name]
        scale = table.scale
        if scale is not None:
            scale = dataclasses.replace(scale, crc32c=note(scale))
        tables[name] = dataclasses.replace(table, crc32c=note(table), scale=scale)
    for prefix, checksums in by_index.items():
        _rewrite(prefix.with_name(prefix.name + ".index"), checksums)
    return tables


def _rewrite(index: Path, checksums: Mapping[str, int]) -> None:
    index.write_bytes(replace_checksums(index.read_bytes(), checksums))


def _checksum(artifact: Path, part: TableEntry | TableScale) -> int:
    crc = 0
    with (artifact / part.file).open("rb") as file:
        file.seek(part.offset)
        for begin in range(0, part.nbytes, _CHUNK_BYTES):
            crc = crc32c_of(file.read(min(_CHUNK_BYTES, part.nbytes - begin)), crc)
    return crc


def _masked(crc: int) -> int:
    # As TensorFlow keeps checksums: tensorflow/core/lib/hash/crc32c.h (2.21).
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
