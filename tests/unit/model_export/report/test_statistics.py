"""Lookup statistics as a report shows them, from files that the collector wrote."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from model_export.errors import ExportError
from model_export.report.document import STATISTICS_FOLDER, find_statistics
from model_export.statistics.files import add_to_file
from model_export.statistics.table_statistics import TableDescription, TableStatistics


def write_statistics(folder: Path) -> None:
    """Writes statistics of the toy model's table "tag": two examples, [3, 3] and [1, 9], the 9 outside the table."""
    seen = TableStatistics.empty(TableDescription("tag", 4, 3, "mean", ("tags",)), partitions=2)
    seen = seen.with_rows(np.array([3, 3, 1, 9]), np.array([0, 2, 4])).with_step(is_sampled=True)
    add_to_file(folder, seen.with_step(is_sampled=False))


def test_figures_are_those_of_the_rows_by_hand(tmp_path: Path) -> None:
    write_statistics(tmp_path)
    (found,) = find_statistics(tmp_path / "no artifact", tmp_path)
    assert (found.table, found.rows, found.features) == ("tag", 4, ("tags",))
    assert (found.steps, found.sampled_steps, found.examples, found.ids, found.bad_ids) == (2, 1, 2, 3, 1)
    assert (found.mean_ids, found.max_ids, found.ids_per_example) == (2.0, 2, ((2, 2),))
    assert (found.distinct_ids, found.distinct_is_exact, found.hot_ids) == (2, True, ((3, 2), (1, 1)))
    # Two partitions of 4 rows. div: rows 0 and 1 | 2 and 3; mod: rows 0 and 2 | 1 and 3.
    assert dict(found.partitions) == {"div": (1, 2), "mod": (0, 3)}
    assert found.imbalance("div") == pytest.approx(4 / 3) and found.imbalance("mod") == 2.0
    assert found.imbalance("none such") is None


def test_an_artifact_may_carry_its_own(tmp_path: Path) -> None:
    assert find_statistics(tmp_path, None) == ()
    write_statistics(tmp_path / STATISTICS_FOLDER)
    assert [found.table for found in find_statistics(tmp_path, None)] == ["tag"]


def test_a_folder_without_any_is_an_error_and_so_is_a_damaged_file(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="is not a folder"):
        find_statistics(tmp_path, tmp_path / "nowhere")
    with pytest.raises(ExportError, match="holds no lookup statistics"):
        find_statistics(tmp_path, tmp_path)
    write_statistics(tmp_path)
    next(tmp_path.glob("*.json")).write_text("{")
    with pytest.raises(ExportError, match="can not read statistics"):
        find_statistics(tmp_path, tmp_path)
