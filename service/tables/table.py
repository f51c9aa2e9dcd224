"""Maps embedding tables from a SavedModel's own variables file, without copying them, so that processes share them."""

from __future__ import annotations

import math
import time
from collections.abc import Container
from dataclasses import replace
from pathlib import Path

import numpy as np

from service.artifact.manifest import Manifest, TableEntry, TableScale
from service.artifact.stored_tables import SavedTables, check_files, float32_rows, stored_shape, table_info
from service.errors import ArtifactError, DeadlineExceeded, id_out_of_range
from service.native_tables import NATIVE_TABLES, core_tables
from service.tables.guarded_files import GuardedFiles
from service.types import TABLE_DTYPES, Array, TableInfo
from service.versions.neighbors import Nearest, RowSearch

try:
    # numpy gets the dtype bfloat16 from the package ml_dtypes, which is installed with TensorFlow.
    import ml_dtypes
except ImportError:
    ml_dtypes = None  # type: ignore[assignment]

_NO_SCALES = np.empty(0, np.float32)
_NO_IDS = np.empty(0, np.int64)
# The numbers that the native core's functions have for the dtypes of rows, and for the metrics of a search, are their
# places here.
_DTYPES = ("float32", "float16", "bfloat16", "int8", "int4")
_METRICS = ("dot", "cosine", "l2")
# Number of rows of a float64 table that a search rounds to float32 and compares at a time.
_CHUNK_ROWS = 1 << 16


