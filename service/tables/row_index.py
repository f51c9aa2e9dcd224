"""Builds an index of a table's rows, which names the rows that may be nearest to a query without reading all rows.

The rows are put into lists, each around one centre. A search reads only the lists whose centres are nearest to its
query. The index holds row numbers, no rows: the caller compares the rows of the table itself.

Source: J. Sivic, A. Zisserman: Video Google, ICCV 2003 (inverted lists); B. Neyshabur, N. Srebro: On symmetric and
asymmetric LSHs for inner product search, ICML 2015 (rows of one length for the dot product).

The file of an index is little-endian: MAGIC, the length of a JSON header as uint32, the header, and the arrays centres
[L, E] float32, starts [L + 1] int64, members [V] int32, loose [N] int32; then the masked CRC-32C of all bytes before it
as uint32.
"""

from __future__ import annotations

import copy
import json
import struct
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from service.artifact.hashes import masked_of
from service.tables.table import MappedTable
from service.types import Array, TableInfo
from service.versions.neighbors import Metric, Nearest, RowSearch

# The share of the true ten nearest rows that sampled searches with an index must find together; the number of lists
# that a search reads is doubled until they do.
RECALL = 0.95
RECALL_K = 10
# A nearest-row index is not built if searches would have to read more than this share of its lists.
_MAX_SHARE = 0.25
_MAX_LISTS = 8192
# The lists' centres are computed from this many sampled rows for each list of the index, and by this many iterations of
# Lloyd's algorithm (k-means).
_SAMPLED_ROWS, _ITERATIONS = 32, 6
# Number of a table's rows (a block) that are read at a time for its index; the version may be unloaded between blocks.
_BLOCK_ROWS = 4096
_NUM_QUERIES = 256
_SORTED_ROWS = 1 << 20
# Number of rows that one call compares with all sampled queries, to find their true nearest rows; a call takes some
# seconds at most.
_COMPARED_ROWS = 1 << 18
# Longest time in seconds of one comparison of rows with queries while a nearest-row index is built.
_PATIENCE_S = 600.0
_NO_IDS = np.empty(0, np.int64)

# Type of a function that reads a table's rows: [N] int64 ids -> [N, D] float32.
Read = Callable[[Array], Array]
# Type of a function that raises a ServiceError if the index is not wanted any more, to end the building of the index.
GoOn = Callable[[], None]


class Lists(NamedTuple):
    """The arrays and numbers of a nearest-row index, as its file keeps them.

    centres: [L, E] float32. starts: [L + 1] int64. members: [V] int32. loose: [N] integers, rows that searches always
    compare. longest: squared length of the longest row, for the dot product. probes, recall, seconds: as in RowLists.
    """

    metric: Metric
    centres: Array
    starts: Array
    members: Array
    loose: Array
    longest: float
    probes: int
    recall: float
    seconds: float


