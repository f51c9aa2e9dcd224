"""Reads rows of a remote table (in a cluster) for searches, comparisons and the proofs of a load."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from service.errors import TableUnreachable, Unimplemented
from service.remote.address import StoreAddress
from service.remote.layout import TableLayout
from service.tables.table import MappedTable, check_ids
from service.types import TABLE_DTYPES, Array, TableInfo, stored_columns
from service.versions.neighbors import Nearest, RowSearch

if TYPE_CHECKING:
    # These imports are only for type checks: the modules import redis-py, an optional extra, and are loaded only if a
    # table is remote.
    from service.remote.changes import TableChanges
    from service.remote.core_clusters import OpenTable


class RemoteTable:
    """A [V, D] table whose rows lie in a Valkey or Redis cluster. Concurrency: any thread; reads block.

    row_bytes: as of the same table mapped. layout, address: where its rows lie.
    default_rows: rows to return in place of rows that can not be read. Empty: such a read fails.
    """

    __slots__ = ("__weakref__", "address", "changes", "core", "default_rows", "info", "layout", "row_bytes")

    def __init__(
        self,
        info: TableInfo,
        layout: TableLayout,
        address: StoreAddress,
        default_rows: tuple[int, ...],
        core: OpenTable,
        changes: TableChanges,
    ) -> None:
        self.info = info
        self.row_bytes = layout.row_bytes
        self.layout = layout
        self.address = address
        self.default_rows = default_rows
        self.changes = changes
        self.core = core

    def rows(self, ids: Array) -> Array:
        """Reads [N, D] float32 rows of [N] int64 ids; raises IdOutOfRange, TableUnreachable."""
        check_ids(ids, self.info.vocabulary_size)
        distinct, places = np.unique(ids, return_inverse=True)
        return self._small(distinct, None).rows(places)

    def changed_rows(self) -> Array:
        """Raises Unimplemented: only searches need the changed rows, and remote tables are not searched."""
        raise self._unsearched()

    def nearest(self, search: RowSearch) -> Nearest:
        """Raises Unimplemented, because a search in a remote table would read all its rows from the cluster."""
        raise self._unsearched()

    def _unsearched(self) -> Unimplemented:
        return Unimplemented(
            f'The rows of table "{self.info.name}" lie in a cluster. Neighbours are searched only in tables that this '
            "server has mapped: serve a version without --remote_tables for this model to search it."
        )

    def stored_rows(self, ids: Array) -> Array:
        """Reads [N, D] rows of [N] int64 ids in the table's stored dtype; raises the errors of rows()."""
        check_ids(ids, self.info.vocabulary_size)
        distinct, places = np.unique(ids, return_inverse=True)
        return self._small(distinct, 0).stored_rows(places)

    def _small(self, distinct: Array, default_row: int | None) -> MappedTable:
        columns = stored_columns(self.info.dtype, self.info.embedding_dim)
        dtype = np.dtype(TABLE_DTYPES[self.info.dtype])
        octets = self._read(distinct, default_row) if distinct.size else np.zeros((1, self.row_bytes), np.uint8)
        width = columns * dtype.itemsize
        weights = np.ascontiguousarray(octets[:, :width]).view(dtype).reshape(octets.shape[0], columns)
        info = replace(self.info, vocabulary_size=octets.shape[0], nbytes=octets.nbytes)
        if width == self.row_bytes:
            return MappedTable(info, weights)
        return MappedTable(info, weights, np.ascontiguousarray(octets[:, width:]).view("<f4").reshape(-1))

    def _read(self, distinct: Array, default_row: int | None) -> Array:
        found = self.core.read(distinct)
        number = int(found.is_missing.sum())
        if not number:
            return found.rows
        default = None if default_row is None else self.core.default_row(default_row, number)
        if default is not None:
            found.rows[found.is_missing] = default
            return found.rows
        raise TableUnreachable(f'Rows of table "{self.info.name}" can not be read now: {found.why.rstrip(".")}.')
