"""Agreement of an artifact's manifest with its index, its files and its vocabularies; no TensorFlow here."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from model_export.errors import ExportError
from model_export.export import oracle
from service.core.manifest import MANIFEST_PATH, Manifest, TableEntry
from service.lookup.bundle import read_bundle


def check_integrity(artifact: Path, manifest: Manifest) -> None:
    """Raises ExportError listing every disagreement; ArtifactError where the index can not be read."""
    faults = [
        *_file_faults(artifact, manifest),
        *_table_faults(artifact, manifest),
        *_vocabulary_faults(artifact, manifest),
    ]
    if faults:
        raise ExportError(f"{artifact}: " + "; ".join(faults))
    for name, table in oracle.read_tables(artifact, manifest).items():
        if not np.isfinite(table).all():
            raise ExportError(f"{artifact}: table {name!r} holds NaN or infinity")


def file_sizes(artifact: Path) -> dict[str, int]:
    """Returns the size of every file but the manifest, by path relative to the artifact."""
    paths = sorted(path for path in artifact.rglob("*") if path.is_file())
    sizes = {path.relative_to(artifact).as_posix(): path.stat().st_size for path in paths}
    sizes.pop(MANIFEST_PATH, None)
    return sizes


def _file_faults(artifact: Path, manifest: Manifest) -> list[str]:
    found, declared = file_sizes(artifact), dict(manifest.files)
    return [
        f"{name} has {found.get(name, 'no')} bytes, the manifest says {declared.get(name, 'nothing of it')}"
        for name in sorted(set(found) | set(declared))
        if found.get(name) != declared.get(name)
    ]


def _table_faults(artifact: Path, manifest: Manifest) -> list[str]:
    bundle = read_bundle(artifact / oracle.VARIABLES_PREFIX)
    faults = []
    for name, table in manifest.tables.items():
        entry = bundle.get(table.variable)
        if entry is None:
            faults.append(f"table {name!r}: the index has no {table.variable!r}")
            continue
        if entry.is_sliced or len(entry.shape) != 2:
            faults.append(f"table {name!r}: saved as {entry.shape} in parts; a whole matrix is needed")
            continue
        indexed = TableEntry(
            variable=table.variable,
            vocabulary_size=entry.shape[0],
            embedding_dim=entry.shape[1],
            dtype=entry.dtype,
            file=entry.file.relative_to(artifact).as_posix(),
            offset=entry.offset,
            nbytes=entry.nbytes,
            crc32c=entry.crc32c,
        )
        if indexed != table:
            faults.append(f"table {name!r}: the index says {indexed}, the manifest {table}")
        elif entry.offset + entry.nbytes > manifest.files.get(table.file, 0):
            faults.append(f"table {name!r} ends beyond {table.file}")
    return faults


def _vocabulary_faults(artifact: Path, manifest: Manifest) -> list[str]:
    faults = []
    for name, entry in manifest.vocabularies.items():
        try:
            words = (artifact / entry.file).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            faults.append(f"vocabulary {name!r}: {error}")
            continue
        if len(words) != entry.size or len(set(words)) != len(words):
            faults.append(f"vocabulary {name!r}: {len(words)} lines, {len(set(words))} distinct, not {entry.size}")
    return faults
