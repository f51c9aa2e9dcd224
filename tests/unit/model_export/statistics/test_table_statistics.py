"""Statistics of tables and of their use: counts, hot ids, health, and the files that keep them."""

from __future__ import annotations

import collections
import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model_export.spec.features import FeatureSpec, ModelSpec, TableSpec
from model_export.statistics import table_health as module
from model_export.statistics.files import LookupStatistics, StatisticsFileError, read_statistics, statistics_path
from model_export.statistics.table_health import Rows, row_chunks, table_health
from model_export.statistics.table_statistics import (
    HotId,
    IdCounts,
    TableDescription,
    TableStatistics,
    empty_registers,
    estimate,
    with_ids,
)

FILM = TableDescription("film", 10, 4, "mean", ("liked", "seen"))


def seen(*rows: list[int], **arguments: Any) -> TableStatistics:
    """Returns the statistics of rows of ids in the table of films."""
    values = np.array([number for row in rows for number in row], np.int64)
    splits = np.cumsum([0, *(len(row) for row in rows)])
    return TableStatistics.empty(FILM, partitions=4, **arguments).with_rows(values, splits)


def test_numbers_are_those_of_the_rows() -> None:
    statistics = seen([1, 1, 9], [], [4], [1, 9])
    assert (statistics.examples, statistics.ids, statistics.bad_ids) == (4, 6, 0)
    assert (statistics.mean_ids_per_example, statistics.max_ids_per_example) == (1.5, 3)
    assert statistics.ids_per_example_histogram[:5].tolist() == [1, 1, 1, 1, 0]
    assert (statistics.distinct_ids, statistics.distinct_is_exact) == (3, True)
    assert statistics.hot_ids(2) == [HotId(1, 3, 0.5), HotId(9, 2, 1 / 3)]


def test_balance_is_that_of_both_layouts() -> None:
    # 10 rows on 4 hosts: div has 0-2, 3-5, 6-7, 8-9; mod has i % 4.
    statistics = seen([0, 4, 8], [0, 1, 9])
    assert statistics.partition_loads == {"div": (3, 1, 0, 2), "mod": (4, 2, 0, 0)}
    assert statistics.imbalance("div") == 3 / 1.5
    assert statistics.imbalance("mod") == 4 / 1.5


def test_rows_longer_than_the_histogram_share_its_last_bin() -> None:
    statistics = seen([3] * 1023, [3] * 1024, [3] * 5000)
    assert statistics.ids_per_example_histogram[1023:].tolist() == [1, 2]
    assert statistics.max_ids_per_example == 5000


def test_ids_outside_the_table_are_counted_apart() -> None:
    statistics = seen([-1, 3, 10], [3])
    assert (statistics.ids, statistics.bad_ids, statistics.mean_ids_per_example) == (2, 2, 2.0)
    assert statistics.hot_ids(9) == [HotId(3, 2, 1.0)]
    assert sum(statistics.partition_loads["div"]) == 2


def test_nothing_seen_says_so() -> None:
    nothing = TableStatistics.empty(FILM, partitions=2)
    assert (nothing.mean_ids_per_example, nothing.distinct_ids) == (0.0, 0)
    assert (nothing.hot_ids(3), nothing.imbalance("mod")) == ([], 1.0)


def test_parts_merge_to_the_whole() -> None:
    rows = [[1, 1, 9], [], [4], [1, 9], [-5, 2]]
    whole, parts = seen(*rows), seen(*rows[:2]).merged(seen(*rows[2:]))
    for field in dataclasses.fields(TableStatistics):
        if field.name != "counts":
            np.testing.assert_array_equal(getattr(parts, field.name), getattr(whole, field.name))
    assert parts.hot_ids(10) == whole.hot_ids(10)


def test_tables_that_differ_do_not_merge() -> None:
    other = TableStatistics.empty(dataclasses.replace(FILM, vocabulary_size=11), partitions=4)
    with pytest.raises(ValueError, match="do not add"):
        seen([1]).merged(other)


