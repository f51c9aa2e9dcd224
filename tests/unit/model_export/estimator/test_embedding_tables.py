"""Trains tables that model_fn's optimizer does not see."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model_export.columns.embedding_column import embedding_column, shared_embedding_columns
from model_export.estimator.embedding_tables import TableRecorder
from model_export.estimator.estimator import EmbeddingEstimator
from model_export.estimator.estimator_spec import EstimatorSpec, ModeKeys
from model_export.estimator.run_config import RunConfig
from model_export.spec.embedding_config_spec import EmbeddingConfigSpec
from model_export.spec.optimization_parameters import AdagradParameters
from model_export.tensorflow_setup import tf
from tests.unit.model_export.estimator.small_model import sparse

pytestmark = pytest.mark.tf


def identity(key: str, size: int) -> Any:
    """Returns a categorical column."""
    return tf.feature_column.categorical_column_with_identity(key, size)


def columns() -> list[Any]:
    """Returns columns of a weighted table of its own, of a shared table, and one without a table."""
    weighted = tf.feature_column.weighted_categorical_column(identity("user/id", 5), "w")
    shared = shared_embedding_columns([identity("a", 7), identity("b", 7)], 2, shared_embedding_collection_name="films")
    return [embedding_column(weighted, 3), *shared, tf.feature_column.numeric_column("age")]


def features() -> dict[str, Any]:
    """Returns one row."""
    weights = tf.sparse.from_dense([[1.0]])
    ids = sparse([[1]])
    return {"user/id": ids, "w": weights, "a": ids, "b": ids, "age": tf.constant([[3.0]])}


def trainable() -> set[str]:
    """Returns the names of the trainable variables."""
    return {variable.op.name for variable in tf.compat.v1.trainable_variables()}


def test_tables_are_found_by_name_and_not_trainable_while_model_fn_runs() -> None:
    spec = EmbeddingConfigSpec(columns(), AdagradParameters(0.1))
    with tf.Graph().as_default():
        recorder = TableRecorder(spec, keeps_from_optimizer=True)
        with recorder.recording(), tf.name_scope("tower"):
            tf.keras.layers.DenseFeatures(spec.feature_columns)(features())
            tf.compat.v1.get_variable("other", [1])
            assert trainable() == {"other", "embedding_tables_anchor"}
        tables = {name: variable.op.name for name, variable in recorder.variables().items()}
        assert set(tables) == {"user_id_weighted_by_w", "films"}
        assert tables["films"] == "films"
        assert tables["user_id_weighted_by_w"].endswith("/user/id_weighted_by_w_embedding/embedding_weights")
        assert trainable() == {"other", *tables.values()}


def test_outside_training_tables_stay_as_they_are() -> None:
    spec = EmbeddingConfigSpec(columns(), AdagradParameters(0.1))
    with tf.Graph().as_default():
        recorder = TableRecorder(spec, keeps_from_optimizer=False)
        with recorder.recording():
            tf.keras.layers.DenseFeatures(spec.feature_columns)(features())
            assert trainable() == {variable.op.name for variable in recorder.variables().values()}


def test_a_column_that_is_not_used_or_used_twice_is_named() -> None:
    spec = EmbeddingConfigSpec(columns(), AdagradParameters(0.1))
    with tf.Graph().as_default():
        recorder = TableRecorder(spec, keeps_from_optimizer=True)
        with recorder.recording():
            tf.keras.layers.DenseFeatures(spec.feature_columns[1:])(features())
        with pytest.raises(ValueError, match=r"did not create: \['user_id_weighted_by_w'\]"):
            recorder.variables()
    with tf.Graph().as_default():
        recorder = TableRecorder(spec, keeps_from_optimizer=True)
        with recorder.recording():
            tf.keras.layers.DenseFeatures(spec.feature_columns)(features())
            tf.keras.layers.DenseFeatures(spec.feature_columns, name="again")(features())
        with pytest.raises(ValueError, match="created the table 'user_id_weighted_by_w' more than once"):
            recorder.variables()


def test_a_model_of_nothing_but_tables_trains_and_its_checkpoint_has_no_more_than_them(tmp_path: Path) -> None:
    a, b = (embedding_column(identity(key, 4), 2) for key in "ab")

    def model_fn(features: Any, labels: Any, mode: str, params: dict[str, Any]) -> EstimatorSpec:
        users, films = (tf.keras.layers.DenseFeatures([column], name=column.name)(features) for column in (a, b))
        loss = tf.reduce_mean(tf.square(tf.reduce_sum(users * films, axis=1) - labels))
        train_op = None
        if mode == ModeKeys.TRAIN:
            v1 = tf.compat.v1
            train_op = v1.train.AdagradOptimizer(0.1).minimize(loss, v1.train.get_global_step())
        return EstimatorSpec(mode, loss=loss, train_op=train_op)

    def input_fn(params: dict[str, Any]) -> Any:
        ids = sparse([[0], [1], [2]])
        return tf.data.Dataset.from_tensors(({"a": ids, "b": ids}, tf.constant([1.0, -1.0, 0.5]))).repeat()

    spec = EmbeddingConfigSpec([a, b], AdagradParameters(0.5))
    config = RunConfig(tf_random_seed=2)
    estimator = EmbeddingEstimator(model_fn, tmp_path, config, train_batch_size=3, embedding_config_spec=spec)
    before = estimator.evaluate(input_fn, steps=1)["loss"]
    estimator.train(input_fn, steps=30)
    assert estimator.evaluate(input_fn, steps=1)["loss"] < before / 10
    tables = ["a_embedding/a_embedding/embedding_weights", "b_embedding/b_embedding/embedding_weights"]
    assert estimator.get_variable_names() == sorted([*tables, *(f"{table}/Adagrad" for table in tables), "global_step"])
    assert np.isfinite(estimator.get_variable_value(tables[0])).all()
