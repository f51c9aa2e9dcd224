"""Training writes lookup statistics to profile_data_directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from model_export.spec.embedding_config_spec import EmbeddingConfigSpec
from model_export.spec.optimization_parameters import AdagradParameters
from model_export.statistics.files import read_statistics
from tests.unit.model_export.estimator.small_model import ROWS, column, estimator_of, input_fn

pytestmark = pytest.mark.tf


def test_a_training_writes_statistics_of_its_ids(tmp_path: Path) -> None:
    folder = tmp_path / "statistics"
    spec = EmbeddingConfigSpec([column()], AdagradParameters(0.1), profile_data_directory=str(folder))
    estimator_of(tmp_path / "model", spec).train(input_fn, steps=2)
    (statistics,) = read_statistics(folder)
    # The collector reads step 0 of every training, and of the others only a sample, which has no step 1 here.
    assert (statistics.table.name, statistics.examples, statistics.ids) == ("c", len(ROWS), sum(map(len, ROWS)))
    assert {(hot.id, hot.count) for hot in statistics.hot_ids(5)} == {(0, 1), (1, 1), (2, 2), (3, 2)}


def test_without_a_directory_nothing_is_written(tmp_path: Path) -> None:
    estimator_of(tmp_path).train(input_fn, steps=1)
    assert not list(tmp_path.rglob("lookup_statistics*"))
