"""Checks that manifest, checkpoint index and files agree on where a table's numbers lie, before a table is mapped."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from service.artifact.bundle import BundleEntry, prefix_of, read_bundle
from service.artifact.manifest import Manifest, TableEntry, TableScale
from service.errors import ArtifactError
from service.types import TABLE_DTYPES, TableInfo, saved_dtype, stored_columns


def check_files(artifact: Path, manifest: Manifest) -> None:
    """Raises ArtifactError unless every file has the size in the manifest, so that partly copied files are refused."""
    for name, nbytes in manifest.files.items():
        try:
            found = (artifact / name).stat().st_size
        except (OSError, ValueError) as error:  # ValueError: a file's name in the manifest has a NUL
            raise ArtifactError(f"file {name!r} of {artifact} can not be read: {error}") from error
        if found != nbytes:
            raise ArtifactError(f"file {name} of {artifact} has {found} bytes, its manifest says {nbytes}")


def table_info(manifest: Manifest, name: str, nbytes: int) -> TableInfo:
    """Returns the TableInfo of a table from its manifest entry; nbytes: size of the table in bytes."""
    entry = manifest.tables[name]
    return TableInfo(
        name=name,
        vocabulary_size=entry.vocabulary_size,
        embedding_dim=entry.embedding_dim,
        dtype=entry.dtype,
        nbytes=nbytes,
        features=tuple(sorted(f for f, feature in manifest.features.items() if feature.table == name)),
    )


def stored_shape(name: str, entry: TableEntry) -> tuple[int, int]:
    """Returns the shape of a table's stored numbers; raises ArtifactError for a dtype that can not be mapped."""
    if entry.dtype not in TABLE_DTYPES:
        raise ArtifactError(f"table {name!r} is {entry.dtype}; only {', '.join(TABLE_DTYPES)} can be mapped")
    return entry.vocabulary_size, stored_columns(entry.dtype, entry.embedding_dim)


class SavedTables:
    """The checkpoint indexes of an artifact, each read once. Concurrency: one caller at a time."""

    def __init__(self, artifact: Path) -> None:
        self._artifact = artifact
        self._indexes: dict[Path, dict[str, BundleEntry]] = {}

    def file(self, what: str, entry: TableEntry | TableScale, dtype: str, shape: tuple[int, ...]) -> Path:
        """Returns the file that has a variable's bytes where the manifest says.

        Raises ArtifactError, with a text that starts with `what`, if the variable is missing or does not fit `entry`.
        """
        prefix = prefix_of(Path(entry.file))
        if prefix not in self._indexes:
            self._indexes[prefix] = read_bundle(self._artifact / prefix)
        found = self._indexes[prefix].get(entry.variable)
        if found is None:
            raise ArtifactError(f"{what}: variable {entry.variable!r} is not in {prefix.as_posix()}.index")
        if found.is_sliced:
            raise ArtifactError(f"{what} is saved in {len(found.slices)} slices; only a whole one can be mapped")
        # Scales may have the shape [V], or [V, 1], with which a graph can multiply rows directly.
        is_column = len(shape) == 1 and found.shape == (*shape, 1)
        differences = {
            "shape": (shape if is_column else found.shape, shape),
            "dtype": (found.dtype, saved_dtype(dtype)),
            "file": (found.file, self._artifact / entry.file),
            "offset": (found.offset, entry.offset),
            "nbytes": (found.nbytes, entry.nbytes),
            "crc32c": (found.crc32c, entry.crc32c),
        }
        for name, (in_index, in_manifest) in differences.items():
            if in_index != in_manifest:
                raise ArtifactError(f"{what}: {name} is {in_index} in the index and {in_manifest} in the manifest")
        if entry.nbytes != math.prod(shape) * np.dtype(TABLE_DTYPES[dtype]).itemsize or entry.nbytes == 0:
            raise ArtifactError(f"{what}: {entry.nbytes} bytes do not hold {found.shape} of {dtype}")
        return found.file
