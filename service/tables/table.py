"""Maps embedding tables from a SavedModel's own variables file, without copying them, so that processes share them."""

from __future__ import annotations

import math
from collections.abc import Container
from pathlib import Path

import numpy as np

from service.artifact.bundle import BundleEntry, prefix_of, read_bundle
from service.artifact.manifest import Manifest, TableEntry, TableScale
from service.engine.neighbors import Nearest, RowSearch
from service.errors import ArtifactError, DeadlineExceeded, id_out_of_range
from service.tables import kernels
from service.tables.guarded_files import GuardedFiles
from service.tables.kernel_codes import METRICS
from service.tables.numpy_neighbors import nearest
from service.types import TABLE_DTYPES, Array, TableInfo, saved_dtype, stored_columns

try:
    # numpy gets the dtype bfloat16 from the package ml_dtypes, which is installed with TensorFlow.
    import ml_dtypes
except ImportError:
    ml_dtypes = None  # type: ignore[assignment]

_NO_SCALES = np.empty(0, np.float32)
_NO_IDS = np.empty(0, np.int64)
# Dtype of a table in the manifest -> the kernels' number for it.
_KERNEL_DTYPES = {
    "float32": kernels.FLOAT32,
    "float16": kernels.FLOAT16,
    "bfloat16": kernels.BFLOAT16,
    "int8": kernels.INT8,
    "int4": kernels.INT4,
}


class MappedTable:
    """A [V, D] embedding table in a mapped file. Concurrency: any thread.

    weights: [V, D] read-only view of the file, perhaps unaligned; it keeps the file mapped. For bfloat16 it is uint16,
      for int4 [V, ceil(D / 2)] uint8.
    scales: [V] float32 that the rows of an int8 or int4 table are multiplied by, else [0]; perhaps unaligned.
    place: the table for the kernels: its dtype, its bytes, those of its scales, V and D; V is 0 for float64, which
      kernels do not read.
    row_bytes: bytes of the file that one id reads.
    changed: [V] bool, True for rows that differ from the file's; None: no row does.
    """

    __slots__ = ("changed", "info", "place", "row_bytes", "scales", "weights")

    def __init__(self, info: TableInfo, weights: Array, scales: Array = _NO_SCALES) -> None:
        self.info = info
        self.weights = weights
        self.scales = scales
        self.changed: Array | None = None
        self.row_bytes = weights.shape[1] * weights.itemsize + (scales.itemsize if scales.size else 0)
        kind = _KERNEL_DTYPES.get(info.dtype)
        self.place: tuple[int, Array, Array, int, int] = (
            kernels.FLOAT32 if kind is None else kind,
            weights.reshape(-1).view(np.uint8),
            scales.view(np.uint8),
            0 if kind is None else weights.shape[0],
            info.embedding_dim,
        )

    def rows(self, ids: Array) -> Array:
        """Reads [N, D] rows of [N] int64 ids as float32, with the kernels if not float64; raises IdOutOfRange."""
        if self.info.dtype == "float64":
            with np.errstate(over="ignore"):
                return self.stored_rows(ids).astype(np.float32)
        out = np.empty((ids.shape[0], self.info.embedding_dim), np.float32)
        stopped = kernels.gather(*self.place, np.ascontiguousarray(ids, np.int64), kernels.ERROR, 0, out)
        if stopped >= 0:
            raise id_out_of_range("ids", int(ids[stopped]), stopped, self.info.vocabulary_size)
        return out

    def changed_rows(self) -> Array:
        """Returns the ids of the rows that deltas have written since the version was loaded: [N] int64, ascending."""
        return _NO_IDS if self.changed is None else np.flatnonzero(self.changed)

    def nearest(self, search: RowSearch) -> Nearest:
        """Returns the rows that are nearest to each query, as engine.neighbors declares; compares all rows.

        Raises:
          DeadlineExceeded: the search took too long.
        """
        shape = (search.queries.shape[0], search.k)
        found = Nearest(np.empty(shape, np.int64), np.empty(shape, np.float32))
        to_rank = search.queries, search.own, METRICS[search.metric], search.allowed, search.denied
        if self.info.dtype == "float64":
            is_done = nearest(self.rows, self.info.vocabulary_size, *to_rank, search.seconds, *found)
        else:
            is_done = kernels.neighbors(*self.place, *to_rank, search.threads, search.seconds, *found)
        if not is_done:
            raise DeadlineExceeded(f'The search in table "{self.info.name}" did not end in time.')
        return found

    def stored_rows(self, ids: Array) -> Array:
        """Reads [N, D] rows by [N] int64 ids, bit for bit as they are stored; raises IdOutOfRange.

        bfloat16 rows are uint16 if ml_dtypes is missing; int8 rows are not multiplied by their scales.
        """
        bad = np.flatnonzero((ids < 0) | (ids >= self.info.vocabulary_size))
        if bad.size:
            raise id_out_of_range("ids", int(ids[bad[0]]), int(bad[0]), self.info.vocabulary_size)
        found = self.weights[ids]
        if self.info.dtype == "bfloat16" and ml_dtypes is not None:
            return found.view(ml_dtypes.bfloat16)
        return found


