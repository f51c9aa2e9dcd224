"""Embedding tables mapped from a SavedModel's own variables file: opened in a millisecond, shared, never copied."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np

from service.core.errors import ArtifactError
from service.core.manifest import Manifest, TableEntry
from service.core.types import Array, TableInfo
from service.core.validation import id_out_of_range
from service.lookup import kernels
from service.lookup.bundle import BundleEntry, prefix_of, read_bundle


class MappedTable:
    """One [V, D] float32 table. Concurrency: any thread.

    weights: [V, D] read-only view of the file, perhaps unaligned; valid as long as anyone holds it.
    """

    __slots__ = ("info", "weights")

    def __init__(self, info: TableInfo, weights: Array) -> None:
        self.info = info
        self.weights = weights

    def rows(self, ids: Array) -> Array:
        """Returns [N, D] float32 rows of [N] int64 ids; raises IdOutOfRange."""
        out = np.empty((ids.shape[0], self.info.embedding_dim), np.float32)
        stopped = kernels.gather(self.weights, np.ascontiguousarray(ids, np.int64), kernels.ERROR, 0, out)
        if stopped >= 0:
            raise id_out_of_range("ids", int(ids[stopped]), stopped, self.info.vocabulary_size)
        return out


def open_tables(artifact: Path, manifest: Manifest) -> dict[str, MappedTable]:
    """Maps every table of an artifact after manifest, index and file sizes have been found to agree.

    Raises:
      ArtifactError: they do not agree, or a table can not be mapped; the message names the table and the difference.
    """
    check_files(artifact, manifest)
    indexes: dict[Path, dict[str, BundleEntry]] = {}
    maps: dict[Path, mmap.mmap] = {}
    tables = {}
    for name, entry in manifest.tables.items():
        prefix = prefix_of(Path(entry.file))
        if prefix not in indexes:
            indexes[prefix] = read_bundle(artifact / prefix)
        found = indexes[prefix].get(entry.variable)
        if found is None:
            raise ArtifactError(f"table {name!r}: variable {entry.variable!r} is not in {prefix.as_posix()}.index")
        _check_entry(name, entry, found, artifact)
        if found.file not in maps:
            maps[found.file] = _map(found.file)
        features = tuple(sorted(f for f, feature in manifest.features.items() if feature.table == name))
        tables[name] = _view(name, entry, maps[found.file], features)
    return tables


def check_files(artifact: Path, manifest: Manifest) -> None:
    """Raises ArtifactError unless every file has the size that the manifest gives, so a half-copied one is refused."""
    for name, nbytes in manifest.files.items():
        try:
            found = (artifact / name).stat().st_size
        except (OSError, ValueError) as error:  # ValueError: no file can have that name
            raise ArtifactError(f"file {name!r} of {artifact} can not be read: {error}") from error
        if found != nbytes:
            raise ArtifactError(f"file {name} of {artifact} has {found} bytes, its manifest says {nbytes}")


def _check_entry(name: str, entry: TableEntry, found: BundleEntry, artifact: Path) -> None:
    if found.is_sliced:
        raise ArtifactError(f"table {name!r} is saved in {len(found.slices)} slices; only a whole one can be mapped")
    differences = {
        "shape": (found.shape, (entry.vocabulary_size, entry.embedding_dim)),
        "dtype": (found.dtype, entry.dtype),
        "file": (found.file, artifact / entry.file),
        "offset": (found.offset, entry.offset),
        "nbytes": (found.nbytes, entry.nbytes),
        "crc32c": (found.crc32c, entry.crc32c),
    }
    for what, (in_index, in_manifest) in differences.items():
        if in_index != in_manifest:
            raise ArtifactError(f"table {name!r}: {what} is {in_index} in the index and {in_manifest} in the manifest")
    if entry.dtype != "float32":
        raise ArtifactError(f"table {name!r} is {entry.dtype}; only float32 tables can be mapped")
    if entry.nbytes != entry.vocabulary_size * entry.embedding_dim * 4 or entry.nbytes == 0:
        raise ArtifactError(f"table {name!r}: {entry.nbytes} bytes do not hold {found.shape} of float32")


def _map(file: Path) -> mmap.mmap:
    try:
        with file.open("rb") as handle:
            return mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise ArtifactError(f"cannot map {file}: {error}") from error


def _view(name: str, entry: TableEntry, mapped: mmap.mmap, features: tuple[str, ...]) -> MappedTable:
    if entry.offset + entry.nbytes > len(mapped):
        raise ArtifactError(f"table {name!r} ends at byte {entry.offset + entry.nbytes}, its file has {len(mapped)}")
    count = entry.vocabulary_size * entry.embedding_dim
    weights = np.frombuffer(mapped, np.dtype("<f4"), count, entry.offset)
    info = TableInfo(
        name=name,
        vocabulary_size=entry.vocabulary_size,
        embedding_dim=entry.embedding_dim,
        dtype=entry.dtype,
        nbytes=entry.nbytes,
        features=features,
    )
    return MappedTable(info, weights.reshape(entry.vocabulary_size, entry.embedding_dim))
