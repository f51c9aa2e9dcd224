"""Finds an artifact's tables, with or without a manifest, and maps their bytes into memory."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from model_export.graphs.reduced_table import widened
from model_export.graphs.source import VARIABLES_PREFIX
from model_export.report.document import TableReport
from model_export.statistics.table_health import TableRows
from service.artifact.bundle import BundleEntry, read_bundle
from service.artifact.manifest import Manifest
from service.errors import ArtifactError, os_errors_as
from service.types import TABLE_DTYPES, Array, stored_columns

_KEY_SUFFIX = "/.ATTRIBUTES/VARIABLE_VALUE"
# Maps the checkpoint's dtype of a variable to the numpy dtype as which its bytes are read.
_READABLE: Mapping[str, str] = {"float16": "<f2", "float32": "<f4", "float64": "<f8", "bfloat16": "<u2"}


def declared_tables(manifest: Manifest) -> list[TableReport]:
    return [
        TableReport(
            name=name,
            variable=entry.variable,
            vocabulary_size=entry.vocabulary_size,
            embedding_dim=entry.embedding_dim,
            dtype=entry.dtype,
            nbytes=entry.nbytes,
            file=entry.file,
            offset=entry.offset,
            features=tuple(sorted(key for key, feature in manifest.features.items() if feature.table == name)),
            scale=entry.scale,
        )
        for name, entry in manifest.tables.items()
    ]


def matrix_variables(artifact: Path) -> list[TableReport]:
    """Returns every 2-D float variable of a SavedModel, the largest first; [] if it has no variables.

    Raises:
      ArtifactError: variables/variables.index exists, but can not be read.
    """
    if not (artifact / VARIABLES_PREFIX).with_suffix(".index").exists():
        return []
    found = [
        _variable(artifact, key, entry)
        for key, entry in read_bundle(artifact / VARIABLES_PREFIX).items()
        if len(entry.shape) == 2 and entry.dtype in _READABLE
    ]
    return sorted(found, key=lambda table: (-table.vocabulary_size * table.embedding_dim, table.name))


class SlicedRows:
    """A [V, D] table whose rows were saved in several parts; indexed like an array: `rows[start:stop]`, `rows[ids]`.

    parts: arrays [V1, D], [V2, D], ... in order of rows, of one dtype.
    """

    def __init__(self, parts: Sequence[Array]) -> None:
        self._parts = parts
        self._starts = np.cumsum([0, *(len(part) for part in parts)])
        self.shape: tuple[int, ...] = (int(self._starts[-1]), *parts[0].shape[1:])
        self.dtype: np.dtype[Any] = parts[0].dtype

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice | Array) -> Array:
        ids = np.arange(self.shape[0])[rows] if isinstance(rows, slice) else rows
        out = np.empty((len(ids), *self.shape[1:]), self.dtype)
        owners = np.searchsorted(self._starts, ids, side="right") - 1
        for owner in np.unique(owners):
            mine = owners == owner
            out[mine] = self._parts[owner][ids[mine] - self._starts[owner]]
        return out


class WidenedRows:
    """A [V, D] table of bfloat16, int8 or int4; each row is converted to float32 when it is read.

    scales: [V, 1] for int8 and int4. rows: the stored rows; for int4 [V, ceil(D / 2)] bytes.
    """

    dtype: np.dtype[Any] = np.dtype(np.float32)

    def __init__(self, rows: TableRows, dtype: str, embedding_dim: int, scales: Array | None = None) -> None:
        self._rows, self._dtype, self._scales = rows, dtype, scales
        self.shape: tuple[int, ...] = (rows.shape[0], embedding_dim)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> Array:
        scales = None if self._scales is None else self._scales[rows]
        return widened(self._rows[rows], self._dtype, scales, embedding_dim=self.shape[1])


def map_table(artifact: Path, table: TableReport) -> TableRows:
    """Maps a table's [V, D] numbers into memory, read-only; the mapped address may be unaligned.

    Raises:
      ArtifactError: the table's file is missing or too short, or its dtype can not be read.
    """
    dtype = TABLE_DTYPES.get(table.dtype) if table.scale is not None else _READABLE.get(table.dtype)
    if dtype is None:
        raise ArtifactError(f"numbers of type {table.dtype} are not read")
    shape = (table.vocabulary_size, stored_columns(table.dtype, table.embedding_dim))
    with os_errors_as(ArtifactError, f"cannot read {table.file}"):
        rows: TableRows
        if table.slices:
            rows = _map_slices(artifact, table.variable, dtype)
        else:
            rows = _map(artifact / table.file, dtype, table.offset, table.nbytes, shape)
        if table.scale is None:
            return WidenedRows(rows, table.dtype, table.embedding_dim) if table.dtype == "bfloat16" else rows
        scale = table.scale
        scales = _map(artifact / scale.file, "<f4", scale.offset, scale.nbytes, (table.vocabulary_size, 1))
        return WidenedRows(rows, table.dtype, table.embedding_dim, scales)


def _map_slices(artifact: Path, variable: str, dtype: str) -> TableRows:
    entry = read_bundle(artifact / VARIABLES_PREFIX)[variable]
    position = 0
    for start, part in entry.slices:
        if start != (position, 0) or part.shape[1:] != entry.shape[1:]:
            raise ArtifactError("saved in slices that are not whole rows one after another")
        position += part.shape[0]
    if position != entry.shape[0] or not position:
        raise ArtifactError("saved in slices that do not cover it")
    return SlicedRows([_map(part.file, dtype, part.offset, part.nbytes, part.shape) for _, part in entry.slices])


def _map(path: Path, dtype: str, offset: int, nbytes: int, shape: tuple[int, ...]) -> Array:
    if nbytes == 0 or nbytes != math.prod(shape) * np.dtype(dtype).itemsize:
        raise ArtifactError(f"{nbytes:,} bytes do not hold {' x '.join(map(str, shape))} of {np.dtype(dtype).name}")
    size = path.stat().st_size
    # Check the file's size before the file is mapped, because reading a map beyond the file's end kills the process
    # (SIGBUS).
    if offset + nbytes > size:
        raise ArtifactError(f"it ends at byte {offset + nbytes:,} of {path.name}, which has {size:,}")
    return np.memmap(path, dtype, "r", offset, shape)


def _variable(artifact: Path, key: str, entry: BundleEntry) -> TableReport:
    name = key.removesuffix(_KEY_SUFFIX)
    return TableReport(
        name=name,
        variable=key,
        vocabulary_size=entry.shape[0],
        embedding_dim=entry.shape[1],
        dtype=entry.dtype,
        nbytes=entry.nbytes + sum(part.nbytes for _, part in entry.slices),
        file=entry.file.relative_to(artifact).as_posix(),
        offset=entry.offset,
        slices=len(entry.slices),
    )
