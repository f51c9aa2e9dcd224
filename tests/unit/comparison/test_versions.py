"""Tests of service.comparison: pairs of versions that differ in a known way, and numpy oracles."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from service.comparison.document import DRIFTED_COSINE, TableDiff, VersionDiff
from service.comparison.tables import Budget
from service.comparison.versions import compare_rows, compare_versions
from service.errors import ArtifactError, InvalidRequest, TableNotFound
from tests.toy_model import write_toy_model
from tests.versions_to_compare import DIM, Array, random_rotation, random_rows, write_version

NUM_ROWS = 1000


def compared(tmp_path: Path, old: Array, new: Array, budget: Budget | None = None) -> VersionDiff:
    folders = write_version(tmp_path / "1", old), write_version(tmp_path / "2", new)
    return compare_versions(*folders, budget=budget or Budget())


def user(diff: VersionDiff) -> TableDiff:
    return next(table for table in diff.tables if table.table == "user")


def oracle_cosines(old: Array, new: Array) -> Array:
    """Fits a rotation on each half of the rows by the textbook formula; returns the cosines of the other half."""
    found = np.empty(len(old))
    norms = [np.linalg.norm(rows, axis=1) for rows in (old, new)]
    usual = np.all([(one > 0) & (one <= 4 * np.median(one)) for one in norms], axis=0)
    old, new = (rows - rows[usual].mean(axis=0) for rows in (old, new))
    lengths = [np.linalg.norm(rows, axis=1, keepdims=True) for rows in (old, new)]
    limited = [
        rows * np.minimum(1, np.median(length) / length) for rows, length in zip((old, new), lengths, strict=True)
    ]
    for half in (0, 1):
        left, _, right = np.linalg.svd(limited[0][1 - half :: 2].T @ limited[1][1 - half :: 2])
        turned = old[half::2] @ (left @ right)
        products = (turned * new[half::2]).sum(axis=1)
        found[half::2] = products / (np.linalg.norm(turned, axis=1) * lengths[1][half::2, 0])
    return found


def test_a_rotation_is_no_drift(tmp_path: Path) -> None:
    old = random_rows(NUM_ROWS, 1)
    diff = compared(tmp_path, old, (old @ random_rotation(2)).astype(np.float32))
    found = user(diff)
    assert found.drift is not None and found.drift.is_aligned and found.neighbours is not None
    assert found.notes == ()
    assert (found.drift.drifted, found.drift.equal, diff.drift_percent) == (0, 0, 0.0)
    assert found.drift.median_cosine == pytest.approx(1)
    assert abs(found.drift.median_unaligned_cosine or 0) < 0.5
    assert sum(found.drift.norm_ratios.counts) == NUM_ROWS == max(found.drift.norm_ratios.counts)
    assert found.neighbours.overlap == pytest.approx(1, abs=0.01)


def test_equal_versions_are_equal(tmp_path: Path) -> None:
    rows = random_rows(NUM_ROWS, 1)
    found = user(compared(tmp_path, rows, rows))
    assert found.drift is not None and (found.drift.equal, found.drift.drifted) == (NUM_ROWS, 0)
    assert (found.added.count, found.removed.count, found.moved.count, found.common) == (0, 0, 0, NUM_ROWS)


def test_one_broken_row_in_a_hundred_is_found(tmp_path: Path) -> None:
    old = random_rows(NUM_ROWS, 1)
    new = (old @ random_rotation(2)).astype(np.float32)
    broken = np.arange(7, NUM_ROWS, 100)
    new[broken] = -1000 * new[broken]
    new[broken[0]] = np.nan
    new[broken[1]] = 0
    found = user(compared(tmp_path, old, new))
    assert found.drift is not None
    assert {row.new_id for row in found.drift.worst} == set(broken.tolist())
    assert (found.drift.drifted, found.drift.percent) == (10, 1.0)
    assert [row.cosine for row in found.drift.worst][:2] == [None, pytest.approx(-1, abs=1e-3)]


def test_a_swapped_table_drifts(tmp_path: Path) -> None:
    diff = compared(tmp_path, random_rows(NUM_ROWS, 1), random_rows(NUM_ROWS, 3))
    found = user(diff)
    assert found.neighbours is not None and found.neighbours.overlap < 0.05
    # In 8 dimensions, the cosine of two unrelated directions is 0.3 or more in one case of five.
    assert diff.drift_percent is not None and 70 < diff.drift_percent < 88


def test_cosines_and_norms_are_those_of_numpy(tmp_path: Path) -> None:
    old = random_rows(NUM_ROWS, 1)
    noise = np.random.default_rng(5).standard_normal(old.shape) * np.linspace(0, 3, NUM_ROWS)[:, None]
    new = (1.7 * (old + noise) @ random_rotation(2)).astype(np.float32)
    found = user(compared(tmp_path, old, new)).drift
    assert found is not None
    wanted = oracle_cosines(old.astype(np.float64), new.astype(np.float64))
    assert found.cosines.counts == tuple(np.histogram(wanted, found.cosines.edges)[0])
    assert found.median_cosine == pytest.approx(np.median(wanted))
    assert found.drifted == (wanted < DRIFTED_COSINE).sum()
    ratios = np.linalg.norm(new, axis=1) / np.linalg.norm(old, axis=1)
    edges = np.array(found.norm_ratios.edges)
    inside = np.clip(ratios.astype(np.float64), edges[0], edges[-1])
    assert found.norm_ratios.counts == tuple(np.histogram(inside, edges)[0])


def test_neighbours_are_those_of_numpy(tmp_path: Path) -> None:
    old = random_rows(400, 1)
    new = (old + 0.8 * random_rows(400, 2)).astype(np.float32)
    budget = Budget(queries=400)
    found = user(compared(tmp_path, old, new, budget)).neighbours

    def nearest(rows: Array) -> Array:
        unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        scores = unit @ unit.T
        np.fill_diagonal(scores, -2)
        return np.argsort(-scores, axis=1)[:, :10]

    both = zip(nearest(old), nearest(new), strict=True)
    wanted = np.mean([len(set(a) & set(b)) / 10 for a, b in both])
    assert found is not None and found.overlap == pytest.approx(wanted, abs=1e-3)
    assert (found.queries, found.pool, found.k) == (400, 400, 10)


def test_a_large_table_is_sampled(tmp_path: Path) -> None:
    old = random_rows(NUM_ROWS, 1)
    new = old.copy()
    new[::2] = -new[::2]
    found = user(compared(tmp_path, old, new, Budget(rows=200, queries=20, pool=100)))
    assert found.drift is not None and found.drift.rows == 200 and found.common == NUM_ROWS
    assert found.neighbours is not None and (found.neighbours.queries, found.neighbours.pool) == (20, 100)


def test_rows_are_paired_by_key(tmp_path: Path) -> None:
    old_keys = [f"film{i}" for i in range(60)]
    # Version 2 lacks twenty keys, has five new ones, and has the kept keys in other rows.
    new_keys = [f"new{i}" for i in range(5)] + old_keys[:19:-1]
    old, table_of = random_rows(61, 1, 3), {}
    table_of = {key: old[1 + i] for i, key in enumerate(old_keys)}
    other = random_rows(1, 7, 3)[0]
    new = np.stack([old[0], *(table_of.get(key, other) for key in new_keys)])
    same = random_rows(10, 4, 2)
    folders = write_version(tmp_path / "1", same, old, old_keys), write_version(tmp_path / "2", same, new, new_keys)
    tag = next(table for table in compare_versions(*folders).tables if table.table == "tag")
    assert tag.matched_by == "key"
    assert (tag.added.count, tag.added.first) == (5, ("new0", "new1", "new2", "new3", "new4"))
    assert (tag.removed.count, tag.removed.first[:2]) == (20, ("film0", "film1"))
    assert tag.common == 40 and tag.drift is not None and tag.drift.equal == 40
    moved = [key for i, key in enumerate(new_keys) if key in table_of and old_keys.index(key) != i]
    assert (tag.moved.count, set(tag.moved.first) <= set(moved)) == (len(moved), True)


def test_rows_are_paired_by_id_without_keys(tmp_path: Path) -> None:
    old = random_rows(NUM_ROWS, 1)
    found = user(compared(tmp_path, old, old[:-3]))
    assert (found.matched_by, found.removed.count, found.removed.first) == ("id", 3, ("997", "998", "999"))
    grown = user(compared(tmp_path / "grown", old[:-3], old))
    assert (grown.added.count, grown.added.first, grown.common) == (3, ("997", "998", "999"), NUM_ROWS - 3)


def test_a_small_table_is_compared_as_it_is_and_not_judged(tmp_path: Path) -> None:
    old = random_rows(4 * DIM - 1, 1)
    diff = compared(tmp_path, old, -old)
    found = user(diff).drift
    assert found is not None and not found.is_aligned and found.percent == 100
    assert diff.drift_percent is None
    assert [note.partition(";")[0] for note in user(diff).notes] == [
        f"A rotation is fitted from {4 * DIM} common rows on"
    ]


def test_tables_of_other_sizes_have_neighbours_only(tmp_path: Path) -> None:
    old = random_rows(NUM_ROWS, 1)
    wider = np.concatenate([old, np.zeros_like(old)], axis=1)
    found = user(compared(tmp_path, old, wider))
    assert found.drift is None and "differ in the numbers of a row" in found.notes[0]
    assert found.neighbours is not None and found.neighbours.overlap == 1


def test_hot_rows_of_the_statistics_are_the_queries(tmp_path: Path) -> None:
    old = random_rows(NUM_ROWS, 1)
    folders = write_version(tmp_path / "1", old), write_version(tmp_path / "2", old)
    found = compare_versions(*folders, hottest={"user": np.array([5, 3, 2000, 7])})
    neighbours = user(found).neighbours
    assert neighbours is not None and (neighbours.queries, neighbours.is_hottest) == (3, True)


def test_a_version_without_a_manifest_has_no_tables(tmp_path: Path) -> None:
    folders = write_toy_model(tmp_path / "1"), write_toy_model(tmp_path / "2")
    (folders[1] / "assets.extra" / "lookup_manifest.json").unlink()
    found = compare_versions(*folders, names=("1", "2"))
    assert (found.tables, found.removed_tables, found.drift_percent) == ((), ("tag", "user"), None)
    assert found.notes == ("Version 2 has no lookup manifest: its tables are unknown.",)


def test_a_cut_off_file_is_an_error(tmp_path: Path) -> None:
    folders = write_toy_model(tmp_path / "1"), write_toy_model(tmp_path / "2")
    shard = next((folders[1] / "variables").glob("*.data*"))
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(ArtifactError, match="its manifest says"):
        compare_versions(*folders)


def test_single_rows_are_compared_as_all_rows_are(tmp_path: Path) -> None:
    old = random_rows(NUM_ROWS, 1)
    noise = np.random.default_rng(5).standard_normal(old.shape) * np.linspace(0, 3, NUM_ROWS)[:, None]
    new = (1.7 * (old + noise) @ random_rotation(2)).astype(np.float32)
    folders = write_version(tmp_path / "1", old), write_version(tmp_path / "2", new)
    cosines, is_aligned = compare_rows(*folders, "user", np.arange(NUM_ROWS))
    assert is_aligned
    assert cosines == pytest.approx(oracle_cosines(old.astype(np.float64), new.astype(np.float64)))
    few, is_aligned = compare_rows(*folders, "user", np.array([3, 700]))
    plain = [old[at] @ new[at] / np.linalg.norm(old[at]) / np.linalg.norm(new[at]) for at in (3, 700)]
    assert not is_aligned and few == pytest.approx(plain, rel=1e-4)


def test_single_rows_are_found_by_their_keys(tmp_path: Path) -> None:
    old, same = random_rows(4, 1, 3), random_rows(10, 4, 2)
    # Row 1 has a new key. Row 2 has the key of the old row 3; row 3 has the key of the old row 1, and points the other
    # way.
    new = np.stack([old[0], old[0], old[3], -old[1]])
    folders = (
        write_version(tmp_path / "1", same, old, ["a", "b", "c"]),
        write_version(tmp_path / "2", same[:-1], new, ["new", "c", "a"]),
    )
    cosines, _ = compare_rows(*folders, "tag", np.arange(4))
    assert np.isnan(cosines[:2]).all() and cosines[2:] == pytest.approx([1, -1])
    grown, _ = compare_rows(folders[1], folders[0], "user", np.array([8, 9]))
    assert grown[0] == pytest.approx(1) and np.isnan(grown[1])
    with pytest.raises(TableNotFound, match='Version 1 has no table "none"'):
        compare_rows(*folders, "none", np.arange(1))


def test_rows_of_other_sizes_are_not_compared(tmp_path: Path) -> None:
    folders = (
        write_version(tmp_path / "1", random_rows(9, 1)),
        write_version(tmp_path / "2", random_rows(9, 1, DIM + 1)),
    )
    with pytest.raises(InvalidRequest, match="differ in the numbers of a row"):
        compare_rows(*folders, "user", np.arange(1))
