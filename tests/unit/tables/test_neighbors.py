"""Compares the search for nearest rows with numpy in float64, for all dtypes and metrics, and with numbers by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from service.engine.neighbors import METRICS, Metric, RowSearch
from service.errors import DeadlineExceeded, Unimplemented
from service.tables.remote_table import RemoteTable
from service.tables.table import MappedTable
from service.types import Array, TableInfo
from tests.stored_tables import DTYPES, store

NATIVE = pytest.importorskip("service._native", reason="the native core is not built").tables
NONE = np.empty(0, np.int64)


def search(queries: Any, k: int, metric: Metric = "dot", **more: Any) -> RowSearch:
    """Returns a RowSearch of all rows of a table, on one thread."""
    vectors = np.asarray(queries, np.float32)
    defaults: dict[str, Any] = {"own": np.full(len(vectors), -1), "allowed": None, "denied": NONE, "seconds": 20.0}
    return RowSearch(**{"queries": vectors, "k": k, "metric": metric, "threads": 1} | defaults | more)


def table(numbers: Any, dtype: str = "float32") -> MappedTable:
    """Returns a mapped table of these numbers."""
    return store(np.asarray(numbers, np.float32), dtype).mapped


def slow_scores(numbers: Array, queries: Array, metric: Metric) -> Array:
    """Returns [Q, V] scores in float64, by the definitions."""
    rows, vectors = numbers.astype(np.float64), queries.astype(np.float64)
    if metric == "l2":
        return np.square(rows[None] - vectors[:, None]).sum(axis=2)
    products = vectors @ rows.T
    if metric == "dot":
        return products
    lengths = np.linalg.norm(vectors, axis=1)[:, None] * np.linalg.norm(rows, axis=1)[None]
    return np.divide(products, lengths, out=np.zeros_like(products), where=lengths > 0)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [1, 8, 13, 64])
def test_neighbors_are_numpys(metric: Metric, dtype: str, dim: int) -> None:
    random = np.random.default_rng(dim)
    stored = store(random.normal(size=(5000, dim)).astype(np.float32), dtype)
    queries = random.normal(size=(7, dim)).astype(np.float32)
    ids, scores = np.empty((7, 20), np.int64), np.empty((7, 20), np.float32)
    number = METRICS.index(metric)
    own = np.arange(7)
    denied = np.arange(100, 2000)
    assert NATIVE.neighbors(*stored.place, queries, own, number, None, denied, 2, 20.0, ids, scores)
    expected = slow_scores(stored.numbers, queries, metric)
    sign = 1 if metric == "l2" else -1
    for query in range(7):
        allowed = np.setdiff1d(np.arange(5000), [*denied, query])
        best = allowed[np.argsort(sign * expected[query, allowed], kind="stable")][:20]
        # Scores are compared, not rows: two rows whose float32 scores differ by a rounding may swap.
        np.testing.assert_allclose(scores[query], expected[query, best], rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(expected[query, ids[query]], expected[query, best], rtol=1e-4, atol=1e-4)
        assert len(set(ids[query])) == 20 and set(ids[query]) <= set(allowed)


@pytest.mark.parametrize("dtype", [*DTYPES, "float64"])
@pytest.mark.parametrize(
    ("metric", "ids", "scores"),
    [
        # Rows 0 and 3 are equal, so the smaller id precedes the larger one.
        ("dot", [2, 0, 3, 1], [35, 28, 28, 7]),
        ("l2", [0, 3, 2, 1], [10, 10, 45, 52]),
    ],
)
def test_small_integers_by_hand(dtype: str, metric: Metric, ids: list[int], scores: list[float]) -> None:
    rows = np.array([[7, 0], [0, 7], [7, 7], [7, 0]], np.float32)
    if dtype == "float64":
        info = TableInfo("t", 4, 2, "float64", 64, ())
        found = MappedTable(info, rows.astype(np.float64)).nearest(search([[4, 1]], 9, metric))
    else:
        found = table(rows, dtype).nearest(search([[4, 1]], 9, metric))
    assert found.ids.tolist() == [[*ids, -1, -1, -1, -1, -1]]
    np.testing.assert_allclose(found.scores[0, :4], scores, rtol=1e-6)
    assert np.isnan(found.scores[0, 4:]).all()


def test_a_row_is_left_out_of_its_own_neighbors() -> None:
    rows = table([[1, 0], [2, 0], [3, 0]])
    assert rows.nearest(search([[1, 0], [1, 0]], 2, own=np.array([2, -1]))).ids.tolist() == [[1, 0], [2, 1]]


def test_only_allowed_rows_are_neighbors_and_denied_ones_are_not() -> None:
    rows = table([[float(i), 1.0] for i in range(100)])
    allowed = search([[1, 0]], 3, allowed=np.array([3, 5, 90]))
    assert rows.nearest(allowed).ids.tolist() == [[90, 5, 3]]
    denied = search([[1, 0]], 3, denied=np.array([98, 99]))
    assert rows.nearest(denied).ids.tolist() == [[97, 96, 95]]
    nothing = search([[1, 0]], 2, allowed=NONE)
    assert rows.nearest(nothing).ids.tolist() == [[-1, -1]]


@pytest.mark.parametrize("metric", METRICS)
def test_rows_with_nan_are_no_neighbors(metric: Metric) -> None:
    stored = store(np.array([[np.nan, 1], [1, 1], [1, np.nan]], np.float32))
    ids, scores = np.empty((1, 3), np.int64), np.empty((1, 3), np.float32)
    queries, own = np.ones((1, 2), np.float32), np.array([-1])
    number = METRICS.index(metric)
    assert NATIVE.neighbors(*stored.place, queries, own, number, None, NONE, 1, 20.0, ids, scores)
    assert ids.tolist() == [[1, -1, -1]]


def test_a_row_of_zeros_has_the_cosine_0() -> None:
    stored = store(np.array([[0, 0], [3, 4], [-3, -4]], np.float32))
    ids, scores = np.empty((2, 3), np.int64), np.empty((2, 3), np.float32)
    queries = np.array([[3, 4], [0, 0]], np.float32)
    assert NATIVE.neighbors(*stored.place, queries, np.array([-1, -1]), 1, None, NONE, 1, 20.0, ids, scores)
    assert ids.tolist() == [[1, 0, 2], [0, 1, 2]]
    np.testing.assert_allclose(scores, [[1, 0, -1], [0, 0, 0]], atol=1e-6)


def test_an_empty_table_has_no_neighbors() -> None:
    ids, scores = np.empty((1, 2), np.int64), np.empty((1, 2), np.float32)
    none = np.empty(0, np.uint8)
    place = (0, none, none, 0, 2)
    queries = np.ones((1, 2), np.float32)
    assert NATIVE.neighbors(*place, queries, np.array([-1]), 0, None, NONE, 1, 20.0, ids, scores)
    assert ids.tolist() == [[-1, -1]]


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_equal_scores_are_ordered_by_id_whatever_the_number_of_threads(threads: int) -> None:
    rows = table(np.arange(200_000)[:, None] % 3)
    found = rows.nearest(search([[1], [-1]], 4, own=np.array([5, -1]), denied=np.array([2, 8]), threads=threads))
    assert found.ids.tolist() == [[11, 14, 17, 20], [0, 3, 6, 9]]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_search_without_time_is_given_up(dtype: str) -> None:
    info = TableInfo("t", 4, 2, dtype, 64, ())
    with pytest.raises(DeadlineExceeded, match='search in table "t" did not end in time'):
        MappedTable(info, np.ones((4, 2), dtype)).nearest(search([[1, 1]], 1, seconds=0.0))


def test_chunks_of_a_float64_table_are_searched_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.tables.table._CHUNK_ROWS", 7)
    rows = np.random.default_rng(4).integers(-3, 4, (40, 3)).astype(np.float64)
    rows[5] = np.nan
    wide = MappedTable(TableInfo("t", 40, 3, "float64", rows.nbytes, ()), rows)
    queries, own = rows[[0, 8, 39]].astype(np.float32), np.array([0, 8, -1])
    for metric in METRICS:
        for allowed in (None, np.array([1, 6, 7, 8, 20, 39]), NONE):
            asked = search(queries, 9, metric, own=own, allowed=allowed, denied=np.array([2, 6, 30]))
            found, wanted = wide.nearest(asked), table(rows).nearest(asked)
            assert found.ids.tolist() == wanted.ids.tolist()
            np.testing.assert_array_equal(found.scores, wanted.scores)


def test_a_remote_table_can_not_be_searched() -> None:
    remote = object.__new__(RemoteTable)
    remote.info = TableInfo("far", 4, 2, "float32", 32, ())
    with pytest.raises(Unimplemented, match='rows of table "far" lie in a cluster'):
        remote.nearest(search([[1, 1]], 1))


def test_the_kernel_refuses_arrays_that_do_not_fit() -> None:
    stored = store(np.ones((4, 2), np.float32))
    ids, scores = np.empty((1, 2), np.int64), np.empty((1, 2), np.float32)
    queries, own = np.ones((1, 2), np.float32), np.array([-1])
    for arguments in (
        (np.ones((1, 3), np.float32), own, 0, None, NONE, 1, 1.0, ids, scores),
        (queries, np.array([-1, -1]), 0, None, NONE, 1, 1.0, ids, scores),
        (queries, own, 0, np.array([4]), NONE, 1, 1.0, ids, scores),
        (queries, own, 3, None, NONE, 1, 1.0, ids, scores),
        (queries, own, 0, None, NONE, 1, 1.0, ids, np.empty((1, 3), np.float32)),
    ):
        with pytest.raises(ValueError, match=r"do not fit|there is no metric"):
            NATIVE.neighbors(*stored.place, *arguments)
