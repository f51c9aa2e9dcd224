"""Folds the deltas of a version into a new one, so that its variables have them; no TensorFlow here.

The new version is the old one's files but for the rows, their checksums in the index and in the manifest, and what was
recorded of the old rows' answers. Servers start it without deltas.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import tempfile
from pathlib import Path

from model_export.errors import ExportError
from model_export.exporter.extra_assets import RECORDED_PATH
from model_export.exporter.finishing import finish
from model_export.exporter.folder_checks import check_described
from model_export.exporter.folding import read_deltas, write_deltas
from model_export.exporter.integrity import file_sizes
from model_export.exporter.journal_search import find_journal
from model_export.exporter.versions import new_version_folder
from service.core.manifest import Manifest
from service.deltas.delta_file import DELTAS_FOLDER

# In provenance: which version the rows were folded into, and how far.
COMPACTED_KEY = "compacted"
# TensorFlow's note on a SavedModel's checkpoint; it would be one on another's.
_FINGERPRINT = "fingerprint.pb"


def compact(
    artifact: str | os.PathLike[str],
    out: str | os.PathLike[str] | None = None,
    *,
    version: int | None = None,
    journal: str | os.PathLike[str] | None = None,
    without_journal: bool = False,
    skip_refused: bool = False,
) -> Path:
    """Writes a new version whose tables have a version's deltas; returns its folder.

    Args:
      artifact: the version folder; it is not changed.
      out: folder of the versions; None: the one that artifact is in.
      version: its number; None: the next.
      journal: of the version's upserts.
      without_journal: leave a journal's upserts out, also where one is found beside the model.
      skip_refused: leave out what a server refuses, too.

    Raises:
      ExportError: there is nothing to fold, a delta that a server refuses, or upserts that would be dropped.
    """
    folder = Path(artifact).absolute()
    check_described(folder)
    manifest = Manifest.read(folder)
    if manifest is None:
        raise ExportError(f"{folder} has no lookup manifest, so it has no tables to fold deltas into")
    _check_journal(folder, journal, without_journal=without_journal)
    deltas, faults = read_deltas(folder, None if journal is None else Path(journal))
    if not deltas:
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
        tables = write_deltas(copy, manifest, deltas)
        told = {"of": folder.name, "deltas": len(deltas), "last_sequence": deltas[-1].sequence}
        provenance = {**manifest.provenance, "version": int(target.name), COMPACTED_KEY: told}
        folded = dataclasses.replace(manifest, tables=tables, provenance=provenance, parity={})
        finish(copy, dataclasses.replace(folded, files=file_sizes(copy)), target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return target


def _check_journal(folder: Path, journal: str | os.PathLike[str] | None, *, without_journal: bool) -> None:
    if journal is not None and without_journal:
        raise ExportError("give either journal or without_journal, not both")
    if journal is None and not without_journal and (found := find_journal(folder)) is not None:
        raise ExportError(
            f"{found} holds upserts of this version, which the new one would lack: fold them with --journal {found}, "
            "or leave them out with --without_journal"
        )