def open_tables(
    artifact: Path, manifest: Manifest, guarded: GuardedFiles | None = None, left_out: Container[str] = ()
) -> dict[str, MappedTable]:
    """Maps every table of an artifact, after checks that manifest, checkpoint index and file sizes agree.

    Args:
      guarded: maps the files; callers check its mark after they read tables.
      left_out: names of tables that are not mapped.

    Raises:
      ArtifactError: manifest, index and file sizes differ, or a table can not be mapped; the message names the table
        and the difference.
    """
    check_files(artifact, manifest)
    files = _Files(artifact, guarded or GuardedFiles())
    tables = {}
    for name, entry in manifest.tables.items():
        if name in left_out:
            continue
        shape = (entry.vocabulary_size, stored_columns(entry.dtype, entry.embedding_dim))
        if entry.dtype not in TABLE_DTYPES:
            raise ArtifactError(f"table {name!r} is {entry.dtype}; only {', '.join(TABLE_DTYPES)} can be mapped")
        weights = files.view(f"table {name!r}", entry, entry.dtype, shape)
        scales = _NO_SCALES
        if entry.scale is not None:
            scales = files.view(f"scale of table {name!r}", entry.scale, "float32", (entry.vocabulary_size,))
        tables[name] = MappedTable(table_info(manifest, name, weights.nbytes + scales.nbytes), weights, scales)
    return tables


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


def check_files(artifact: Path, manifest: Manifest) -> None:
    """Raises ArtifactError unless every file has the size in the manifest, so that partly copied files are refused."""
    for name, nbytes in manifest.files.items():
        try:
            found = (artifact / name).stat().st_size
        except (OSError, ValueError) as error:  # ValueError: a file's name in the manifest has a NUL
            raise ArtifactError(f"file {name!r} of {artifact} can not be read: {error}") from error
        if found != nbytes:
            raise ArtifactError(f"file {name} of {artifact} has {found} bytes, its manifest says {nbytes}")


class _Files:
    # _Files reads the checkpoint indexes and maps the files of an artifact, each once.

    def __init__(self, artifact: Path, guarded: GuardedFiles) -> None:
        self._artifact = artifact
        self._guarded = guarded
        self._indexes: dict[Path, dict[str, BundleEntry]] = {}

    def view(self, what: str, entry: TableEntry | TableScale, dtype: str, shape: tuple[int, ...]) -> Array:
        """Returns a read-only array on a checkpoint variable's mapped bytes.

        Raises ArtifactError, with a text that starts with `what`, if the variable is missing or does not fit `entry`.
        """
        prefix = prefix_of(Path(entry.file))
        if prefix not in self._indexes:
            self._indexes[prefix] = read_bundle(self._artifact / prefix)
        found = self._indexes[prefix].get(entry.variable)
        if found is None:
            raise ArtifactError(f"{what}: variable {entry.variable!r} is not in {prefix.as_posix()}.index")
        self._check(what, entry, found, (dtype, shape))
        mapped = self._map(found.file)
        if entry.offset + entry.nbytes > len(mapped):
            raise ArtifactError(f"{what} ends at byte {entry.offset + entry.nbytes}, its file has {len(mapped)}")
        return np.frombuffer(mapped, TABLE_DTYPES[dtype], math.prod(shape), entry.offset).reshape(shape)

    def _check(
        self, what: str, entry: TableEntry | TableScale, found: BundleEntry, wanted: tuple[str, tuple[int, ...]]
    ) -> None:
        if found.is_sliced:
            raise ArtifactError(f"{what} is saved in {len(found.slices)} slices; only a whole one can be mapped")
        dtype, shape = wanted
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

    def _map(self, file: Path) -> memoryview:
        try:
            return self._guarded.map(file)
        except (OSError, ValueError) as error:
            raise ArtifactError(f"cannot map {file}: {error}") from error
