"""A table in parts trains as a whole table does, and its checkpoint is read as a whole table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model_export.estimator import session_training
from model_export.estimator.estimator import EmbeddingEstimator
from model_export.estimator.training_processes import OneProcess
from model_export.spec.embedding_config_spec import EmbeddingConfigSpec
from model_export.spec.optimization_parameters import (
    AdagradParameters,
    AdamParameters,
    FtrlParameters,
    MomentumParameters,
    StochasticGradientDescentParameters,
)
from model_export.spec.table_config import FeatureConfig, TableConfig
from model_export.tensorflow_setup import tf
from service.artifact.bundle import read_bundle
from tests.unit.model_export.estimator.small_model import (
    LABELS,
    ROWS,
    TABLE,
    TABLE_NAME,
    column,
    estimator_of,
    input_fn,
    sparse,
)

pytestmark = pytest.mark.tf


class InParts(OneProcess):
    """Trains in one process with each table in three parts, as if other processes shared them."""

    parts = 3
    shares_variables = True


def trained(estimator: EmbeddingEstimator, processes: type[OneProcess]) -> EmbeddingEstimator:
    """Trains an estimator's model for three steps in a simulated process; returns the estimator."""
    session_training.train(
        estimator.model,
        input_fn,
        model_dir=estimator.model_dir,
        hooks=[tf.compat.v1.train.StopAtStepHook(3)],
        saving_listeners=[],
        warm_start_settings=None,
        processes=processes(estimator.config),
    )
    return estimator


@pytest.mark.parametrize(
    "parameters",
    [
        AdagradParameters(0.5),
        AdagradParameters(0.5, use_gradient_accumulation=False),
        AdamParameters(0.1),
        AdamParameters(0.1, lazy_adam=False),
        FtrlParameters(0.1),
        MomentumParameters(0.1, momentum=0.9),
        StochasticGradientDescentParameters(0.5),
    ],
    ids=str,
)
def test_parts_train_as_the_whole_table(tmp_path: Path, parameters: Any) -> None:
    spec = EmbeddingConfigSpec([column()], parameters)
    whole = trained(estimator_of(tmp_path / "whole", spec), OneProcess)
    parts = trained(estimator_of(tmp_path / "parts", spec), InParts)
    assert parts.get_variable_names() == whole.get_variable_names()
    for name in whole.get_variable_names():
        np.testing.assert_allclose(parts.get_variable_value(name), whole.get_variable_value(name), 2e-6, 1e-7, name)
    stored = read_bundle(Path(parts.latest_checkpoint() or ""))[TABLE_NAME]
    assert [(part.start, part.entry.shape) for part in stored.slices] == [
        ((0, 0), (2, 2)),
        ((2, 0), (2, 2)),
        ((4, 0), (1, 2)),
    ]


def test_a_whole_table_goes_on_from_the_checkpoint_of_parts_and_back(tmp_path: Path) -> None:
    estimator = trained(estimator_of(tmp_path), InParts)
    estimator.train(input_fn, steps=1)
    assert not read_bundle(Path(estimator.latest_checkpoint() or ""))[TABLE_NAME].is_sliced
    whole = estimator.get_variable_value(TABLE_NAME)
    trained(estimator, InParts)
    assert not np.array_equal(estimator.get_variable_value(TABLE_NAME), whole)
    assert [row["answer"].shape for row in estimator.predict(lambda params: input_fn(params).take(1))] == [(1,)] * 4


def test_configured_tables_are_split_too(tmp_path: Path) -> None:
    def model_fn(features: Any, labels: Any, mode: str, params: dict[str, Any]) -> Any:
        from model_export.estimator.estimator_spec import EstimatorSpec

        v1 = tf.compat.v1
        loss = tf.reduce_mean(tf.square(tf.reduce_sum(features["c"], axis=1, keepdims=True) - LABELS))
        step = v1.train.GradientDescentOptimizer(0.1).minimize(loss, v1.train.get_global_step())
        return EstimatorSpec(mode, loss=loss, train_op=step)

    def configured(folder: Path, processes: type[OneProcess]) -> EmbeddingEstimator:
        start = tf.compat.v1.constant_initializer(TABLE)
        spec = EmbeddingConfigSpec(
            table_to_config_dict={"t": TableConfig(len(TABLE), 2, initializer=start, combiner="sum")},
            feature_to_config_dict={"c": FeatureConfig("t")},
            optimization_parameters=AdagradParameters(0.5),
        )
        return trained(estimator_of(folder, spec, model_fn=model_fn), processes)

    whole, parts = configured(tmp_path / "whole", OneProcess), configured(tmp_path / "parts", InParts)
    for name in ("t", "t/Adagrad"):
        np.testing.assert_allclose(parts.get_variable_value(name), whole.get_variable_value(name), 2e-6, 1e-7)
    assert sparse(ROWS).shape[0] == len(LABELS)


@pytest.mark.parametrize("seed", [None, 5])
def test_each_part_draws_rows_of_its_own(seed: int | None, tmp_path: Path) -> None:
    start = tf.compat.v1.truncated_normal_initializer(stddev=0.5, seed=seed)
    spec = EmbeddingConfigSpec([column(initializer=start)], StochasticGradientDescentParameters(0.0))
    table = trained(estimator_of(tmp_path, spec), InParts).get_variable_value(TABLE_NAME)
    assert len(np.unique(table)) == table.size
