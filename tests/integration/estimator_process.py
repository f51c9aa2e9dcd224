"""One process of a training by EmbeddingEstimator; TF_CONFIG gives its task. The chief evaluates the trained model.

python -m tests.integration.estimator_process MODEL_DIR STEPS [--mirrored] [--movielens FOLDER]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np

from loadtest.foreign.frameworks import tf
from model_export.columns.embedding_column import embedding_column
from model_export.estimator.estimator import EmbeddingEstimator
from model_export.estimator.estimator_spec import EstimatorSpec, ModeKeys
from model_export.estimator.run_config import RunConfig
from model_export.spec.embedding_config_spec import EmbeddingConfigSpec
from model_export.spec.optimization_parameters import AdagradParameters
from movielens.ratings import RatingData, read_ratings, synthetic_ratings

BATCH, DIM, HELD_OUT = 100, 8, 10


def ratings(movielens: str | None) -> RatingData:
    """Returns the ratings of a folder that `model-export fetch movielens` wrote, or synthetic ones."""
    return synthetic_ratings() if movielens is None else read_ratings(Path(movielens), "movielens")


def columns(sizes: dict[str, int]) -> list[Any]:
    """Returns one embedding column for users and one for films."""
    start = tf.keras.initializers.RandomUniform(-0.05, 0.05, seed=3)
    return [
        embedding_column(tf.feature_column.categorical_column_with_identity(name, size), DIM, initializer=start)
        for name, size in sizes.items()
    ]


def model_fn_of(columns: list[Any], mean: float) -> Any:
    """Returns a model_fn: the mean rating, a product of the user's and the film's vector, and a dense layer."""

    def model_fn(features: Any, labels: Any, mode: str, params: dict[str, Any]) -> EstimatorSpec:
        v1 = tf.compat.v1
        vectors = tf.keras.layers.DenseFeatures(columns)(features)
        film, user = tf.split(vectors, 2, axis=1)
        weight = v1.get_variable("weight", (2 * DIM, 1), initializer=v1.constant_initializer(0.1))
        bias = v1.get_variable("bias", (), initializer=v1.constant_initializer(mean))
        answer = bias + tf.reduce_sum(film * user, axis=1) + tf.matmul(vectors, weight)[:, 0]
        if mode == ModeKeys.PREDICT:
            return EstimatorSpec(mode, {"answer": answer})
        loss = tf.reduce_mean(tf.square(answer - labels))
        train_op = None
        if mode == ModeKeys.TRAIN:
            optimizer = v1.tpu.CrossShardOptimizer(v1.train.AdagradOptimizer(0.05))
            train_op = optimizer.minimize(loss, v1.train.get_global_step())
        squares = (
            lambda labels, answer: {"rmse": v1.metrics.root_mean_squared_error(labels, answer)},
            [labels, answer],
        )
        return EstimatorSpec(mode, loss=loss, train_op=train_op, eval_metrics=squares)

    return model_fn


def main() -> None:
    """Trains in this process's part of the cluster; the chief prints the held-out RMSE."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model_dir")
    parser.add_argument("steps", type=int)
    parser.add_argument("--mirrored", action="store_true")
    parser.add_argument("--movielens")
    options = parser.parse_args()
    # MultiWorkerMirroredStrategy must be made before TensorFlow runs any operation.
    strategy = tf.distribute.MultiWorkerMirroredStrategy() if options.mirrored else None
    data = ratings(options.movielens)
    order = np.random.default_rng(1).permutation(len(data.rating))
    tests, trained = order[::HELD_OUT], np.delete(order, np.s_[::HELD_OUT])
    config = RunConfig(
        model_dir=options.model_dir, tf_random_seed=1, train_distribute=strategy, save_checkpoints_steps=50
    )

    def examples(rows: Any) -> Any:
        features = {"film": data.film_id[rows], "user": data.user_id[rows]}
        return tf.data.Dataset.from_tensor_slices((features, data.rating[rows].astype(np.float32)))

    def train_input(params: dict[str, Any]) -> Any:
        # Each worker of the training reads another share of the examples.
        dataset = examples(trained).shuffle(len(trained), seed=2).repeat()
        share = dataset.shard(config.num_worker_replicas, config.global_id_in_cluster)
        return share.batch(params["batch_size"])

    found = columns({"film": data.num_films + 1, "user": data.num_users + 1})
    estimator = EmbeddingEstimator(
        model_fn_of(found, float(data.rating[trained].mean())),
        config=config,
        train_batch_size=BATCH,
        embedding_config_spec=EmbeddingConfigSpec(found, AdagradParameters(0.1)),
    )
    estimator.train(train_input, max_steps=options.steps)
    if config.is_chief:
        metrics = estimator.evaluate(lambda params: examples(tests).batch(1000))
        sys.stdout.write(f"rmse {metrics['rmse']:.6f} step {metrics['global_step']}\n")


if __name__ == "__main__":
    main()
