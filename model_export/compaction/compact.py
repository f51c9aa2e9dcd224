"""Makes the next version of an artifact: folds deltas into its tables, stores tables in fewer bits, or does both.

The new version has the files of the old one, with other rows, their checksums in index and manifest, and without the
recorded answers of the old rows. A server loads it without deltas. Folding alone needs no TensorFlow.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from model_export.compaction.deltas import read_deltas, write_deltas
from model_export.compaction.reduction import REDUCED_FROM_KEY, Reduction, plan_reduction, reduce_tables
from model_export.errors import ExportError
from model_export.exporter.versions import finish, new_version_folder, temporary_folder
from model_export.folder_checks import check_described
from model_export.graphs.source import RECORDED_PATH
from model_export.parity.integrity import file_sizes
from model_export.statistics.table_health import Progress
from service.artifact.delta_file import DELTAS_FOLDER, Delta, fingerprint_of
from service.artifact.delta_journal import journal_path
from service.artifact.manifest import Manifest

# Key in the manifest's provenance. Its value names the version that was compacted, and the last delta that was folded
# in.
COMPACTED_KEY = "compacted"
# TensorFlow's fingerprint of the SavedModel; the new version leaves it out, because it does not fit the new checkpoint.
_FINGERPRINT = "fingerprint.pb"
_UNAFFECTED = "not affected: they read the trained tables"


def compact(
    artifact: str | os.PathLike[str],
    out: str | os.PathLike[str] | None = None,
    *,
    version: int | None = None,
    journal: str | os.PathLike[str] | None = None,
    without_journal: bool = False,
    skip_refused: bool = False,
    table_dtype: str | Mapping[str, str] | None = None,
    progress: Callable[[str], Progress] = lambda what: lambda done, rows: None,
) -> Path:
    """Writes a new version of an artifact, with deltas folded in or tables in fewer bits; returns the version's folder.

    Args:
      artifact: the version folder; it is not changed.
      out: folder of the new version's model; None: the parent of `artifact`.
      version: number of the new version; None: the next.
      journal: file of the upserts that the server made to this version; None: there is none.
      without_journal: leave upserts out, even if their journal is found beside the model.
      skip_refused: leave out the deltas that a server refuses, instead of raising.
      table_dtype: dtype of the tables that lookups of the new version read, one for all or by table, as in export().
          Deltas are folded into the trained tables first, so predictions have them, too.
      progress: called with the name of the table that is read next; returns a function that is called with
        (rows done, rows).

    Raises:
      ExportError: there is nothing to fold or to reduce; a server refuses a delta; the new version would lack upserts;
        or a lookup can not read another table.
    """
    folder = Path(artifact).absolute()
    manifest = check_described(folder)
    _check_journal(folder, journal, without_journal=without_journal)
    deltas, faults = read_deltas(folder, None if journal is None else Path(journal))
    if not deltas and table_dtype is None:
        raise ExportError(f"{folder} has no deltas to fold")
    if faults and not skip_refused:
        raise ExportError(f"{'; '.join(faults)} (--skip_refused leaves them out, as servers do)")
    reduction = None if table_dtype is None else plan_reduction(folder, manifest, table_dtype)
    base = folder.parent if out is None else Path(out)
    target = new_version_folder(base, version)
    with temporary_folder(base) as temporary:
        copy = temporary / target.name
        # If there are deltas, the answers that the export recorded are not copied: they are wrong for changed rows.
        recorded = [Path(RECORDED_PATH).name] if deltas else []
        shutil.copytree(folder, copy, ignore=shutil.ignore_patterns(DELTAS_FOLDER, _FINGERPRINT, *recorded))
        tables = write_deltas(copy, manifest, deltas)
        provenance = {
            **manifest.provenance,
            "version": int(target.name),
            **_provenance(folder, deltas, reduction),
        }
        folded = dataclasses.replace(manifest, tables=tables, provenance=provenance, parity={})
        if reduction is not None:
            folded = _reduced(copy, folded, reduction, progress)
        finish(copy, dataclasses.replace(folded, files=file_sizes(copy)), target)
    return target


def _check_journal(folder: Path, journal: str | os.PathLike[str] | None, *, without_journal: bool) -> None:
    if journal is not None and without_journal:
        raise ExportError("give either journal or without_journal, not both")
    if journal is None and not without_journal and (found := find_journal(folder)) is not None:
        raise ExportError(
            f"{found} holds upserts of this version, which the new one would lack: fold them with --journal {found}, "
            "or leave them out with --without_journal"
        )


def _provenance(folder: Path, deltas: list[Delta], reduction: Reduction | None) -> dict[str, Any]:
    record: dict[str, Any] = {}
    if deltas:
        record[COMPACTED_KEY] = {"of": folder.name, "deltas": len(deltas), "last_sequence": deltas[-1].sequence}
    if reduction is not None:
        predictions = "none: the version holds lookups only" if reduction.is_alone else _UNAFFECTED
        record[REDUCED_FROM_KEY] = {"of": folder.name, "predictions": predictions}
    return record


def _reduced(copy: Path, manifest: Manifest, reduction: Reduction, progress: Callable[[str], Progress]) -> Manifest:
    made = reduce_tables(copy, manifest, reduction, progress=progress)
    # The module model_export.parity.verify is imported late, because its import starts TensorFlow.
    from model_export.parity.verify import check_parity

    made = dataclasses.replace(made, files=file_sizes(copy))
    return dataclasses.replace(made, parity=check_parity(copy, made).manifest_json())


# Glob prefixes: a journal is searched in a root folder, in the root's subfolders, and in their subfolders.
_DEPTHS = ("", "*/", "*/*/")


def find_journal(folder: Path) -> Path | None:
    """Returns the path of a journal with upserts of a version; None if none is found.

    Only the server's settings name the journal's folder (--delta_journal_dir). It is often beside the model's folder or
    the repository; the search looks there only. The file's name holds the version's fingerprint, so it is a journal of
    exactly this version.

    Args:
      folder: the version folder, below the model's folder.
    """
    if not folder.name.isdecimal():
        return None
    name = journal_path(Path(), "", int(folder.name), fingerprint_of(folder)).name
    for root in dict.fromkeys([*folder.parents[:3], Path.cwd()]):
        for path in _found(root, name):
            # Skip an empty journal, which has no upserts: a server opened the file and never wrote to it.
            if path.stat().st_size:
                return path
    return None


def _found(root: Path, name: str) -> Iterator[Path]:
    for depth in _DEPTHS:
        try:
            yield from sorted(path for path in root.glob(depth + name) if path.is_file())
        except OSError:
            # Go on with the next depth. glob() itself skips folders that this user may not list; it raises OSError if
            # this user can not reach `root`, or if the disk fails or a folder vanishes during the search.
            continue
