"""With feature_to_config_dict, model_fn gets vectors, and the estimator makes the tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadtest.foreign.frameworks import tf
from model_export.spec.embedding_config_spec import EmbeddingConfigSpec
from model_export.spec.optimization_parameters import AdagradParameters, StochasticGradientDescentParameters
from model_export.spec.table_config import FeatureConfig, TableConfig
from tests.unit.model_export.estimator.small_model import sparse
from tests.unit.model_export.late import late

with late():
    from model_export.estimator.embedding_tables import TableRecorder, with_activations
    from model_export.estimator.estimator import EmbeddingEstimator
    from model_export.estimator.estimator_spec import EstimatorSpec, ModeKeys
    from model_export.estimator.run_config import RunConfig

pytestmark = pytest.mark.tf

TABLE = np.arange(12, dtype=np.float32).reshape(6, 2)


def start(shape: Any, dtype: Any = None, partition_info: Any = None) -> Any:
    return tf.constant(TABLE)


def spec_of(**features: FeatureConfig) -> EmbeddingConfigSpec:
    """Returns a spec over up to two tables of the same rows, one combined by mean and one not combined."""
    tables = {"t": TableConfig(6, 2, start), "one": TableConfig(6, 2, start, combiner=None)}
    used = {name: tables[name] for name in tables if name in {feature.table_id for feature in features.values()}}
    return EmbeddingConfigSpec(
        optimization_parameters=StochasticGradientDescentParameters(0.5),
        feature_to_config_dict=features,
        table_to_config_dict=used,
    )


def activations(spec: EmbeddingConfigSpec, features: Any) -> dict[str, Any]:
    """Returns the tensors that model_fn gets, as arrays."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        features = features()
        recorder = TableRecorder(spec, keeps_from_optimizer=False)
        with recorder.recording():
            given = with_activations(spec, features, recorder)
        session.run(tf.compat.v1.global_variables_initializer())
        fetched: dict[str, Any] = session.run(given)
        return fetched


def test_ids_become_vectors_by_kind_of_feature() -> None:
    spec = spec_of(
        mean=FeatureConfig("t"),
        weighted=FeatureConfig("t", weight_key="w"),
        ragged=FeatureConfig("t"),
        padded=FeatureConfig("t"),
        single=FeatureConfig("one"),
        sequence=FeatureConfig("t", max_sequence_length=2),
    )
    got = activations(
        spec,
        lambda: {
            "mean": sparse([[1, 3], []]),
            "weighted": sparse([[1, 3], [2]]),
            "w": tf.sparse.from_dense([[1.0, 3.0], [0.5, 0.0]]),
            "ragged": tf.ragged.constant([[5], [0, 0, 1]], tf.int64),
            "padded": tf.constant([[2, 4, 0], [0, 0, 0]]),
            "single": tf.constant([4, 0]),
            "sequence": sparse([[1, 2, 3], [5]]),
            "age": tf.constant([7.0, 8.0]),
        },
    )
    assert set(got) == {"mean", "weighted", "ragged", "padded", "single", "sequence", "sequence_seq_length_", "age"}
    np.testing.assert_allclose(got["mean"], [TABLE[[1, 3]].mean(axis=0), [0, 0]])
    np.testing.assert_allclose(got["weighted"], [(TABLE[1] + 3 * TABLE[3]) / 4, TABLE[2]])
    np.testing.assert_allclose(got["ragged"], [TABLE[5], (2 * TABLE[0] + TABLE[1]) / 3], rtol=1e-6)
    # In a dense matrix of ids 0 is padding, as in TPUEstimator.
    np.testing.assert_allclose(got["padded"], [TABLE[[2, 4]].mean(axis=0), [0, 0]])
    np.testing.assert_allclose(got["single"], TABLE[[4, 0]])
    np.testing.assert_allclose(got["sequence"], [TABLE[[1, 2]], [TABLE[5], [0, 0]]])
    assert got["sequence_seq_length_"].tolist() == [2, 1]


@pytest.mark.parametrize(
    ("feature", "given", "message"),
    [
        (FeatureConfig("t"), lambda: {}, "features has no 'f'"),
        (FeatureConfig("t"), lambda: tf.constant([1]), "feature_to_config_dict needs a dict"),
        (FeatureConfig("t"), lambda: {"f": tf.constant([["a"]])}, "'f' has string values"),
        (FeatureConfig("t", weight_key="w"), lambda: {"f": sparse([[1]])}, "features has no 'w', the weights of"),
        (
            FeatureConfig("t", weight_key="w"),
            lambda: {"f": sparse([[1]]), "w": tf.constant([[1.0]])},
            "both must be sparse or ragged",
        ),
        (FeatureConfig("one"), lambda: {"f": sparse([[1]])}, "its table 'one' has no combiner"),
    ],
)
def test_features_that_do_not_fit_are_named(feature: FeatureConfig, given: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        activations(spec_of(f=feature), given)


def test_tables_of_dicts_are_trained_each_by_its_own_parameters(tmp_path: Path) -> None:
    spec = EmbeddingConfigSpec(
        optimization_parameters=StochasticGradientDescentParameters(0.5),
        feature_to_config_dict={"a": FeatureConfig("films"), "b": FeatureConfig("users")},
        table_to_config_dict={
            "films": TableConfig(6, 2, start, combiner="sum", learning_rate=0.25),
            "users": TableConfig(6, 2, start, optimization_parameters=AdagradParameters(0.1)),
        },
        clipping_limit=1.0,
    )

    def model_fn(features: Any, labels: Any, mode: str, params: dict[str, Any]) -> EstimatorSpec:
        loss = tf.reduce_sum(features["a"] * 3.0) + tf.reduce_sum(features["b"] * 0.5)
        train_op = None
        if mode == ModeKeys.TRAIN:
            v1 = tf.compat.v1
            train_op = v1.train.GradientDescentOptimizer(1.0).minimize(loss, v1.train.get_global_step())
        return EstimatorSpec(mode, loss=loss, train_op=train_op)

    def input_fn(params: dict[str, Any]) -> Any:
        return tf.data.Dataset.from_tensors({"a": sparse([[1], [2]]), "b": sparse([[3], [3]])}).repeat()

    estimator = EmbeddingEstimator(model_fn, tmp_path, RunConfig(), train_batch_size=2, embedding_config_spec=spec)
    estimator.train(input_fn, steps=1)
    assert estimator.get_variable_names() == ["films", "global_step", "users", "users/Adagrad"]
    films = TABLE.copy()
    films[[1, 2]] -= 0.25 * 1.0  # a gradient of 3, clipped to 1
    np.testing.assert_allclose(estimator.get_variable_value("films"), films)
    users = TABLE.copy()
    users[3] -= 0.1 * 1.0 / np.sqrt(0.1 + 1.0)  # a gradient of 0.5 from each of two rows
    np.testing.assert_allclose(estimator.get_variable_value("users"), users, rtol=1e-6)
