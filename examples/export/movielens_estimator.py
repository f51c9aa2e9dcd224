"""Trains a film rating model with feature columns and EmbeddingEstimator: TPUEstimator code with changed imports.

It is the model that `model-export demo` trains with the TPUEmbedding layer, with the same data, split and tower. Here
EmbeddingConfigSpec trains the tables by Adagrad, and model_fn trains the tower by Adam.

  python examples/export/movielens_estimator.py --data data/movielens-100k --out models/movielens_estimator
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np

from model_export import (
    AdagradParameters,
    EmbeddingConfigSpec,
    EmbeddingEstimator,
    EstimatorSpec,
    RunConfig,
    build_parsing_serving_input_receiver_fn,
    embedding_column,
    export,
    shared_embedding_columns,
)
from model_export.tensorflow_setup import tf
from movielens.download import fetch
from movielens.examples import build_examples, split
from movielens.rating_model import rating_model_spec
from movielens.ratings import synthetic_ratings

RECENT_FILMS = 10
DIMENSION = 32


def make_columns(data):
    """Returns the embedding columns by name; film_id and recent_films read one table."""
    fc = tf.feature_column
    users = fc.categorical_column_with_identity("user_id", data.num_users + 1, default_value=0)
    films, recent = (
        fc.categorical_column_with_identity(key, data.num_films + 1, default_value=0)
        for key in ("film_id", "recent_films")
    )
    # The column has one out-of-vocabulary bucket: all words outside the vocabulary share a row.
    genres = fc.categorical_column_with_vocabulary_list("genres", data.genre_vocabulary, num_oov_buckets=1)
    jobs = fc.categorical_column_with_vocabulary_list("occupation", data.occupation_vocabulary, num_oov_buckets=1)
    start = {"initializer": tf.compat.v1.truncated_normal_initializer(stddev=0.05)}
    film_column, recent_column = shared_embedding_columns([films, recent], DIMENSION, **start)
    return {
        "user_id": embedding_column(users, DIMENSION, **start),
        "film_id": film_column,
        "recent_films": recent_column,
        "genres": embedding_column(genres, 8, **start),
        "occupation": embedding_column(jobs, 8, **start),
    }


def make_model_fn(columns, mean_rating):
    """Returns a model_fn that computes rating = mean + biases + taste . film + a small network."""

    def model_fn(features, labels, mode, params):
        v1 = tf.compat.v1
        vectors = {
            name: v1.keras.layers.DenseFeatures([column], name=name)(features) for name, column in columns.items()
        }
        user, film, recent = vectors["user_id"], vectors["film_id"], vectors["recent_films"]
        x = tf.concat([user, film, recent, vectors["genres"], vectors["occupation"]], axis=1)
        for width in (128, 64):
            x = v1.keras.layers.Dense(width, activation="relu", kernel_initializer="he_normal")(x)
            if mode == "train":
                x = tf.nn.dropout(x, rate=params["dropout"])
        to_taste = v1.get_variable("taste", [DIMENSION, DIMENSION - 1], initializer=v1.zeros_initializer())
        taste = user[:, 1:] + tf.matmul(recent, to_taste)
        rating = mean_rating + user[:, 0] + film[:, 0] + tf.reduce_sum(taste * film[:, 1:], axis=1)
        rating += v1.keras.layers.Dense(1)(x)[:, 0]
        clipped = tf.clip_by_value(rating, 1.0, 5.0)
        if mode == "infer":
            return EstimatorSpec(mode, predictions={"rating": clipped})
        loss = tf.reduce_mean(tf.square(rating - labels))
        if mode == "eval":

            def metrics(labels, ratings):
                return {"rmse": v1.metrics.root_mean_squared_error(labels, ratings)}

            return EstimatorSpec(mode, loss=loss, eval_metrics=(metrics, [labels, clipped]))
        step = v1.train.get_or_create_global_step()
        return EstimatorSpec(mode, loss=loss, train_op=v1.train.AdamOptimizer(0.001).minimize(loss, step))

    return model_fn


def features_of(examples, data):
    """Returns the features as arrays by name, one row per example: ids, words, and padded lists."""
    words = np.array(["", *data.genre_vocabulary], object)
    jobs = np.array(["unknown", *data.occupation_vocabulary], object)

    def padded(ids, width, filling):
        lengths = np.diff(ids.row_splits)
        out = np.full((len(lengths), width), filling, np.int64)
        out[np.arange(width) < lengths[:, None]] = ids.values
        return out

    return {
        "user_id": examples.ids["user_id"][:, None],
        "film_id": examples.ids["film_id"][:, None],
        "occupation": jobs[examples.ids["occupation"]][:, None].astype(np.bytes_),
        # Lists are padded with -1 or the empty string, which feature columns ignore.
        "recent_films": padded(examples.ragged["recent_films"], RECENT_FILMS, -1),
        "genres": words[padded(examples.ragged["genres"], 8, 0)].astype(np.bytes_),
    }


def make_input_fn(features, ratings, *, epochs=1, unknown_rate=0.0, seed=1):
    """Returns an input_fn that replaces a share of ids (unknown_rate) by 0, to train row 0 for unknown ids."""

    def forget(batch):
        def replaced(name, ids):
            if ids.dtype == tf.string:
                return ids
            is_forgotten = tf.random.uniform(tf.shape(ids), seed=seed) < unknown_rate
            return tf.where(is_forgotten & (ids >= 0), tf.zeros_like(ids), ids)

        return {name: replaced(name, ids) for name, ids in batch.items()}

    def input_fn(params):
        dataset = tf.data.Dataset.from_tensor_slices((features, ratings))
        if unknown_rate:
            dataset = dataset.shuffle(len(ratings), seed=seed).repeat(epochs)
        dataset = dataset.batch(params["batch_size"], drop_remainder=bool(unknown_rate))
        return dataset.map(lambda batch, labels: (forget(batch), labels)) if unknown_rate else dataset

    return input_fn


def main() -> None:
    """Trains the model, prints its held-out error, and exports it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", choices=["movielens", "synthetic"], default="movielens")
    parser.add_argument("--data", type=Path, default=Path("data/movielens-100k"), metavar="DIR")
    parser.add_argument("--out", type=Path, default=Path("models/movielens_estimator"), metavar="DIR")
    parser.add_argument("--epochs", type=int, default=16)
    arguments = parser.parse_args()
    is_synthetic = arguments.dataset == "synthetic"
    data = synthetic_ratings() if is_synthetic else fetch(arguments.data)
    train, held_out = split(build_examples(data, rating_model_spec(data)), data, "test")
    mean_rating = float(train.rating.mean(dtype=np.float64))
    columns = make_columns(data)
    with tempfile.TemporaryDirectory() as folder:
        estimator = EmbeddingEstimator(
            make_model_fn(columns, mean_rating),
            model_dir=folder,
            config=RunConfig(tf_random_seed=1),
            params={"dropout": 0.65},
            train_batch_size=32 if is_synthetic else 512,
            eval_batch_size=1024,
            predict_batch_size=1024,
            embedding_config_spec=EmbeddingConfigSpec(
                feature_columns=list(columns.values()), optimization_parameters=AdagradParameters(0.3)
            ),
        )
        estimator.train(
            make_input_fn(features_of(train, data), train.rating, epochs=arguments.epochs, unknown_rate=0.02)
        )
        result = estimator.evaluate(make_input_fn(features_of(held_out, data), held_out.rating))
        print(f"held-out RMSE {result['rmse']:.4f} after {result['global_step']} steps")
        parse_spec = {
            "user_id": tf.io.VarLenFeature(tf.int64),
            "film_id": tf.io.VarLenFeature(tf.int64),
            "recent_films": tf.io.VarLenFeature(tf.int64),
            "genres": tf.io.VarLenFeature(tf.string),
            "occupation": tf.io.VarLenFeature(tf.string),
        }
        receiver = build_parsing_serving_input_receiver_fn(parse_spec)
        artifact = export(
            estimator,
            arguments.out,
            serving_input_receiver_fn=receiver,
            max_ids_per_row=RECENT_FILMS,
            lookup_device=["cpu", "tpu_tensor_core"],
        )
        print(f"exported and verified: {artifact}")


if __name__ == "__main__":
    main()
