"""Defines the types of a search for the rows of a table that are nearest to some vectors, and of its answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, get_args

from service.types import Array, Table

# The signature that gRPC clients name for a search, and the name of searches in metrics.
SIGNATURE = "neighbors"
# Metrics of a search. dot, cosine: a larger score is nearer. l2, the squared Euclidean distance: a smaller score is
# nearer.
Metric = Literal["dot", "cosine", "l2"]
METRICS: tuple[Metric, ...] = get_args(Metric)
DEFAULT_K = 10
DEFAULT_METRIC: Metric = "dot"
# Most neighbours that a search may ask for, for each query.
MAX_K = 1000
# Most queries of a search.
MAX_QUERIES = 256


@dataclass(frozen=True, slots=True)
class NeighborLimits:
    """The limits that a server puts on searches for nearest rows.

    threads: searches that run at a time, and most threads of one search. index_rows: tables of at least this many rows
    get an index; 0: no table does.
    """

    threads: int = 1
    index_rows: int = 100_000


@dataclass(frozen=True, slots=True)
class Named:
    """Rows that a search request names. ids: [N] int64; keys: [N] vocabulary keys, object (bytes) or int64; or None."""

    ids: Array | None = None
    keys: Array | None = None

    @property
    def size(self) -> int:
        return sum(0 if one is None else int(one.shape[0]) for one in (self.ids, self.keys))

    @property
    def is_given(self) -> bool:
        return self.ids is not None or self.keys is not None


@dataclass(frozen=True, slots=True)
class NeighborQuery:
    """A request for the nearest rows of one table.

    rows: the rows whose neighbours are wanted; vectors: [Q, D] float32, or None; labels: labels of rows, or None. A
    request has one of the three.
    feature: the feature whose vocabulary has the keys; "" if the table has only one vocabulary.
    allowed: the only rows that may be neighbours, if it is given. denied: rows that may not be.
    exact: whether all rows must be compared, although the table has an index.
    """

    rows: Named = Named()
    vectors: Array | None = None
    labels: Sequence[str] | None = None
    k: int = DEFAULT_K
    metric: Metric = DEFAULT_METRIC
    feature: str = ""
    allowed: Named = Named()
    denied: Named = Named()
    include_self: bool = False
    exact: bool = False
    wants_labels: bool = False


@dataclass(frozen=True, slots=True)
class RowSearch:
    """The arguments of a search for nearest rows in one table.

    queries: [Q, D] float32. own: [Q] int64, the row that is no neighbour of a query; -1 for none.
    allowed: [N] int64, the only rows that may be neighbours; None: all. denied: [M] int64. Both ascend.
    seconds: time after which the search gives up. threads: most threads that share the rows.
    """

    queries: Array
    own: Array
    k: int
    metric: Metric
    allowed: Array | None
    denied: Array
    seconds: float
    threads: int


class Nearest(NamedTuple):
    """The nearest rows of each query, the nearest first.

    ids: [Q, k] int64, -1 after the last. scores: [Q, k] float32, NaN after the last.
    """

    ids: Array
    scores: Array


class NeighborAnswer(NamedTuple):
    """The answer to a search for nearest rows.

    ids, scores: as in Nearest. keys: [Q, k] object (bytes, int, or None for a row without a key); None: the table has
    no vocabulary, or several and the request names none.
    version: the model version of the table. rows_scanned: number of rows that the queries were compared with.
    recall: the measured share of the ten nearest rows that the table's index finds; None: all rows were compared, or
      the recall of such a search was not measured.
    labels: for each query the labels of the rows (None for a row without one); None: the request wants none.
    """

    ids: Array
    scores: Array
    keys: Array | None
    version: int
    rows_scanned: int
    recall: float | None = None
    labels: Sequence[Sequence[str | None]] | None = None


class RowIndex(Protocol):
    """An index that names the rows of a table that may be nearest to a query. Concurrency: any thread.

    recall: the share of the ten nearest rows that it names; None: not measured. seconds: the time to build it.
    num_lists, probes: lists of rows, and how many of them a search reads. nbytes: memory.
    """

    recall: float | None
    seconds: float
    num_lists: int
    probes: int
    nbytes: int

    def candidates(self, queries: Array) -> Sequence[Array]:
        """Returns, for each of [Q, D] float32 queries, the int64 ids of rows that may be nearest to it, ascending."""

    def widened(self, rank: int) -> RowIndex | None:
        """Returns an index for searches of the `rank` nearest rows; None if such a search compares all rows."""


class SearchedTable(Table, Protocol):
    def changed_rows(self) -> Array:
        """Returns the [N] int64 ids, ascending, of rows that deltas have changed since the version was loaded."""

    def nearest(self, search: RowSearch) -> Nearest:
        """Returns the nearest rows of each query.

        Raises:
          DeadlineExceeded: the search took too long.
          Unimplemented: this kind of table can not be searched.
        """


class TableKeys(Protocol):
    """The keys of one table's rows, from its vocabularies. Concurrency: any thread."""

    def ids_of(self, keys: Array, feature: str) -> Array:
        """Returns [N] int64 ids of [N] keys.

        Raises:
          InputMismatch: the feature has no vocabulary, or keys of another dtype.
          IdOutOfRange: a key is not in the vocabulary.
        """

    def keys_of(self, ids: Array, feature: str) -> Array | None:
        """Returns the keys of ids of any shape, as NeighborAnswer.keys; raises InputMismatch for an unknown feature."""
