"""Statistics come back from disk as they were written and add up, and a damaged file is named."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from model_export.statistics.files import StatisticsFileError, add_to_file, read_statistics, statistics_path, to_json
from model_export.statistics.table_statistics import TableDescription, TableStatistics

FILM = TableDescription("film", 10, 4, "mean", ("liked",))
USER = TableDescription("a_user", 5, 4, None, ("user",), "mod")


def seen(table: TableDescription, ids: list[int]) -> TableStatistics:
    """Returns a table's statistics after one sampled step with one row of ids."""
    return (
        TableStatistics.empty(table, partitions=4)
        .with_step(is_sampled=True)
        .with_rows(np.array(ids), np.array([0, len(ids)]))
    )


def test_tables_come_back_as_they_were_in_order_of_their_names(tmp_path: Path) -> None:
    for statistics in (seen(FILM, [1, 2, 2]), seen(USER, [4, -1])):
        add_to_file(tmp_path / "made" / "for it", statistics)
    assert read_statistics(tmp_path / "none") == []
    back = read_statistics(tmp_path / "made" / "for it")
    assert [each.table for each in back] == [USER, FILM]
    assert to_json(back[1]) == to_json(seen(FILM, [1, 2, 2]))


def test_there_is_one_file_for_each_configuration_and_nothing_else(tmp_path: Path) -> None:
    paths = [add_to_file(tmp_path, seen(FILM, [1])), add_to_file(tmp_path, seen(USER, [1]))]
    assert set(tmp_path.iterdir()) == set(paths)
    assert paths[0] == statistics_path(tmp_path, FILM, 4)
    assert paths[0].name == f"lookup_statistics_{FILM.key(4)}.json"


def test_later_numbers_are_added(tmp_path: Path) -> None:
    for ids in ([1, 2, 2], [2, 9]):
        add_to_file(tmp_path, seen(FILM, ids))
    (statistics,) = read_statistics(tmp_path)
    assert (statistics.steps, statistics.ids, statistics.hot_ids(1)[0].count) == (2, 5, 3)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format_version": 1}', '{"format_version": 2}', "{"])
def test_a_damaged_or_newer_file_is_named_and_kept(tmp_path: Path, text: str) -> None:
    path = statistics_path(tmp_path, FILM, 4)
    path.write_text(text)
    with pytest.raises(StatisticsFileError, match=f"^can not read statistics .*{path.name}"):
        read_statistics(tmp_path)
    with pytest.raises(StatisticsFileError, match=path.name):
        add_to_file(tmp_path, seen(FILM, [1]))
    assert path.read_text() == text


def test_a_file_that_can_not_be_written_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = add_to_file(tmp_path, seen(FILM, [1]))
    before = path.read_text()
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("disk")))
    with pytest.raises(OSError, match="disk"):
        add_to_file(tmp_path, seen(FILM, [2]))
    assert (path.read_text(), list(tmp_path.iterdir())) == (before, [path])


def test_registers_of_another_length_are_refused(tmp_path: Path) -> None:
    path = add_to_file(tmp_path, seen(FILM, [1]))
    path.write_text(json.dumps({**json.loads(path.read_text()), "distinct_registers": "AAAA"}))
    with pytest.raises(StatisticsFileError, match="distinct_registers has 3 bytes"):
        read_statistics(tmp_path)


def test_a_full_file_stays_small(tmp_path: Path) -> None:
    table = TableDescription("big", 10_000_000, 64, "sum", ("x",))
    ids = np.random.default_rng(0).zipf(1.3, 200_000) % 10_000_000
    statistics = TableStatistics.empty(table, partitions=8).with_rows(ids, np.arange(0, 200_001, 20))
    assert add_to_file(tmp_path, statistics).stat().st_size < 150_000