class RowLists:
    """A nearest-row index: lists of near rows, each with a centre; implements versions.neighbors.RowIndex.

    Concurrency: any thread.
    recall: the share of the ten nearest rows that searches find, measured with queries like those that the index was
      tuned for: rows of the table, or the vectors of tune_index(). None: not measured.
    num_lists, probes: how many lists there are, and how many of them a search reads.
    seconds: how long it took to build. nbytes: its memory.
    """

    def __init__(self, space: _Space, centres: Array, members: Array, starts: Array) -> None:
        """Makes an index whose list i has the row numbers members[starts[i] : starts[i + 1]], int32, ascending."""
        self._space = space
        self._vectors = centres
        self._centres = _table_of(centres)
        self._members = members
        self._starts = starts
        self._loose = members[:0]
        self.num_lists = len(centres)
        self.nbytes = centres.nbytes + members.nbytes + starts.nbytes
        self.probes = 1
        self.recall: float | None = 0.0
        self.seconds = 0.0

    def widened(self, rank: int) -> RowLists | None:
        """Returns this index for searches of the `rank` nearest rows, of which more lists are read, in proportion.

        None if they would have to read too many lists. The recall is not measured for a rank above RECALL_K.
        """
        if rank <= RECALL_K:
            return self
        found = copy.copy(self)
        found.probes, found.recall = self.probes * -(-rank // RECALL_K), None
        return found if found.probes <= self.num_lists * _MAX_SHARE else None

    @staticmethod
    def of(lists: Lists) -> RowLists:
        index = RowLists(_Space(lists.metric, lists.longest), lists.centres, lists.members, lists.starts)
        index._loose = lists.loose
        index.probes, index.recall, index.seconds = lists.probes, lists.recall, lists.seconds
        return index

    def lists(self) -> Lists:
        parts = self._vectors, self._starts, self._members, self._loose
        recall = self.recall or 0.0
        return Lists(self._space.wanted, *parts, self._space.longest, self.probes, recall, self.seconds)

    def candidates(self, queries: Array) -> list[Array]:
        """Returns, for each of [Q, D] float32 queries, the int64 ids of the rows to compare with it, ascending."""
        found = _search(self._centres, self._space.queries(queries), self.probes, self._space.metric).ids
        return [self._rows(lists[lists >= 0]) for lists in found]

    def _rows(self, lists: Array) -> Array:
        parts = [self._members[self._starts[one] : self._starts[one + 1]] for one in lists.tolist()]
        rows = np.concatenate(parts) if parts else self._members[:0]
        rows = np.union1d(rows, self._loose) if self._loose.size else np.sort(rows)
        return rows.astype(np.int64)


def build_index(
    read: Read, search: Callable[[RowSearch], Nearest], go_on: GoOn, num_rows: int, metric: Metric
) -> RowLists | None:
    """Builds a nearest-row index of a table; returns None if a search would have to read too many of its lists.

    Args:
      read: reads rows of the table. search: compares rows of the table, to measure the recall. A call of either takes
        seconds at most.
      go_on: called every few milliseconds to seconds. num_rows: V of the table.
    """
    started_s = time.monotonic()
    random = np.random.default_rng(0)
    count = int(min(max(4 * num_rows**0.5, 16), _MAX_LISTS))
    space = _Space.of(read, num_rows, metric)
    sampled = min(num_rows, count * _SAMPLED_ROWS)
    ids = np.sort(random.choice(num_rows, sampled, replace=False, shuffle=False)).astype(np.int64)
    sample = np.concatenate([space.rows(read(block)) for block in _blocks(ids)])
    centres = _centres(sample, count, random, go_on)
    del sample
    table = _table_of(centres)
    lists = np.empty(num_rows, np.int32)
    for block in _blocks(np.arange(num_rows, dtype=np.int64)):
        lists[block] = _nearest_centre(table, space.rows(read(block)), go_on)
    index = RowLists(space, centres, *_members(lists, count))
    del lists
    own = np.sort(random.choice(num_rows, min(_NUM_QUERIES, num_rows), replace=False)).astype(np.int64)
    queries = read(own)
    true = _true_neighbors(_row_search(queries, own, RECALL_K, metric), search, num_rows)
    has_recall = _choose_probes(index, queries, true)
    index.seconds = time.monotonic() - started_s
    return index if has_recall else None


def tune_index(
    index: RowLists, search: Callable[[RowSearch], Nearest], queries: Array, num_rows: int
) -> RowLists | None:
    """Returns an index that reads as many lists as the given [Q, D] float32 queries need for RECALL.

    Queries unlike the rows, such as users against films, need more lists than the rows themselves.

    Returns:
      None if a search would have to read too many lists.
    """
    none = np.full(len(queries), -1, np.int64)
    true = _true_neighbors(_row_search(queries, none, RECALL_K, index.lists().metric), search, num_rows)
    tuned = copy.copy(index)
    tuned.probes = 1
    return tuned if _choose_probes(tuned, queries, true) else None


def _members(lists: Array, count: int) -> tuple[Array, Array]:
    """Returns the arrays `members` and `starts` of RowLists; lists: [V], the number of the list that each row is in.

    Blocks are sorted one after another, because a sort of all rows would need 8 more bytes for each.
    """
    starts = np.concatenate([[0], np.cumsum(np.bincount(lists, minlength=count))]).astype(np.int64)
    members = np.empty(len(lists), np.int32)
    free = starts[:-1].copy()
    for at in range(0, len(lists), _SORTED_ROWS):
        block = lists[at : at + _SORTED_ROWS]
        # The sort of rows by list must be stable, because each list of the nearest-row index has its rows ascending.
        order = np.argsort(block, kind="stable")
        ordered, sizes = block[order], np.bincount(block, minlength=count)
        firsts = np.cumsum(sizes) - sizes
        members[free[ordered] + np.arange(len(block)) - firsts[ordered]] = at + order
        free += sizes
    return members, starts


def _true_neighbors(wanted: RowSearch, search: Callable[[RowSearch], Nearest], num_rows: int) -> list[set[int]]:
    best = Nearest(np.empty((len(wanted.queries), 0), np.int64), np.empty((len(wanted.queries), 0), np.float32))
    for at in range(0, num_rows, _COMPARED_ROWS):
        part = np.arange(at, min(at + _COMPARED_ROWS, num_rows), dtype=np.int64)
        found = search(replace(wanted, allowed=part))
        ids, scores = np.hstack([best.ids, found.ids]), np.hstack([best.scores, found.scores])
        # A search's result for a query with fewer than k rows is filled with the score NaN, which sorts last.
        order = np.argsort(scores if wanted.metric == "l2" else -scores, axis=1, kind="stable")[:, : wanted.k]
        best = Nearest(np.take_along_axis(ids, order, 1), np.take_along_axis(scores, order, 1))
    return [set(row[row >= 0].tolist()) for row in best.ids]


def _choose_probes(index: RowLists, queries: Array, true: list[set[int]]) -> bool:
    """Doubles the number of lists that a search reads until the recall suffices; returns False if that is too many.

    true: the ids of the nearest rows of each query.
    """
    total = sum(len(one) for one in true)
    while index.probes <= index.num_lists * _MAX_SHARE:
        # A search compares its queries exactly with all rows of the lists that it reads. So it finds a true nearest row
        # if the row is in these lists.
        named = index.candidates(queries)
        hits = sum(len(one & set(rows.tolist())) for one, rows in zip(true, named, strict=True))
        index.recall = hits / total if total else 0.0
        if index.recall >= RECALL:
            return True
        index.probes *= 2
    return False


class _Space:
    """A vector space in which the row with the smallest Euclidean distance is the nearest by a search's metric.

    wanted: the metric of the searches. metric: how queries of this space are compared with centres.
    longest: squared length of the longest row; 0 where it is not needed.
    """

    def __init__(self, wanted: Metric, longest: float) -> None:
        self.wanted = wanted
        self.longest = longest
        self.metric: Metric = "l2" if wanted == "l2" else "dot"

    @staticmethod
    def of(read: Read, num_rows: int, metric: Metric) -> _Space:
        longest = 0.0
        if metric == "dot":
            for block in _blocks(np.arange(num_rows, dtype=np.int64)):
                longest = max(longest, float(_squares(_finite(read(block))).max()))
        return _Space(metric, longest)

    def rows(self, rows: Array) -> Array:
        """Converts [N, D] rows of the indexed table to [N, E] float32 vectors, to be compared with the list centres."""
        rows = _finite(rows)
        if self.wanted == "cosine":
            return _unit(rows)
        if self.wanted == "dot":
            rest = np.sqrt(np.maximum(self.longest - _squares(rows), 0.0)).astype(np.float32)
            return np.hstack([rows, rest[:, None]])
        return rows

    def queries(self, queries: Array) -> Array:
        """Converts [Q, D] queries of a search to [Q, E] float32 vectors, to be compared with the list centres."""
        if self.wanted == "cosine":
            return _unit(queries)
        if self.wanted == "dot":
            return np.hstack([queries, np.zeros((len(queries), 1), np.float32)])
        return queries


def _centres(sample: Array, count: int, random: np.random.Generator, go_on: GoOn) -> Array:
    """Returns `count` centres, [count, E], around which [N, E] vectors lie, by Lloyd's algorithm (k-means)."""
    centres = sample[random.choice(len(sample), count, replace=len(sample) < count)]
    for _ in range(_ITERATIONS):
        lists = _nearest_centre(_table_of(centres), sample, go_on)
        order = np.argsort(lists, kind="stable")
        sizes = np.bincount(lists, minlength=count)
        filled = np.flatnonzero(sizes)
        sums = np.add.reduceat(sample[order], np.concatenate([[0], np.cumsum(sizes[filled])[:-1]]), axis=0)
        # A centre of k-means that is nearest to no sampled vector is replaced by a random vector of the sample.
        centres = sample[random.choice(len(sample), count, replace=len(sample) < count)]
        centres[filled] = sums / sizes[filled, None]
    return np.ascontiguousarray(centres, np.float32)


def _nearest_centre(centres: MappedTable, vectors: Array, go_on: GoOn) -> Array:
    """Returns, for each of [N, E] vectors, the number of the centre that is nearest to it: [N] int32."""
    found = np.empty(len(vectors), np.int32)
    for at in range(0, len(vectors), _BLOCK_ROWS):
        go_on()
        # A row whose float32 distances to the centres overflow has no nearest centre, and is put into the first list.
        nearest = _search(centres, vectors[at : at + _BLOCK_ROWS], 1, "l2").ids[:, 0]
        found[at : at + _BLOCK_ROWS] = np.maximum(nearest, 0)
    return found


def _search(centres: MappedTable, queries: Array, k: int, metric: Metric) -> Nearest:
    queries = np.ascontiguousarray(queries, np.float32)
    return centres.nearest(_row_search(queries, np.full(len(queries), -1, np.int64), k, metric))


def _row_search(queries: Array, own: Array, k: int, metric: Metric) -> RowSearch:
    return RowSearch(queries, own, k, metric, None, _NO_IDS, _PATIENCE_S, 1)


def _table_of(vectors: Array) -> MappedTable:
    size, dim = int(vectors.shape[0]), int(vectors.shape[1])
    return MappedTable(TableInfo("centres", size, dim, dtype="float32", nbytes=vectors.nbytes, features=()), vectors)


def _blocks(ids: Array) -> list[Array]:
    return [ids[at : at + _BLOCK_ROWS] for at in range(0, len(ids), _BLOCK_ROWS)]


def _finite(rows: Array) -> Array:
    return np.nan_to_num(rows, nan=0.0, posinf=0.0, neginf=0.0)


def _squares(rows: Array) -> Array:
    squares: Array = np.square(rows, dtype=np.float64).sum(axis=1)
    return squares


def _unit(rows: Array) -> Array:
    lengths = np.sqrt(_squares(rows))[:, None]
    unit: Array = np.divide(rows, lengths, out=np.zeros_like(rows), where=lengths > 0)
    return unit.astype(np.float32, copy=False)


MAGIC = b"ROWINDEX"
# Number of the format of a nearest-row index's file; decode() refuses a file with another number.
FORMAT_VERSION = 1
_LENGTH = struct.Struct("<I")
_NUMBERS = ("longest", "probes", "recall", "seconds")


def encode(index: RowLists, changed: Array, identity: Mapping[str, Any]) -> bytes:
    """Encodes a nearest-row index as the bytes of a file.

    Args:
      changed: [N] int64, rows that differed from the table's file when the index was built; searches with the decoded
        index compare them always. identity: JSON values that name the table, its bytes and the metric.
    """
    lists = index.lists()
    loose = np.union1d(lists.loose, changed)
    sizes = {"lists": len(lists.centres), "width": lists.centres.shape[1], "rows": len(lists.members)}
    numbers = {name: getattr(lists, name) for name in _NUMBERS}
    fields = {"format": FORMAT_VERSION, "identity": dict(identity), **sizes, "loose": len(loose), **numbers}
    header = json.dumps(fields, allow_nan=False).encode()
    parts = (lists.centres.astype("<f4"), lists.starts.astype("<i8"), lists.members.astype("<i4"), loose.astype("<i4"))
    data = b"".join([MAGIC, _LENGTH.pack(len(header)), header, *(part.tobytes() for part in parts)])
    return data + _LENGTH.pack(masked_of(data))


def decode(data: bytes, identity: Mapping[str, Any], num_rows: int) -> RowLists:
    """Decodes the bytes of a file to the nearest-row index of a table with num_rows rows.

    Raises:
      ValueError: the bytes are damaged, of another format, or the index of another table, as the text says.
    """
    start = len(MAGIC) + _LENGTH.size
    if data[: len(MAGIC)] != MAGIC or len(data) < start + _LENGTH.size:
        raise ValueError("it is no index of rows")
    if _LENGTH.unpack(data[-_LENGTH.size :])[0] != masked_of(data[: -_LENGTH.size]):
        raise ValueError("its checksum does not fit")
    end = start + _LENGTH.unpack_from(data, len(MAGIC))[0]
    try:
        fields = json.loads(data[start:end])
        if fields["format"] != FORMAT_VERSION:
            raise ValueError(f"it has format {fields['format']}, this server reads {FORMAT_VERSION}")
        if fields["identity"] != dict(identity) or fields["rows"] != num_rows:
            raise ValueError("it is the index of another table")
        count, width, loose = (int(fields[name]) for name in ("lists", "width", "loose"))
        if min(count, width, loose) < 0:
            raise ValueError("its size does not fit")
        shapes = (("<f4", (count, width)), ("<i8", (count + 1,)), ("<i4", (num_rows,)), ("<i4", (loose,)))
        arrays: list[Array] = []
        for dtype, shape in shapes:
            size = int(np.prod(shape)) * np.dtype(dtype).itemsize
            arrays.append(np.frombuffer(data[end : end + size], dtype).reshape(shape))
            end += size
        numbers = {name: fields[name] for name in _NUMBERS}
        centres, starts, members, extra = arrays
        lists = Lists(identity["metric"], centres, starts, members, extra, **numbers)
        if end != len(data) - _LENGTH.size:
            raise ValueError("its size does not fit")
        _check(lists)
    except (KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"its header is damaged: {error!r}") from error
    return RowLists.of(lists)


def _check(lists: Lists) -> None:
    # The arrays of an index's file are checked, because another program may have written the file: no search may read
    # beyond an array, or find a row twice.
    count, rows = len(lists.centres), len(lists.members)
    is_listed = np.zeros(rows, bool)
    inside = (lists.members >= 0) & (lists.members < rows)
    is_listed[lists.members[inside]] = True
    fits = (
        count > 0
        and lists.starts[0] == 0
        and lists.starts[-1] == rows
        and bool((np.diff(lists.starts) >= 0).all())
        and bool(is_listed.all())
        and bool(np.isfinite(lists.centres).all())
        and bool(((lists.loose >= 0) & (lists.loose < rows)).all())
        and isinstance(lists.probes, int)
        and 1 <= lists.probes <= count
        and 0 <= lists.recall <= 1
        and lists.longest >= 0
        and lists.seconds >= 0
    )
    if not fits:
        raise ValueError("its numbers do not fit together")
