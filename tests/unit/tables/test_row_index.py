"""The index agrees with numpy on the rows that it names, on how many of the nearest it misses, and on odd rows."""

from __future__ import annotations

import numpy as np
import pytest

from service.engine.neighbors import METRICS, Metric, Nearest, RowSearch
from service.errors import VersionNotFound
from service.tables import row_index
from service.tables.row_index import RECALL, RowLists, build_index, tune_index
from service.tables.table import MappedTable
from service.types import Array
from tests.stored_tables import store

K = 10


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes an index read the rows of these small tables in several blocks, the last of which is not full."""
    monkeypatch.setattr(row_index, "_BLOCK_ROWS", 1300)


def clustered(size: int, dim: int = 16) -> Array:
    """Returns [size, dim] rows around a hundred centres, of different lengths."""
    random = np.random.default_rng(size)
    rows = 2 * random.normal(size=(100, dim))[random.integers(0, 100, size)] + 0.5 * random.normal(size=(size, dim))
    return (rows * random.lognormal(0, 0.2, (size, 1))).astype(np.float32)


def built(table: MappedTable, metric: Metric = "l2") -> RowLists | None:
    """Builds the index of a table for a metric; None if the build is given up."""
    return build_index(table.rows, table.nearest, lambda: None, table.info.vocabulary_size, metric)


def true_neighbors(rows: Array, query: Array, metric: Metric) -> set[int]:
    """Returns the ids of the ten nearest rows, by the definitions, in float64."""
    wide, vector = rows.astype(np.float64), query.astype(np.float64)
    if metric == "l2":
        scores = np.square(wide - vector).sum(axis=1)
    else:
        lengths = np.linalg.norm(wide, axis=1) if metric == "cosine" else 1.0
        scores = -(wide @ vector) / lengths
    return set(np.argsort(scores)[:K].tolist())


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_an_index_names_nearly_all_of_the_nearest_rows_and_few_others(metric: Metric, dtype: str) -> None:
    stored = store(clustered(3_000), dtype)
    index = built(stored.mapped, metric)
    assert index is not None and RECALL <= index.recall <= 1
    random = np.random.default_rng(1)
    chosen = stored.numbers[random.integers(0, 3_000, 100)].astype(np.float32)
    queries = chosen + 0.1 * random.normal(size=chosen.shape).astype(np.float32)
    found = index.candidates(queries)
    hits = [
        len(true_neighbors(stored.numbers, query, metric) & set(ids.tolist()))
        for query, ids in zip(queries, found, strict=True)
    ]
    assert np.mean(hits) / K > 0.9
    assert all((np.diff(ids) > 0).all() for ids in found)
    assert np.mean([ids.size for ids in found]) < 3_000 / 4


def test_each_row_is_in_one_list(monkeypatch: pytest.MonkeyPatch) -> None:
    # A small limit, so that the lists are joined from several blocks of rows.
    monkeypatch.setattr(row_index, "_SORTED_ROWS", 300)
    index = built(store(clustered(2000), "float32").mapped)
    assert index is not None
    index.probes = index.num_lists
    (everything,) = index.candidates(np.zeros((1, 16), np.float32))
    assert np.array_equal(everything, np.arange(2000))
    assert index.num_lists == int(4 * 2000**0.5)
    # A list of the index has the rows for which its centre is the nearest, so one probe finds a row that is the query
    # itself.
    index.probes = 1
    rows = clustered(2000)
    (found,) = index.candidates(rows[[1321]])
    assert 1321 in found


@pytest.mark.parametrize("metric", ["dot", "l2"])
def test_recall_is_measured_with_a_part_of_the_rows_at_a_time(metric: Metric, monkeypatch: pytest.MonkeyPatch) -> None:
    table = store(clustered(2000), "float32").mapped
    whole = built(table, metric)
    sizes = []

    def search(wanted: RowSearch) -> Nearest:
        assert wanted.allowed is not None
        sizes.append(wanted.allowed.size)
        return table.nearest(wanted)

    # The last of the parts that are searched has 9 rows, fewer than the number of nearest rows.
    monkeypatch.setattr(row_index, "_COMPARED_ROWS", 181)
    index = build_index(table.rows, search, lambda: None, 2000, metric)
    assert sizes == [181] * 11 + [9]
    assert index is not None and whole is not None
    assert (index.recall, index.probes) == (whole.recall, whole.probes)


def test_rows_without_structure_get_no_index() -> None:
    rows = np.random.default_rng(3).normal(size=(3000, 128)).astype(np.float32)
    assert built(store(rows, "float32").mapped) is None


def test_rows_that_are_no_numbers_or_all_equal_do_no_harm() -> None:
    rows = clustered(2000)
    rows[7], rows[8, 3], rows[9] = np.nan, np.inf, 0
    for metric in METRICS:
        assert built(store(rows, "float32").mapped, metric) is not None
    equal = built(store(np.ones((2000, 4), np.float32), "float32").mapped)
    assert equal is None or equal.recall >= RECALL


def test_an_index_that_nobody_wants_any_more_is_given_up() -> None:
    table = store(clustered(2000), "float32").mapped

    def refuse() -> None:
        raise VersionNotFound("gone")

    with pytest.raises(VersionNotFound):
        build_index(table.rows, table.nearest, refuse, 2000, "l2")


def hits(rows: Array, index: RowLists, queries: Array, metric: Metric, k: int = K) -> float:
    """Returns the share of the k truly nearest rows of the queries that an index names."""
    found = index.candidates(queries)
    named = [len(nearest_of(rows, one, metric, k) & set(ids.tolist())) for one, ids in zip(queries, found, strict=True)]
    return float(np.mean(named)) / k


def nearest_of(rows: Array, query: Array, metric: Metric, k: int) -> set[int]:
    lengths = np.linalg.norm(rows, axis=1) if metric == "cosine" else 1.0
    scores = np.square(rows - query).sum(axis=1) if metric == "l2" else -(rows @ query) / lengths
    return set(np.argsort(scores)[:k].tolist())


def queries_of(kind: str, rows: Array, count: int, seed: int) -> Array:
    """Returns [count, D] queries: rows, near rows, means of rows, rows of another table, or random."""
    random = np.random.default_rng(seed)
    chosen = rows[random.integers(0, len(rows), (count, 5))]
    found = {
        "rows": chosen[:, 0],
        "near rows": chosen[:, 0] + 0.3 * random.normal(size=chosen[:, 0].shape),
        "midpoints": chosen[:, :2].mean(axis=1),
        "means of five": chosen.mean(axis=1),
        "another table": chosen[:, 0] @ np.linalg.qr(np.random.default_rng(9).normal(size=(rows.shape[1],) * 2))[0],
        "random": random.normal(size=chosen[:, 0].shape),
    }
    return found[kind].astype(np.float32)


KINDS = ("rows", "near rows", "midpoints", "means of five", "another table", "random")


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_recall_of_a_tuned_index_is_true_for_other_queries_of_its_kind(metric: Metric, kind: str) -> None:
    rows = clustered(3000)
    table = store(rows, "float32").mapped
    index = built(table, metric)
    assert index is not None
    before = index.probes, index.recall
    tuned = tune_index(index, table.nearest, queries_of(kind, rows, 200, 1), 3000)
    assert (index.probes, index.recall) == before
    if tuned is None:
        # So many lists would be needed that searches compare all rows.
        assert kind not in ("rows", "near rows")
        return
    assert tuned.recall is not None and tuned.recall >= RECALL
    assert hits(rows, tuned, queries_of(kind, rows, 200, 2), metric) > tuned.recall - 0.03


def test_the_recall_for_rows_is_untrue_for_queries_unlike_them() -> None:
    rows = clustered(3000)
    index = built(store(rows, "float32").mapped, "dot")
    assert index is not None and index.recall is not None
    assert hits(rows, index, queries_of("random", rows, 200, 2), "dot") < index.recall - 0.1


@pytest.mark.parametrize("metric", METRICS)
def test_an_index_is_widened_for_rows_that_a_filter_leaves_out(metric: Metric) -> None:
    rows = clustered(3000)
    index = built(store(rows, "float32").mapped, metric)
    assert index is not None and index.widened(K) is index and index.widened(3000) is None
    wide = index.widened(30)
    assert wide is not None and wide.probes == 3 * index.probes and wide.recall is None
    assert hits(rows, wide, rows[:300], metric, 30) > RECALL
