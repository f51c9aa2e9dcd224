"""Projects rows of a table on two dimensions for a map of the table, and keeps the maps that were computed.

Source: N. Halko, P. G. Martinsson, J. A. Tropp: Finding structure with randomness, SIAM Review 53 (2011), algorithm 4.4
(randomized subspace iteration), for the principal components of centred rows.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from contextvars import copy_context
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from service.engine.low_priority import low_priority_thread
from service.errors import Overloaded, ServiceError
from service.types import Array

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
        """Ends the thread that computes maps of tables, after the map that it is computing."""
        self._thread.shutdown(wait=False, cancel_futures=True)
