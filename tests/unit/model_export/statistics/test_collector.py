"""The collector samples the same steps in every training, at the promised rate, and counts the ids in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model_export.spec.features import FeatureSpec, ModelSpec, TableSpec
from model_export.statistics.files import LookupStatistics, StatisticsFileError, read_statistics, statistics_path
from model_export.statistics.table_statistics import TableDescription

FILM = TableDescription("film", 10, 4, "mean", ("liked", "seen"))
USER = TableDescription("user", 5, 4, None, ("user",))


def collector(folder: Path, **arguments: Any) -> LookupStatistics:
    """Returns LookupStatistics of two tables."""
    return LookupStatistics(folder, [FILM, USER], **arguments)


def chosen(statistics: LookupStatistics, steps: int) -> list[int]:
    """Returns the steps that the statistics sample."""
    return [step for step in range(steps) if statistics.wants(step)]


def test_three_of_every_hundred_steps_are_looked_at(tmp_path: Path) -> None:
    steps = chosen(collector(tmp_path), 2000)
    per_block = np.bincount(np.array(steps) // 100)
    assert per_block[1:].tolist() == [3] * 19
    assert steps[0] == 0 and per_block[0] in (3, 4)


@pytest.mark.parametrize(("rate", "per_block"), [(0.1, 10), (1.0, 100), (0.001, 1)])
def test_the_rate_is_what_is_asked_for(tmp_path: Path, rate: float, per_block: int) -> None:
    steps = chosen(collector(tmp_path, sample_rate=rate), 300)
    assert np.bincount(np.array(steps) // 100)[1:].tolist() == [per_block] * 2


def test_the_seed_alone_chooses_the_steps(tmp_path: Path) -> None:
    assert chosen(collector(tmp_path), 1000) == chosen(collector(tmp_path), 1000)
    assert chosen(collector(tmp_path, seed=1), 1000) != chosen(collector(tmp_path), 1000)


def test_only_sampled_steps_are_read_and_all_are_counted(tmp_path: Path) -> None:
    statistics = collector(tmp_path)
    steps = chosen(statistics, 300)
    for step in range(300):
        # The trainer does not fetch the ids of a step that is not sampled.
        lookups = {} if step not in steps else {"user": (np.array([step % 5, 1]), None)}
        statistics.observe(step, lookups)
    statistics.save()
    film, user = read_statistics(tmp_path)
    assert (user.steps, user.sampled_steps, user.examples, user.ids) == (
        300,
        len(steps),
        2 * len(steps),
        2 * len(steps),
    )
    assert (film.steps, film.sampled_steps, film.examples) == (300, len(steps), 0)


def test_a_step_that_is_not_sampled_is_not_read(tmp_path: Path) -> None:
    statistics = collector(tmp_path)
    step = next(step for step in range(100) if not statistics.wants(step))
    statistics.observe(step, {"user": (np.array([1]), None)})
    statistics.save()
    assert [each.ids for each in read_statistics(tmp_path)] == [0, 0]


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
