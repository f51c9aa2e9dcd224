"""The version folders of a model: their numbers, and a new version that appears complete or not at all."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from model_export.errors import ExportError
from model_export.folder_checks import check_writable
from model_export.parity.integrity import check_integrity, file_sizes
from model_export.row_names import LabelFile, row_labels, table_vocabularies
from service.artifact.files import publish_folder
from service.artifact.manifest import MANIFEST_PATH, Manifest
from service.artifact.row_labels import write_labels

# First part of the path that Path() makes of an object store's URI: Path turns s3://bucket into s3:/bucket.
_SCHEMES = ("s3:", "gs:", "az:")


def existing_versions(base: Path) -> list[int]:
    names = [path.name for path in base.iterdir()] if base.is_dir() else []
    return sorted(int(name) for name in names if name.isdecimal())


def new_version_folder(base: Path, version: int | None) -> Path:
    """Returns the path of a new version's folder; version None means the highest number plus 1, or 1.

    Raises:
      ExportError: the version is not positive or exists, or `base` can not be written to.
    """
    if base.parts and base.parts[0] in _SCHEMES:
        raise ExportError(f"{base} is in an object store: write a folder, then send it with `model-export upload`")
    if version is None:
        version = 1 + max(existing_versions(base), default=0)
    if version < 1:
        raise ExportError(f"version is {version}; versions are positive integers")
    target = base / str(version)
    check_writable(base)
    if target.exists():
        raise ExportError(f"{target} exists; a version is never overwritten: leave --version out for the next")
    return target


@contextmanager
def temporary_folder(base: Path) -> Iterator[Path]:
    """Yields a temporary folder for the files of a new version; removes it at the end, and a new base that is empty."""
    is_new = not base.exists()
    base.mkdir(parents=True, exist_ok=True)
    # The temporary folder is on the target's file system, so that renaming it is atomic. The folder's name is no
    # number, so no server loads it as a version.
    temporary = Path(tempfile.mkdtemp(prefix=".tmp-", dir=base))
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        if is_new and not any(base.iterdir()):
            base.rmdir()


# If the tables have more bytes than this, the export checks only the graph of a small copy, which has the first rows of
# each table.
WHOLE_CHECK_BYTES = 64 << 20
COMPARED_ROWS = 1000
# Key in the manifest's provenance. If the export compared only the first rows of each table, the value is the number of
# rows compared in a table.
COMPARED_ROWS_KEY = "compared_rows"


# Labels of a table's rows: one for each row, or a file of them, as model_export.row_names reads it.
LabelSource = str | Path | LabelFile | Sequence[str]


def finish(
    artifact: Path, manifest: Manifest, target: Path, labels: Mapping[str, LabelSource] = MappingProxyType({})
) -> None:
    if labels:
        manifest = _with_labels(artifact, manifest, labels)
    path = artifact / MANIFEST_PATH
    path.parent.mkdir(exist_ok=True)
    path.write_text(manifest.to_json())
    written = Manifest.read(artifact)
    assert written is not None
    check_integrity(artifact, written)
    # The server's user must be able to read all files.
    for each in [artifact, *artifact.rglob("*")]:
        each.chmod(0o755 if each.is_dir() else 0o644)
    publish_folder(artifact, target, is_new=True)


def _with_labels(artifact: Path, manifest: Manifest, labels: Mapping[str, LabelSource]) -> Manifest:
    entries = {}
    for number, (table, source) in enumerate(sorted(labels.items())):
        if table not in manifest.tables:
            raise ExportError(f"labels: there is no table {table!r}, only {', '.join(map(repr, manifest.tables))}")
        size = manifest.tables[table].vocabulary_size
        if isinstance(source, str | Path):
            source = LabelFile.parse(f"{table}={source}")
        if isinstance(source, LabelFile):
            source = row_labels(source, size, table_vocabularies(artifact, manifest, table))
        if len(source) != size:
            raise ExportError(
                f"labels: {len(source):,} for the {size:,} rows of table {table!r}; give one for each row"
            )
        entries[table] = write_labels(artifact, table, number, source)
    return replace(manifest, labels=entries, files=file_sizes(artifact))
