"""A model whose training is easy to compute with numpy: one table, one dense weight, a squared error."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from loadtest.foreign.frameworks import tf
from model_export.spec.embedding_config_spec import EmbeddingConfigSpec
from model_export.spec.optimization_parameters import StochasticGradientDescentParameters
from tests.unit.model_export.late import late

with late():
    from model_export.columns.embedding_column import embedding_column
    from model_export.estimator.estimator import EmbeddingEstimator
    from model_export.estimator.estimator_spec import EstimatorSpec, ModeKeys
    from model_export.estimator.run_config import RunConfig

ROWS = [[0, 3], [3], [1, 2, 2], []]
LABELS = np.array([[1.0], [0.5], [-1.0], [2.0]], np.float32)
TABLE = np.arange(10, dtype=np.float32).reshape(5, 2) / 10 - 0.4
WEIGHT = np.array([[0.7], [-0.3]], np.float32)
DENSE_RATE = 0.05
TABLE_NAME = "dense_features/c_embedding/embedding_weights"


def sparse(rows: Sequence[Sequence[int]]) -> Any:
    return tf.ragged.constant(rows, tf.int64, ragged_rank=1).to_sparse()


def column(**arguments: Any) -> Any:
    """Returns the embedding column, whose table is initialized with TABLE."""
    ids = tf.feature_column.categorical_column_with_identity("c", len(TABLE))
    start = tf.compat.v1.constant_initializer(TABLE)
    return embedding_column(ids, 2, **{"combiner": "sum", "initializer": start, **arguments})


def input_fn(params: dict[str, Any]) -> Any:
    return tf.data.Dataset.from_tensors(({"c": sparse(ROWS)}, tf.constant(LABELS))).repeat()


def one_epoch(params: dict[str, Any]) -> Any:
    return tf.data.Dataset.from_tensors(({"c": sparse(ROWS)}, tf.constant(LABELS)))


def model_fn_of(columns: Any, optimizer: Callable[[], Any] | None = None) -> Callable[..., Any]:
    """Returns a model_fn of these columns: their vectors times a weight."""

    def model_fn(features: Any, labels: Any, mode: str, params: dict[str, Any]) -> EstimatorSpec:
        v1 = tf.compat.v1
        vectors = tf.keras.layers.DenseFeatures(columns)(features)
        weight = v1.get_variable("weight", WEIGHT.shape, initializer=v1.constant_initializer(WEIGHT))
        answer = tf.matmul(vectors, weight)
        if mode == ModeKeys.PREDICT:
            return EstimatorSpec(mode, {"answer": answer, "vectors": vectors})
        loss = tf.reduce_mean(tf.square(answer - labels))
        train_op = None
        if mode == ModeKeys.TRAIN:
            trainer = optimizer() if optimizer else v1.train.GradientDescentOptimizer(DENSE_RATE)
            train_op = trainer.minimize(loss, v1.train.get_global_step())
        metrics = (lambda answer: {"mean_answer": v1.metrics.mean(answer)}, [answer])
        return EstimatorSpec(mode, loss=loss, train_op=train_op, eval_metrics=metrics)

    return model_fn


def estimator_of(model_dir: Any, spec: EmbeddingConfigSpec | None = None, **arguments: Any) -> EmbeddingEstimator:
    """Returns an estimator of the model; without a spec, SGD with a learning rate of 0.5 trains the table."""
    columns = [column()] if spec is None else spec.feature_columns
    if spec is None:
        spec = EmbeddingConfigSpec(columns, StochasticGradientDescentParameters(0.5))
    defaults = {
        "model_fn": model_fn_of(columns),
        "model_dir": model_dir,
        "config": RunConfig(tf_random_seed=1, save_summary_steps=1, checkpoint_save_graph_def=False),
        "train_batch_size": 4,
        "embedding_config_spec": spec,
    }
    return EmbeddingEstimator(**{**defaults, **arguments})


def recorder() -> Any:
    """Makes a hook that counts how often it is called."""

    class Recorder(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
        def __init__(self) -> None:
            self.begun = self.runs = self.ended = 0

        def begin(self) -> None:
            self.begun += 1

        def after_run(self, run_context: Any, run_values: Any) -> None:
            self.runs += 1

        def end(self, session: Any) -> None:
            self.ended += 1

    return Recorder()


def vectors_of(table: np.ndarray) -> np.ndarray:
    return np.stack([table[row].sum(axis=0) for row in ROWS])


def gradients(table: np.ndarray, weight: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    """Computes the loss, the gradient of the table and the gradient of the weight with numpy."""
    vectors = vectors_of(table)
    error = vectors @ weight - LABELS
    by_answer = 2 * error / len(ROWS)
    by_table = np.zeros_like(table)
    for row, gradient in zip(ROWS, by_answer @ weight.T, strict=True):
        for index in row:
            by_table[index] += gradient
    return float(np.mean(error**2)), by_table, vectors.T @ by_answer