class MappedTable:
    """A [V, D] embedding table in a mapped file. Concurrency: any thread.

    weights: [V, D] read-only view of the file, perhaps unaligned; it keeps the file mapped. For bfloat16 it is uint16,
      for int4 [V, ceil(D / 2)] uint8.
    scales: [V] float32 that the rows of an int8 or int4 table are multiplied by, else [0]; perhaps unaligned.
    place: the table for the native core's functions: its dtype, its bytes, those of its scales, V and D; V is 0 for
      float64, which the functions do not read.
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
        is_read = info.dtype in _DTYPES
        self.place: tuple[int, Array, Array, int, int] = (
            _DTYPES.index(info.dtype) if is_read else 0,
            weights.reshape(-1).view(np.uint8),
            scales.view(np.uint8),
            weights.shape[0] if is_read else 0,
            info.embedding_dim,
        )

    def rows(self, ids: Array) -> Array:
        """Reads [N, D] rows of [N] int64 ids as float32; raises IdOutOfRange."""
        check_ids(ids, self.info.vocabulary_size)
        if NATIVE_TABLES is None or self.info.dtype == "float64":
            scales = self.scales[ids][:, None] if self.scales.size else None
            return float32_rows(self.weights[ids], scales, self.info.dtype, self.info.embedding_dim)
        out = np.empty((ids.shape[0], self.info.embedding_dim), np.float32)
        NATIVE_TABLES.gather(*self.place, np.ascontiguousarray(ids, np.int64), out)
        return out

    def changed_rows(self) -> Array:
        return _NO_IDS if self.changed is None else np.flatnonzero(self.changed)

    def nearest(self, search: RowSearch) -> Nearest:
        """Compares all rows, as versions.neighbors declares; raises DeadlineExceeded."""
        if self.info.dtype == "float64":
            return self._nearest_rounded(search)
        return self._nearest_of(self.place, search)

    def _nearest_of(self, place: tuple[int, Array, Array, int, int], search: RowSearch) -> Nearest:
        shape = (search.queries.shape[0], search.k)
        found = Nearest(np.empty(shape, np.int64), np.empty(shape, np.float32))
        to_rank = search.queries, search.own, _METRICS.index(search.metric), search.allowed, search.denied
        if not core_tables().neighbors(*place, *to_rank, search.threads, search.seconds, *found):
            raise DeadlineExceeded(f'The search in table "{self.info.name}" did not end in time.')
        return found

    def _nearest_rounded(self, search: RowSearch) -> Nearest:
        """Searches a table of float64 in chunks of rows, which are rounded to float32."""
        until_s = time.monotonic() + search.seconds
        shape = (search.queries.shape[0], search.k)
        best = Nearest(np.full(shape, -1, np.int64), np.full(shape, np.nan, np.float32))
        for begin in range(0, self.info.vocabulary_size, _CHUNK_ROWS):
            rows = self.rows(np.arange(begin, min(begin + _CHUNK_ROWS, self.info.vocabulary_size)))
            own = np.where((search.own >= begin) & (search.own < begin + len(rows)), search.own - begin, -1)
            chunk = replace(
                search,
                own=own,
                allowed=None if search.allowed is None else _within(search.allowed, begin, len(rows)),
                denied=_within(search.denied, begin, len(rows)),
                seconds=max(until_s - time.monotonic(), 0.0),
            )
            place = 0, rows.reshape(-1).view(np.uint8), _NO_SCALES.view(np.uint8), *rows.shape
            found = self._nearest_of(place, chunk)
            ids = np.concatenate([best.ids, np.where(found.ids < 0, -1, found.ids + begin)], axis=1)
            scores = np.concatenate([best.scores, found.scores], axis=1)
            # Of rows with the same score the one with the smaller id comes first; NaN stands last.
            order = np.lexsort((ids, scores if search.metric == "l2" else -scores))[:, : search.k]
            best = Nearest(np.take_along_axis(ids, order, 1), np.take_along_axis(scores, order, 1))
        return best

    def stored_rows(self, ids: Array) -> Array:
        """Reads [N, D] rows by [N] int64 ids, bit for bit as they are stored; raises IdOutOfRange.

        bfloat16 rows are uint16 if ml_dtypes is missing; int8 rows are not multiplied by their scales.
        """
        check_ids(ids, self.info.vocabulary_size)
        found = self.weights[ids]
        if self.info.dtype == "bfloat16" and ml_dtypes is not None:
            return found.view(ml_dtypes.bfloat16)
        return found


def check_ids(ids: Array, size: int) -> None:
    bad = np.flatnonzero((ids < 0) | (ids >= size))
    if bad.size:
        raise id_out_of_range("ids", int(ids[bad[0]]), int(bad[0]), size)


def _within(ids: Array, begin: int, count: int) -> Array:
    return ids[(ids >= begin) & (ids < begin + count)] - begin


def open_tables(
    artifact: Path, manifest: Manifest, guarded: GuardedFiles | None = None, left_out: Container[str] = ()
) -> dict[str, MappedTable]:
    """Maps every table of an artifact, after checks that manifest, checkpoint index and file sizes agree.

    Args:
      guarded: maps the files; callers check its mark after they read tables.

    Raises:
      ArtifactError: manifest, index and file sizes differ, or a table can not be mapped; the message names the table
        and the difference.
    """
    check_files(artifact, manifest)
    guarded, saved = guarded or GuardedFiles(), SavedTables(artifact)

    def view(what: str, entry: TableEntry | TableScale, dtype: str, shape: tuple[int, ...]) -> Array:
        file = saved.file(what, entry, dtype, shape)
        try:
            mapped = guarded.map(file)
        except (OSError, ValueError) as error:
            raise ArtifactError(f"cannot map {file}: {error}") from error
        if entry.offset + entry.nbytes > len(mapped):
            raise ArtifactError(f"{what} ends at byte {entry.offset + entry.nbytes}, its file has {len(mapped)}")
        return np.frombuffer(mapped, TABLE_DTYPES[dtype], math.prod(shape), entry.offset).reshape(shape)

    tables = {}
    for name, entry in manifest.tables.items():
        if name in left_out:
            continue
        weights = view(f"table {name!r}", entry, entry.dtype, stored_shape(name, entry))
        scales = _NO_SCALES
        if entry.scale is not None:
            scales = view(f"scale of table {name!r}", entry.scale, "float32", (entry.vocabulary_size,))
        tables[name] = MappedTable(table_info(manifest, name, weights.nbytes + scales.nbytes), weights, scales)
    return tables
