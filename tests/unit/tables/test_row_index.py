"""The index of nearest rows, and its file."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from service.artifact.hashes import masked_of
from service.errors import VersionNotFound
from service.tables import row_index
from service.tables.row_index import RECALL, Lists, RowLists, build_index, decode, encode, tune_index
from service.tables.table import MappedTable
from service.types import Array
from service.versions.neighbors import METRICS, Metric, Nearest, RowSearch
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


ROWS, LISTS = 600, 5
IDENTITY = {"manifest": "00ff", "table": "tag", "metric": "l2"}


def index_of(metric: Metric = "l2") -> RowLists:
    """Returns an index of ROWS rows of two numbers; row i is in list i % LISTS."""
    centres = np.stack([np.arange(LISTS), np.ones(LISTS)], axis=1).astype(np.float32)
    width = {"dot": 3}.get(metric, 2)
    centres = np.ascontiguousarray(np.pad(centres, ((0, 0), (0, width - 2))))
    members = np.arange(ROWS, dtype=np.int32).reshape(-1, LISTS).T.ravel()
    starts = np.arange(LISTS + 1, dtype=np.int64) * (ROWS // LISTS)
    return RowLists.of(Lists(metric, centres, starts, members, members[:0], 9.5, 2, 0.97, 1.25))


@pytest.mark.parametrize("metric", ["l2", "cosine", "dot"])
def test_an_index_is_decoded_as_it_was(metric: Metric) -> None:
    index = index_of(metric)
    identity = IDENTITY | {"metric": metric}
    decoded = decode(encode(index, np.array([7, 3]), identity), identity, ROWS)
    assert (decoded.recall, decoded.probes, decoded.num_lists, decoded.seconds) == (0.97, 2, LISTS, 1.25)
    assert decoded.lists().longest == 9.5 and decoded.lists().loose.tolist() == [3, 7]
    queries = np.array([[0.2, 1], [3.9, 1]], np.float32)
    for old, new in zip(index.candidates(queries), decoded.candidates(queries), strict=True):
        # Rows 3 and 7 had changed when the index was built, so they are candidates of every search, once each.
        assert new.tolist() == sorted({*old.tolist(), 3, 7}) and new.dtype == np.int64
    again = decode(encode(decoded, np.array([8]), identity), identity, ROWS)
    assert again.lists().loose.tolist() == [3, 7, 8]


@pytest.mark.parametrize("change", [{"manifest": "00fe"}, {"table": "user"}, {"metric": "dot"}])
def test_the_index_of_another_table_is_refused(change: dict[str, str]) -> None:
    data = encode(index_of(), np.empty(0, np.int64), IDENTITY)
    with pytest.raises(ValueError, match="another table"):
        decode(data, IDENTITY | change, ROWS)
    with pytest.raises(ValueError, match="another table"):
        decode(data, IDENTITY, ROWS + 1)


def with_header(data: bytes, **changes: Any) -> bytes:
    """Returns a file's bytes with another header and the checksum of these bytes."""
    size = int.from_bytes(data[8:12], "little")
    header = json.dumps(json.loads(data[12 : 12 + size]) | changes).encode()
    return sealed(data[:8] + len(header).to_bytes(4, "little") + header + data[12 + size : -4])


def sealed(data: bytes) -> bytes:
    """Returns bytes with their checksum appended."""
    return data + masked_of(data).to_bytes(4, "little")


DAMAGES = {
    "empty": (lambda data: b"", "no index of rows"),
    "foreign": (lambda data: b"GIF89a" * 100, "no index of rows"),
    "cut": (lambda data: data[: len(data) // 2], "checksum"),
    "flipped": (lambda data: data[:500] + bytes([data[500] ^ 1]) + data[501:], "checksum"),
    "header": (lambda data: sealed(data[:8] + (200_000).to_bytes(4, "little") + b"[" * 200_000), "header"),
    "no_json": (lambda data: sealed(data[:12] + b"x" * (len(data) - 12)), "Expecting value"),
    "newer": (lambda data: with_header(data, format=2), "format 2"),
    "other_size": (lambda data: with_header(data, rows=ROWS + 1), "another table"),
    "longer": (lambda data: sealed(data[:-4] + bytes(4)), "size"),
    "too_few_lists": (lambda data: with_header(data, lists=3), "fit"),
    "negative": (lambda data: with_header(data, loose=-1), "its size does not fit"),
    "all_probes": (lambda data: with_header(data, probes=10_000), "fit together"),
    "text": (lambda data: with_header(data, recall="1"), "header is damaged"),
    # The four bytes before the file's checksum are a row's number in a list: here the last row has the number of the
    # row before it.
    "twice": (lambda data: sealed(data[:-8] + data[-12:-8]), "fit together"),
    "beyond": (lambda data: sealed(data[:-8] + b"\xff\xff\xff\x7f"), "fit together"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_bytes_that_do_not_fit_are_refused(damage: str) -> None:
    change, reason = DAMAGES[damage]
    data = change(encode(index_of(), np.empty(0, np.int64), IDENTITY))
    with pytest.raises(ValueError, match=reason):
        decode(data, IDENTITY, ROWS)


def test_each_flipped_bit_is_noticed() -> None:
    data = encode(index_of(), np.array([5]), IDENTITY)
    for at in range(0, len(data), 7):
        with pytest.raises(ValueError, match="."):
            decode(data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :], IDENTITY, ROWS)
