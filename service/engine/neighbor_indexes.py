"""Keeps nearest-row indexes of tables, with which searches read fewer rows; a low-priority thread builds them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from typing import NamedTuple, Protocol
from weakref import WeakKeyDictionary

from service.engine.low_priority import low_priority_thread
from service.engine.neighbors import Metric, Nearest, RowIndex, RowSearch, SearchedTable
from service.engine.servable import Files, Servable
from service.errors import ServiceError, VersionNotFound
from service.types import Array, ModelRef

logger = logging.getLogger(__name__)

# A table with more rows gets no index for nearest rows: building the index would take hours, and 8 bytes of memory for
# each row.
MAX_ROWS = 100_000_000

# Type of a function that builds a table's nearest-row index, as tables.row_index.build_index. Arguments: reads rows
# by ids; compares all rows; raises if the index is not wanted any more; number of rows; metric.
BuildIndex = Callable[
    [Callable[[Array], Array], Callable[[RowSearch], Nearest], Callable[[], None], int, Metric], "RowIndex | None"
]
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
        ...

    def keep(self, name: IndexName, index: RowIndex, changed: Array) -> None:
        """Writes a table's nearest-row index to a file, or logs why the file is not written.

        Args:
          changed: [N] int64, ids of the rows whose values differ from the table's file.
        """
        ...


class Indexing(NamedTuple):
    """How nearest-row indexes are built. files: keeps them over a restart; None: the server builds each anew."""

    build: BuildIndex
    files: IndexFiles | None = None


class NeighborIndexes:
    """The nearest-row indexes of all large tables that were searched. Concurrency: any thread.

    An index lives as long as the files of its version, so another version never uses it; deltas keep the files.
    """

    def __init__(self, indexing: Indexing | None, lease: LeaseVersion, least_rows: int) -> None:
        """Indexes only tables of at least `least_rows` rows; no table if least_rows is 0 or indexing is None."""
        self._build = None if indexing is None else indexing.build
        self._files = None if indexing is None else indexing.files
        self._lease = lease
        self._least_rows = least_rows
        self._lock = threading.Lock()
        self._thread: ThreadPoolExecutor | None = None
        self._is_closed = False
        self._kept: WeakKeyDictionary[Files, dict[IndexName, Future[RowIndex | None]]] = WeakKeyDictionary()

    def of(self, servable: Servable, table: SearchedTable, metric: Metric) -> RowIndex | None:
        """Returns a table's nearest-row index for a metric; None if there is none, or if it is not built yet."""
        name = IndexName(servable.name, servable.version, table.info.name, metric)
        future = self._kept.get(servable.files, {}).get(name) if self._is_wanted(servable, table) else None
        return future.result() if future is not None and future.done() and not future.cancelled() else None

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
        """Returns all nearest-row indexes whose build is complete, by name."""
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
        # Each block of rows takes a lease of its own, so that a version can be unloaded while its index is built.
        def go_on() -> None:
            if self._is_closed:
                raise VersionNotFound("The server ends.")

        @contextmanager
        def held() -> Iterator[SearchedTable]:
            go_on()
            with self._lease(ModelRef(name.model, version=name.version)) as servable:
                if id(servable.files) != files:
                    raise VersionNotFound("The version was loaded anew.")
                yield servable.tables[name.table]

        def read(ids: Array) -> Array:
            with held() as table:
                return table.rows(ids)

        def search(wanted: RowSearch) -> Nearest:
            with held() as table:
                return table.nearest(wanted)

        assert self._build is not None
        extra = name._asdict()
        try:
            kept = None if self._files is None else self._files.load(name, num_rows)
            if kept is not None:
                logger.info("index of nearest rows is loaded", extra=extra | {"recall": round(kept.recall, 4)})
                return kept
            index = self._build(read, search, go_on, num_rows, name.metric)
            if index is not None and self._files is not None:
                # changed_rows() is called after the build, so the index has the values of the table's file for all rows
                # that are not in `changed`.
                with held() as table:
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
        found = {"recall": round(index.recall, 4), "lists": index.num_lists, "lists_read": index.probes}
        logger.info("index of nearest rows is built", extra=extra | found | {"seconds": round(index.seconds, 3)})
        return index