def test_beyond_its_capacity_it_estimates_and_says_so() -> None:
    table = dataclasses.replace(FILM, vocabulary_size=50_000)
    ids = np.random.default_rng(0).permutation(50_000)[:30_000]
    empty = TableStatistics.empty(table, partitions=4, capacity=1000)
    statistics = empty.with_rows(np.concatenate([ids, [7] * 2000]), np.array([0, 32_000]))
    assert not statistics.distinct_is_exact
    assert statistics.distinct_ids == pytest.approx(30_000, rel=0.08)
    assert statistics.hot_ids(1)[0].id == 7
    assert len(statistics.counts.ids) <= 1000


def test_the_estimate_is_never_above_the_tables_rows() -> None:
    table = dataclasses.replace(FILM, vocabulary_size=5_000)
    empty = TableStatistics.empty(table, partitions=4, capacity=10)
    assert empty.with_rows(np.arange(5_000), np.array([0, 5_000])).distinct_ids <= 5_000


@pytest.mark.parametrize("arguments", [{"partitions": 0}, {"partitions": 2, "capacity": 0}])
def test_sizes_of_nothing_are_refused(arguments: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="expected 1 or more"):
        TableStatistics.empty(FILM, **arguments)


def test_a_key_is_the_same_in_another_process() -> None:
    code = (
        "from model_export.statistics.table_statistics import TableDescription\n"
        "print(TableDescription('film', 10, 4, 'mean', ('seen', 'liked')).key(8), end='')"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == FILM.key(8)
    assert len(FILM.key(8)) == 16


def test_a_key_goes_with_everything_that_configures_the_table() -> None:
    others = [
        dataclasses.replace(FILM, name="films"),
        dataclasses.replace(FILM, vocabulary_size=11),
        dataclasses.replace(FILM, embedding_dim=5),
        dataclasses.replace(FILM, combiner="sum"),
        dataclasses.replace(FILM, features=("liked",)),
        dataclasses.replace(FILM, partition_strategy="mod"),
    ]
    keys = {FILM.key(8), FILM.key(4), *(other.key(8) for other in others)}
    assert len(keys) == 8


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes a chunk seven rows of eight numbers, so that small tables have many chunks."""
    monkeypatch.setattr(module, "_CHUNK_BYTES", 7 * 8 * 8)


def sick_table(dtype: str) -> np.ndarray:
    """Returns a table of 100 rows with every defect that a report finds, some on both sides of a chunk's edge."""
    table = np.random.default_rng(1).normal(size=(100, 8)).astype(dtype)
    table[[6, 7, 50]] = 0
    table[13, 2] = np.nan
    table[14, 3:5] = np.nan
    table[20, 0] = np.inf
    table[21] = [np.nan, -np.inf, 1, 1, 1, 1, 1, 1]
    table[30] = 1e-3
    table[60] = table[90] = table[3]
    return table


@pytest.mark.parametrize("dtype", ["<f2", "<f4", "<f8"])
def test_every_figure_is_numpys_of_the_whole_table(dtype: str, small_chunks: None) -> None:
    table = sick_table(dtype)
    health = table_health(table)
    finite = np.isfinite(table).all(axis=1)
    norms = np.linalg.norm(table[finite].astype(np.float64), axis=1)
    assert (health.rows, health.dim) == (100, 8)
    assert health.norms is not None and health.histogram is not None
    np.testing.assert_allclose(
        [health.norms.minimum, health.norms.mean, health.norms.maximum], [norms.min(), norms.mean(), norms.max()]
    )
    for p, value in health.norms.percentiles:
        assert value == pytest.approx(np.percentile(norms, p))
    assert health.norms.median == pytest.approx(np.median(norms))
    assert (health.nan, health.nan_values) == (Rows(3, (13, 14, 21)), 4)
    assert (health.inf, health.inf_values) == (Rows(2, (20, 21)), 2)
    assert health.dead == Rows(3, (6, 7, 50))
    assert health.near_zero == Rows(1, (30,))
    assert health.duplicates == Rows(2, (60, 90))
    assert not health.is_finite


def test_a_healthy_table_has_nothing_to_show() -> None:
    health = table_health(np.random.default_rng(2).normal(size=(50, 3)).astype(np.float32))
    assert health.is_finite
    assert health.nan == health.inf == health.dead == health.near_zero == health.duplicates == Rows()


def test_the_histogram_is_numpys(small_chunks: None) -> None:
    table = np.random.default_rng(3).normal(size=(500, 8)).astype(np.float32)
    histogram = table_health(table).histogram
    assert histogram is not None
    norms = np.linalg.norm(table.astype(np.float64), axis=1)
    counts, edges = np.histogram(norms, 16)  # Rice: 2 * 500 ** (1/3) is 15.9
    assert histogram.counts == tuple(counts)
    np.testing.assert_allclose(histogram.edges, edges)
    assert histogram.above == 0


def test_a_few_giants_do_not_squeeze_all_others_into_one_bin() -> None:
    table = np.random.default_rng(4).uniform(1, 2, size=(1000, 1)).astype(np.float32)
    table[::250] = 1e6
    histogram = table_health(table).histogram
    assert histogram is not None
    assert histogram.above == 4 and sum(histogram.counts) == 996
    assert histogram.edges[-1] < 3 and max(histogram.counts) < 200


def test_equal_norms_are_one_bin() -> None:
    histogram = table_health(np.eye(4, dtype=np.float32)).histogram
    assert histogram is not None and (histogram.edges, histogram.counts) == ((1.0, 1.0), (4,))


def test_without_a_finite_row_there_are_no_norms() -> None:
    health = table_health(np.full((3, 2), np.nan, np.float32))
    assert (health.norms, health.histogram, health.nan_values) == (None, None, 6)


def test_more_than_ten_rows_are_counted_and_the_first_ten_named(small_chunks: None) -> None:
    assert table_health(np.zeros((40, 8), np.float32)).dead == Rows(40, tuple(range(10)))


def test_numbers_too_large_to_square_are_finite_all_the_same() -> None:
    health = table_health(np.array([[1e200, 1e200], [1.0, 0.0]]))
    assert health.is_finite and health.norms is not None and health.norms.maximum == pytest.approx(2**0.5 * 1e200)


def test_numbers_too_small_to_square_are_not_dead() -> None:
    health = table_health(np.array([[1e-200, 0.0], [0.0, 0.0], [1.0, 1.0]]))
    assert health.dead == Rows(1, (1,))


def test_equal_hashes_of_different_rows_are_no_duplicates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_row_hashes", lambda chunk, factors: np.zeros(len(chunk), np.uint64))
    table = np.array([[1, 2], [3, 4], [1, 2]], np.float32)
    assert table_health(table).duplicates == Rows(1, (2,))


def test_huge_tables_are_not_searched_for_duplicates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_ROWS_FOR_DUPLICATES", 2)
    assert table_health(np.ones((3, 2), np.float32)).duplicates is None


def test_a_mapped_unaligned_table_is_read_as_it_lies(tmp_path: Path, small_chunks: None) -> None:
    table = sick_table("<f4")
    (tmp_path / "shard").write_bytes(b"xyz" + table.tobytes())
    mapped = np.memmap(tmp_path / "shard", "<f4", "r", 3, (100, 8))
    assert table_health(mapped) == table_health(table)


def test_progress_ends_at_the_last_row(small_chunks: None) -> None:
    told: list[tuple[int, int]] = []
    table_health(np.ones((20, 8), np.float32), progress=lambda done, rows: told.append((done, rows)))
    assert told == [(7, 20), (14, 20), (20, 20)]


def test_chunks_cover_every_row_once() -> None:
    assert list(row_chunks(3, 1 << 24)) == [(0, 1), (1, 2), (2, 3)]
    assert list(row_chunks(5, 2)) == [(0, 5)]


USER = TableDescription("user", 5, 4, None, ("user",))


RATES = [(0.1, 10), (1.0, 100), (0.001, 1)]


def collector(folder: Path, **arguments: Any) -> LookupStatistics:
    return LookupStatistics(folder, [FILM, USER], **arguments)


def chosen(statistics: LookupStatistics, steps: int) -> list[int]:
    return [step for step in range(steps) if statistics.wants(step)]


@pytest.mark.parametrize(("given", "per_block"), [({}, 3), *(({"sample_rate": r}, n) for r, n in RATES)])
def test_the_rate_is_what_is_asked_for(tmp_path: Path, given: dict[str, float], per_block: int) -> None:
    steps = chosen(collector(tmp_path, **given), 300)
    counts = np.bincount(np.array(steps) // 100).tolist()
    # The very first step is always in the sample.
    assert steps[0] == 0 and counts[1:] == [per_block] * 2 and counts[0] in (per_block, per_block + 1)


def test_the_seed_alone_chooses_the_steps(tmp_path: Path) -> None:
    assert chosen(collector(tmp_path), 1000) == chosen(collector(tmp_path), 1000)
    assert chosen(collector(tmp_path, seed=1), 1000) != chosen(collector(tmp_path), 1000)


def test_only_sampled_steps_are_read_and_all_are_counted(tmp_path: Path) -> None:
    statistics = collector(tmp_path)
    steps = chosen(statistics, 300)
    for step in range(300):
        statistics.observe(step, {"user": (np.array([step % 5, 1]), None)})
    statistics.save()
    film, user = read_statistics(tmp_path)
    assert (user.steps, user.sampled_steps, user.examples, user.ids) == (
        300,
        len(steps),
        2 * len(steps),
        2 * len(steps),
    )
    assert (film.steps, film.sampled_steps, film.examples) == (300, len(steps), 0)


def test_features_of_one_table_add_up(tmp_path: Path) -> None:
    statistics = collector(tmp_path, partitions=2)
    statistics.observe(
        0,
        {
            "liked": (np.array([1, 2, 2]), np.array([0, 1, 3])),
            "seen": (np.array([2]), np.array([0, 0, 1])),
            "user": (np.array([4, 0]), None),
        },
    )
    statistics.save()
    film, user = read_statistics(tmp_path)
    assert (film.examples, film.ids, film.hot_ids(1)[0].count) == (4, 4, 3)
    assert film.partition_loads == {"div": (4, 0), "mod": (3, 1)}
    assert (user.examples, user.ids, user.max_ids_per_example) == (2, 2, 1)


def test_saving_twice_adds_nothing_twice_and_training_goes_on_in_the_same_file(tmp_path: Path) -> None:
    lookups = {"user": (np.array([1]), None)}
    first = collector(tmp_path)
    first.observe(0, lookups)
    first.save()
    first.save()
    second = collector(tmp_path)
    second.observe(0, lookups)
    second.save()
    _, user = read_statistics(tmp_path)
    assert (user.steps, user.ids) == (2, 2)


def test_a_model_spec_names_tables_and_features(tmp_path: Path) -> None:
    spec = ModelSpec(
        (TableSpec("film", 10, 4, "sum"), TableSpec("user", 5, 2)),
        (FeatureSpec("user", "user"), FeatureSpec("seen", "film", is_ragged=True), FeatureSpec("liked", "film")),
    )
    paths = LookupStatistics.for_model(tmp_path, spec, partition_strategy="mod", partitions=4).save()
    expected = TableDescription("film", 10, 4, "sum", ("liked", "seen"), "mod")
    assert paths[0] == statistics_path(tmp_path, expected, 4)
    assert [each.table for each in read_statistics(tmp_path)][0] == expected


def test_a_damaged_file_is_found_before_training(tmp_path: Path) -> None:
    statistics_path(tmp_path, FILM, 8).write_text("{")
    with pytest.raises(StatisticsFileError):
        collector(tmp_path)


@pytest.mark.parametrize("rate", [0.0, -0.5, 1.5])
def test_a_rate_out_of_range_is_refused(tmp_path: Path, rate: float) -> None:
    with pytest.raises(ValueError, match="^sample_rate is"):
        collector(tmp_path, sample_rate=rate)


def test_two_tables_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="^two tables have the same name$"):
        LookupStatistics(tmp_path, [FILM, FILM])


# The tolerance is five standard errors of the estimate, which are 1.6 % each.
@pytest.mark.parametrize("distinct", [0, 1, 100, 3_000, 10_000, 12_000, 100_000, 1_000_000])
def test_the_estimate_is_near(distinct: int) -> None:
    ids = np.arange(distinct) * 7 + 3
    registers = with_ids(with_ids(empty_registers(), ids), ids[::2])
    assert estimate(registers) == pytest.approx(distinct, rel=0.08, abs=0.5)


def test_states_merge_by_their_maximum() -> None:
    ids = np.arange(5_000)
    one, other = with_ids(empty_registers(), ids[:3_000]), with_ids(empty_registers(), ids[2_000:])
    np.testing.assert_array_equal(np.maximum(one, other), with_ids(empty_registers(), ids))
    assert estimate(with_ids(empty_registers(), np.array([2**62, 2**62 + 1, 2**62]))) == 2, "large ids count too"


def test_a_rank_is_the_place_of_the_first_one_bit() -> None:
    # The hash of 0 by splitmix64, computed with Python's integers.
    value = 0x9E3779B97F4A7C15
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB % 2**64
    value ^= value >> 31
    bits = f"{value:064b}"
    registers = with_ids(empty_registers(), np.array([0]))
    assert np.flatnonzero(registers).tolist() == [int(bits[:12], 2)]
    assert registers[int(bits[:12], 2)] == bits[12:].index("1") + 1


def zipf_ids(n: int, seed: int = 0) -> np.ndarray[Any, Any]:
    """Returns ids distributed as in requests: few of them often, and many once."""
    return np.random.default_rng(seed).zipf(1.2, n) % 100_000


def test_counts_are_exact_while_they_fit() -> None:
    counts = IdCounts(3).with_ids(np.array([5, 9, 5])).with_ids(np.array([9, 5, 2]))
    assert counts.top(5) == [(5, 3), (9, 2), (2, 1)]
    assert counts.undercount == 0


def test_equal_counts_come_by_id_and_no_ids_leave_the_counts() -> None:
    counts = IdCounts(4).with_ids(np.array([8, 3, 3, 8, 1]))
    assert counts.top(2) == counts.with_ids(np.zeros(0, np.int32)).top(2) == [(3, 2), (8, 2)]


def test_what_does_not_fit_costs_every_count_the_same() -> None:
    # Ids and their counts: 7 five times, 8 three times, 9 twice, 1 once. With room for two ids, the third largest
    # count, 2, is subtracted from all.
    counts = IdCounts(2).with_ids(np.array([7] * 5 + [8] * 3 + [9] * 2 + [1]))
    assert (counts.top(2), counts.undercount) == ([(7, 3), (8, 1)], 2)


@pytest.mark.parametrize("in_parts", [False, True], ids=["steps", "merged parts"])
def test_the_bound_holds_however_the_ids_came(in_parts: bool) -> None:
    ids, capacity = zipf_ids(50_000), 200
    true = collections.Counter(ids.tolist())
    batches = np.split(ids, 50)
    counts = IdCounts(capacity)
    if in_parts:
        for part in (batches[:20], batches[20:]):
            some = IdCounts(capacity)
            for batch in part:
                some = some.with_ids(batch)
            counts = counts.merged(some)
    else:
        for batch in batches:
            counts = counts.with_ids(batch)
    assert len(counts.ids) <= capacity
    assert 0 < counts.undercount <= len(ids) / (capacity + 1)
    for number, count in true.items():
        found = dict(zip(counts.ids.tolist(), counts.counts.tolist(), strict=True)).get(number, 0)
        assert count - counts.undercount <= found <= count
    assert [number for number, _ in counts.top(5)] == [number for number, _ in true.most_common(5)]
