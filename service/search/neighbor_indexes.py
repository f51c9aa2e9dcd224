"""Keeps nearest-row indexes of tables, with which searches read fewer rows; a low-priority thread builds them."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple, Protocol
from weakref import WeakKeyDictionary

import numpy as np

from service.errors import ServiceError, VersionNotFound
from service.types import Array, ModelRef
from service.versions.neighbors import Metric, Nearest, RowIndex, RowSearch, SearchedTable
from service.versions.servable import Files, Servable
from service.versions.threads import low_priority_thread

logger = logging.getLogger(__name__)

# A table with more rows gets no index for nearest rows: building the index would take hours, and 8 bytes of memory for
# each row.
MAX_ROWS = 100_000_000

# Type of a function that builds a table's nearest-row index, as tables.row_index.build_index. Arguments: reads rows
# by ids; compares all rows; raises if the index is not wanted any more; number of rows; metric.
BuildIndex = Callable[
    [Callable[[Array], Array], Callable[[RowSearch], Nearest], Callable[[], None], int, Metric], "RowIndex | None"
]
# Type of a function that tunes an index, as tables.row_index.tune_index. Arguments: the index; compares all rows;
# queries; number of rows.
TuneIndex = Callable[[Any, Callable[[RowSearch], Nearest], Array, int], "RowIndex | None"]
# An index is tuned for searches by vectors when this many vectors were asked for, and again each time that their number
# has doubled. The sample has at most _SAMPLED_VECTORS of them, drawn evenly from all, and _ADDED_VECTORS of one search.
_FIRST_TUNING, _SAMPLED_VECTORS, _ADDED_VECTORS = 64, 256, 16
# Type of a function that leases the servable of a model's version.
LeaseVersion = Callable[[ModelRef], AbstractContextManager[Servable]]


class IndexName(NamedTuple):
    """The name of an index of nearest rows: the model, its version, the table and the metric."""

    model: str
    version: int
    table: str
    metric: Metric


class IndexFiles(Protocol):
    """The keeper of nearest-row indexes in files, so that a restarted server need not build them again.

    Concurrency: one caller at a time.
    """

    def load(self, name: IndexName, num_rows: int) -> RowIndex | None:
        """Reads a table's nearest-row index from its file; None without a file, or if it is not for num_rows rows."""

    def keep(self, name: IndexName, index: RowIndex, changed: Array) -> None:
        """Writes a table's nearest-row index to a file, or logs why the file is not written.

        Args:
          changed: [N] int64, ids of the rows whose values differ from the table's file.
        """


class Indexing(NamedTuple):
    """How nearest-row indexes are built. files: keeps them over a restart; None: the server builds each anew.

    tune: tunes an index for queries by vectors.
    """

    build: BuildIndex
    tune: TuneIndex
    files: IndexFiles | None = None


class _Vectors:
    # A sample of the vectors with which a table was searched, and its index as it was tuned for them. index: None until
    # then, and if too many lists would have to be read.

    def __init__(self) -> None:
        self.sample: list[Array] = []
        self.index: RowIndex | None = None
        self._num_seen = 0
        self._due = _FIRST_TUNING
        self._random = random.Random(0)

    def add(self, vectors: Array) -> bool:
        for vector in vectors[:_ADDED_VECTORS]:
            self._num_seen += 1
            if len(self.sample) < _SAMPLED_VECTORS:
                self.sample.append(np.array(vector, np.float32))
            elif (place := self._random.randrange(self._num_seen)) < _SAMPLED_VECTORS:
                self.sample[place] = np.array(vector, np.float32)
        is_due = self._num_seen >= self._due
        if is_due:
            self._due = 2 * self._num_seen
        return is_due


