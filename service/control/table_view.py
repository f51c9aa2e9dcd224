"""Shows a table to people: pages of rows, one row with its origin, and a map of all rows on two dimensions.

Source: N. Halko, P. G. Martinsson, J. A. Tropp: Finding structure with randomness, SIAM Review 53 (2011), algorithm 4.4
(randomized subspace iteration), for the principal components of centred rows.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import Future
from contextvars import copy_context
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from service.control.engine import Engine, ModelDescription
from service.errors import IdOutOfRange, InvalidRequest, Overloaded, ServiceError, TableNotFound
from service.types import Array, ModelRef, TableInfo, Vocabulary
from service.versions.deltas import RowOrigin
from service.versions.threads import low_priority_thread

# Maximum number of rows in one call of read_page(), which refuses a larger count.
MAX_PAGE_ROWS = 1000

Key = bytes | int


class Page(NamedTuple):
    """Consecutive rows of a table.

    total: V of the table. keys: for each row its key or None; empty if the table has no vocabulary. labels: the same of
    what people call the rows. norms: [N] float32.
    """

    version: int
    start: int
    total: int
    keys: list[Key | None]
    labels: list[str | None]
    norms: Array


class Row(NamedTuple):
    """One row of a table as the console shows it: its keys, its numbers and its origin.

    keys: feature -> the row's key in the feature's vocabulary, or None. label: what people call the row. is_known: the
    asked key is in the vocabulary, and did not lead to a row for unknown keys. values: [D] float32. delta: the one that
    wrote the row last; None: the row is as the version was saved.
    """

    version: int
    id: int
    keys: Mapping[str, Key | None]
    label: str | None
    is_known: bool
    values: Array
    norm: float
    delta: RowOrigin | None


def read_page(engine: Engine, ref: ModelRef, table: str, start: int, count: int) -> Page:
    """Reads consecutive rows of a table; raises InvalidRequest for a wrong range, else as Engine.table_rows does."""
    if start < 0 or not 0 < count <= MAX_PAGE_ROWS:
        raise InvalidRequest(f"start must be 0 or more, and count from 1 to {MAX_PAGE_ROWS}.")
    ref, info, vocabularies = _found(engine, ref, table)
    ids = np.arange(min(start, info.vocabulary_size), min(start + count, info.vocabulary_size), dtype=np.int64)
    found = engine.table_rows(ref, table, ids)
    vocabulary = next(iter(vocabularies.values()), None)
    keys = [] if vocabulary is None else [vocabulary.key_of(int(one)) for one in ids]
    labels = engine.labels(ref, table, ids)
    return Page(found.version, start, info.vocabulary_size, keys, labels, _norms(found.rows).astype(np.float32))


def read_row(engine: Engine, ref: ModelRef, table: str, row: int | None, key: str, feature: str = "") -> Row:
    """Reads one row by its id, or by a key of a feature's vocabulary; raises as Engine.table_rows does.

    Args:
      row: the id; None: the key counts.
      feature: the feature whose vocabulary has the key; "": the table's first feature with a vocabulary.

    Raises:
      InvalidRequest: the table has no such vocabulary, or the key is no integer.
      IdOutOfRange: the key is unknown, and the vocabulary has no row for unknown keys.
    """
    ref, info, vocabularies = _found(engine, ref, table)
    is_known = True
    if row is None:
        name = feature or next(iter(vocabularies), "")
        if name not in vocabularies:
            if not vocabularies:
                raise InvalidRequest(f'Table "{table}" has no vocabulary: give id in place of key.')
            known = ", ".join(vocabularies)
            raise InvalidRequest(f'Table "{table}" has no vocabulary of feature "{name}". Features with one: {known}.')
        row, is_known = _row_of(vocabularies[name], key)
    ids = np.array([row], np.int64)
    found = engine.table_rows(ref, table, ids)
    keys = {name: one.key_of(row) for name, one in vocabularies.items()}
    origin = engine.row_origin(ref, table, row)
    label = next(iter(engine.labels(ref, table, ids)), None)
    return Row(found.version, row, keys, label, is_known, found.rows[0], float(_norms(found.rows)[0]), origin)


class FoundRow(NamedTuple):
    """A row that a person searched for. by: which of its names the text matched, such as "row id" or "label"."""

    id: int
    label: str | None
    by: str


def find_rows(engine: Engine, ref: ModelRef, table: str, text: str, most: int) -> list[FoundRow]:
    """Finds the rows whose id or key a text is, or whose label contains it; raises as Engine.table_rows does.

    If there are none, returns the rows that lookups read for unknown keys.
    """
    ref, info, vocabularies = _found(engine, ref, table)
    named: dict[int, str] = {}
    unknown: dict[int, str] = {}
    if text.isascii() and text.isdigit() and len(text) < 19 and int(text) < info.vocabulary_size:
        named[int(text)] = "row id"
    for feature, vocabulary in vocabularies.items():
        try:
            row, is_known = _row_of(vocabulary, text)
        except InvalidRequest:
            continue
        (named if is_known else unknown).setdefault(row, f"{'' if is_known else 'unknown '}key of {feature}")
    if engine.labels(ref, table, np.zeros(1, np.int64)):
        for row, _ in engine.find_labels(ref, table, text, most):
            named.setdefault(row, "label")
    found = list((named or unknown).items())[:most]
    labels = engine.labels(ref, table, np.array([row for row, _ in found], np.int64)) or [None] * len(found)
    return [FoundRow(row, label, by) for (row, by), label in zip(found, labels, strict=True)]


class Names(NamedTuple):
    """The names of some rows: the keys of each feature with a vocabulary, and the labels; empty without them."""

    keys: Mapping[str, list[Key | None]]
    labels: list[str | None]


def read_names(engine: Engine, ref: ModelRef, table: str, ids: Array) -> Names:
    ref, _, vocabularies = _found(engine, ref, table)
    rows = ids.tolist()
    keys = {feature: [vocabulary.key_of(row) for row in rows] for feature, vocabulary in vocabularies.items()}
    return Names(keys, engine.labels(ref, table, ids))


def _found(engine: Engine, ref: ModelRef, table: str) -> tuple[ModelRef, TableInfo, Mapping[str, Vocabulary]]:
    description = engine.describe(ref)
    # All further reads name the version that describe() found, so that all of them use one version, even if a newer
    # version becomes AVAILABLE in between.
    ref = ModelRef(ref.name, description.version)
    infos = {info.name: info for info in engine.tables(ref)}
    if table not in infos:
        raise TableNotFound(f'Model "{ref.name}" has no table "{table}". Tables: {", ".join(infos) or "none"}.')
    return ref, infos[table], vocabularies_of(description, infos[table])


def vocabularies_of(description: ModelDescription, info: TableInfo) -> Mapping[str, Vocabulary]:
    found: dict[str, Vocabulary] = {}
    for feature in info.features:
        for spec in description.signatures.values():
            names = spec.ragged.get(feature)
            tensor = spec.inputs.get(names.values if names else feature)
            if tensor is not None and tensor.vocabulary is not None:
                found[feature] = tensor.vocabulary
                break
    return found


def _row_of(vocabulary: Vocabulary, key: str) -> tuple[int, bool]:
    if vocabulary.key_dtype == "string":
        asked: Key = key.encode("utf-8", "replace")
        sent = np.array([asked], object)
    else:
        try:
            asked = int(key)
            sent = np.array([asked], np.int64)
        except (ValueError, OverflowError):
            raise InvalidRequest(f"The vocabulary has integer keys, got {key!r}.") from None
    row = int(vocabulary.ids_of(sent, "key")[0])
    if row < 0:
        raise IdOutOfRange(f"key {key!r} is not in the vocabulary, and lookups drop it.")
    return row, vocabulary.key_of(row) == asked


def _norms(rows: Array) -> Array:
    norms: Array = np.sqrt(np.square(rows, dtype=np.float64).sum(axis=1))
    return norms


# Maximum number of rows in a table's map (its picture in the console); of a larger table, a random sample is drawn.
MAX_POINTS = 100_000
# Maximum number of maps (pictures of a table's rows in the console) that are kept, and of maps that wait to be
# computed: each takes some MB.
MAX_MAPS = 8
# Maximum number of float32 numbers (16 MiB) in the rows from which the axes of a table's map are computed: a sample of
# the rows, if they have more.
_MAX_FIT_NUMBERS = 4 << 20
# Number of a table's rows that are read at a time for its map; between two reads the version may be unloaded.
_BLOCK_ROWS = 4096
_NUM_VECTORS, _NUM_ITERATIONS = 8, 24

# Type of a function that reads a table: takes [N] int64 ids, returns their [N, D] float32 rows.
Read = Callable[[Array], Array]
T = TypeVar("T")


class Projection(NamedTuple):
    """The points of a table's two-dimensional map, one for each row that is drawn.

    ids: [P] int64, ascending. places: [P, 2] float32. norms: [P] float32, Euclidean length of each row.
    explained: shares of the rows' variance along both axes; zeros if all rows are equal.
    """

    ids: Array
    places: Array
    norms: Array
    explained: tuple[float, float]


def project(read: Read, num_rows: int, *, max_points: int = MAX_POINTS) -> Projection:
    """Projects a table's rows on their two principal components; a row with NaN or infinity lies at the centre.

    Args:
      num_rows: V of the table; of a larger table than max_points a sample is read, the same each time.
    """
    random = np.random.default_rng(0)
    ids = _sampled(num_rows, max_points, random)
    dim = read(ids[:1]).shape[1]
    num_fit = max(min(len(ids), _MAX_FIT_NUMBERS // max(dim, 1)), 1)
    fit = ids if num_fit == len(ids) else np.sort(random.choice(ids, num_fit, replace=False))
    sample = np.concatenate([_finite(read(block)) for block in _blocks(fit)])
    mean = sample.mean(axis=0, dtype=np.float64).astype(np.float32)
    sample -= mean
    axes, explained = _components(sample, random)
    del sample
    places, norms = np.empty((len(ids), 2), np.float32), np.empty(len(ids), np.float32)
    at = 0
    for block in _blocks(ids):
        rows = read(block)
        norms[at : at + len(block)] = np.sqrt(np.square(rows, dtype=np.float64).sum(axis=1))
        is_finite = np.isfinite(rows).all(axis=1, keepdims=True)
        places[at : at + len(block)] = np.where(is_finite, (_finite(rows) - mean) @ axes.T, 0)
        at += len(block)
    return Projection(ids, places, norms, explained)


def ids_on_map(num_rows: int, *, max_points: int = MAX_POINTS) -> Array:
    """Returns the [P] int64 ids of the rows that project() places on a table's map, in the same order.

    >>> ids_on_map(3).tolist(), len(ids_on_map(10, max_points=4))
    ([0, 1, 2], 4)
    """
    return _sampled(num_rows, max_points, np.random.default_rng(0))


def _sampled(num_rows: int, max_points: int, random: np.random.Generator) -> Array:
    if num_rows <= max_points:
        return np.arange(num_rows, dtype=np.int64)
    return np.sort(random.choice(num_rows, max_points, replace=False, shuffle=False)).astype(np.int64)


def _components(centred: Array, random: np.random.Generator) -> tuple[Array, tuple[float, float]]:
    """Computes the [2, D] float32 axes of most variance of [N, D] rows, and the share of the variance along each."""
    dim = centred.shape[1]
    basis = random.standard_normal((dim, min(_NUM_VECTORS, dim))).astype(np.float32)
    for _ in range(_NUM_ITERATIONS):
        basis = np.linalg.qr(centred.T @ (centred @ basis))[0]
    small = centred @ basis
    _, lengths, turned = np.linalg.svd(small, full_matrices=False)
    axes = (turned @ basis.T)[:2]
    # Each axis gets the sign that makes its weight of largest absolute value positive, so that two computations draw
    # the same map.
    axes *= np.where(axes[np.arange(len(axes)), np.abs(axes).argmax(axis=1)] < 0, -1, 1)[:, None]
    total = float(np.square(centred, dtype=np.float64).sum())
    shares = [float(length) ** 2 / total if total else 0.0 for length in (*lengths[:2], 0.0, 0.0)]
    return np.vstack([axes, np.zeros((2, dim), np.float32)])[:2].astype(np.float32), (shares[0], shares[1])


def _blocks(ids: Array) -> list[Array]:
    return [ids[at : at + _BLOCK_ROWS] for at in range(0, len(ids), _BLOCK_ROWS)]


def _finite(rows: Array) -> Array:
    return np.nan_to_num(rows, nan=0.0, posinf=0.0, neginf=0.0)


class KeptMaps(Generic[T]):
    """A cache of two-dimensional maps of tables, which a low-priority thread computes one after the other.

    Concurrency: any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Key of a table's map -> (the object `of` from which the map was computed, the Future of the map); the most
        # recently used one is last.
        self._kept: dict[Hashable, tuple[object, Future[T]]] = {}
        self._thread = low_priority_thread("table-map")

    def get(self, key: Hashable, of: object, make: Callable[[], T]) -> T | None:
        """Returns the two-dimensional map of a table with the given key, or None while a thread computes it.

        The first call for a map starts the computation, with the context variables of its caller.

        Args:
          of: the object that the map is made of; another object of the same key replaces the map.

        Raises:
          Overloaded: MAX_MAPS maps wait already.
          ServiceError: the map could not be computed; the next call tries again.
        """
        with self._lock:
            kept_of, future = self._kept.pop(key, (None, None))
            if future is None or kept_of is not of:
                if sum(not one.done() for _, one in self._kept.values()) >= MAX_MAPS:
                    raise Overloaded(f"{MAX_MAPS} maps of tables are being computed; try again later.")
                future = self._thread.submit(copy_context().run, make)
            self._kept[key] = (of, future)
            done = [one for one, (_, kept) in self._kept.items() if kept.done() and one != key]
            for one in done[: max(len(self._kept) - MAX_MAPS, 0)]:
                del self._kept[one]
        if not future.done():
            return None
        try:
            return future.result()
        except ServiceError:
            with self._lock:
                self._kept.pop(key, None)
            raise

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)