class NeighborIndexes:
    """The nearest-row indexes of all large tables that were searched. Concurrency: any thread.

    An index lives as long as the files of its version, so another version never uses it; deltas keep the files.
    """

    def __init__(self, indexing: Indexing | None, lease: LeaseVersion, least_rows: int) -> None:
        """Indexes only tables of at least `least_rows` rows; no table if least_rows is 0 or indexing is None."""
        self._build = None if indexing is None else indexing.build
        self._tune = None if indexing is None else indexing.tune
        self._files = None if indexing is None else indexing.files
        self._lease = lease
        self._least_rows = least_rows
        self._lock = threading.Lock()
        self._thread: ThreadPoolExecutor | None = None
        self._is_closed = False
        self._kept: WeakKeyDictionary[Files, dict[IndexName, Future[RowIndex | None]]] = WeakKeyDictionary()
        self._vectors: WeakKeyDictionary[Files, dict[IndexName, _Vectors]] = WeakKeyDictionary()

    def of(self, servable: Servable, table: SearchedTable, metric: Metric) -> RowIndex | None:
        name = IndexName(servable.name, servable.version, table.info.name, metric)
        future = self._kept.get(servable.files, {}).get(name) if self._is_wanted(servable, table) else None
        return future.result() if future is not None and future.done() and not future.cancelled() else None

    def of_vectors(
        self, servable: Servable, table: SearchedTable, metric: Metric, index: RowIndex, vectors: Array
    ) -> RowIndex | None:
        """Returns a table's index as it was tuned for searches by vectors; None until it is, so that all rows are
        compared.

        Args:
          index: of the table. vectors: [Q, D], of this search; they become part of the sample for which it is tuned.
        """
        name = IndexName(servable.name, servable.version, table.info.name, metric)
        with self._lock:
            known = self._vectors.setdefault(servable.files, {}).setdefault(name, _Vectors())
            if known.add(vectors) and self._thread is not None and not self._is_closed:
                queries = np.stack(known.sample)
                files, num_rows = id(servable.files), table.info.vocabulary_size
                self._thread.submit(self._tuned, name, files, num_rows, index, queries, known)
        return known.index

    def _tuned(
        self, name: IndexName, files: int, num_rows: int, index: RowIndex, queries: Array, known: _Vectors
    ) -> None:
        assert self._tune is not None
        try:
            known.index = found = self._tune(index, self._leased(name, files).search, queries, num_rows)
        except ServiceError:
            # The version is gone, and its index with it.
            return
        except Exception:
            logger.exception("index of nearest rows could not be tuned for vectors", extra=name._asdict())
            return
        # Without an index for them, searches by vectors compare all rows.
        told: dict[str, object] = {"is_used": found is not None, "vectors": len(queries)}
        if found is not None:
            told |= {"recall": round(found.recall or 0.0, 4), "lists_read": found.probes}
        logger.info("index of nearest rows is tuned for vectors", extra=name._asdict() | told)

    def want(self, servable: Servable, table: SearchedTable, metric: Metric) -> None:
        """Starts to load or build a table's nearest-row index, unless an earlier call for this index has done so."""
        if not self._is_wanted(servable, table):
            return
        name = IndexName(servable.name, servable.version, table.info.name, metric)
        with self._lock:
            kept = self._kept.setdefault(servable.files, {})
            if name in kept or self._is_closed:
                return
            self._thread = self._thread or low_priority_thread("row-index")
            kept[name] = self._thread.submit(self._built, name, id(servable.files), table.info.vocabulary_size)

    def all(self) -> Mapping[IndexName, RowIndex]:
        with self._lock:
            futures = [item for kept in list(self._kept.values()) for item in kept.items()]
        done = {name: future.result() for name, future in futures if future.done() and not future.cancelled()}
        return {name: index for name, index in done.items() if index is not None}

    def close(self) -> None:
        """Ends the thread that builds nearest-row indexes, which gives up an unfinished index before its next block."""
        with self._lock:
            self._is_closed = True
            if self._thread is not None:
                self._thread.shutdown(wait=False, cancel_futures=True)

    def _is_wanted(self, servable: Servable, table: SearchedTable) -> bool:
        is_large = 0 < self._least_rows <= table.info.vocabulary_size <= MAX_ROWS
        return self._build is not None and is_large and table.info.name not in servable.remote_tables

    def _built(self, name: IndexName, files: int, num_rows: int) -> RowIndex | None:
        leased = self._leased(name, files)
        assert self._build is not None
        extra = name._asdict()
        try:
            kept = None if self._files is None else self._files.load(name, num_rows)
            if kept is not None:
                recall = round(kept.recall or 0.0, 4)
                logger.info("index of nearest rows is loaded", extra=extra | {"recall": recall})
                return kept
            index = self._build(leased.read, leased.search, leased.go_on, num_rows, name.metric)
            if index is not None and self._files is not None:
                # changed_rows() is called after the build, so the index has the values of the table's file for all rows
                # that are not in `changed`.
                with leased.held() as table:
                    changed = table.changed_rows()
                self._files.keep(name, index, changed)
        except ServiceError as error:
            logger.info("index of nearest rows is given up", extra=extra | {"reason": str(error)})
            return None
        except Exception:
            # A failed build is only logged, because a search without an index compares all rows.
            logger.exception("index of nearest rows could not be built", extra=extra)
            return None
        if index is None:
            logger.info("table is searched without an index: too many lists would have to be read", extra=extra)
            return None
        found = {"recall": round(index.recall or 0.0, 4), "lists": index.num_lists, "lists_read": index.probes}
        logger.info("index of nearest rows is built", extra=extra | found | {"seconds": round(index.seconds, 3)})
        return index

    def _leased(self, name: IndexName, files: int) -> _Leased:
        return _Leased(name, files, self._lease, lambda: self._is_closed)


class _Leased:
    """A table that is read and searched under leases of their own, so that its version can be unloaded in between.

    Args:
      files: id of the version's files. is_closed: says whether the server ends.
    """

    def __init__(self, name: IndexName, files: int, lease: LeaseVersion, is_closed: Callable[[], bool]) -> None:
        self._name = name
        self._files = files
        self._lease = lease
        self._is_closed = is_closed

    def go_on(self) -> None:
        if self._is_closed():
            raise VersionNotFound("The server ends.")

    @contextmanager
    def held(self) -> Iterator[SearchedTable]:
        """Holds a lease within a `with` block; raises VersionNotFound if the version is gone."""
        self.go_on()
        with self._lease(ModelRef(self._name.model, version=self._name.version)) as servable:
            if id(servable.files) != self._files:
                raise VersionNotFound("The version was loaded anew.")
            yield servable.tables[self._name.table]

    def read(self, ids: Array) -> Array:
        with self.held() as table:
            return table.rows(ids)

    def search(self, wanted: RowSearch) -> Nearest:
        with self.held() as table:
            return table.nearest(wanted)
