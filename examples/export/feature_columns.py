"""Trains a model_fn with feature columns (vocabularies, weights, a sequence), and exports the columns as lookups.

python examples/export/feature_columns.py --out models/feature_columns
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
)
from model_export.tensorflow_setup import tf

CITIES = ["Berlin", "Lima", "Osaka", "Perth"]
PARSE_SPEC = {
    "city": tf.io.VarLenFeature(tf.string),
    "tag": tf.io.VarLenFeature(tf.int64),
    "tag_weight": tf.io.VarLenFeature(tf.float32),
    "clicks": tf.io.VarLenFeature(tf.int64),
}

fc = tf.feature_column
# A city outside the vocabulary reads one of two extra rows, which the hash of its name selects.
city = embedding_column(fc.categorical_column_with_vocabulary_list("city", CITIES, num_oov_buckets=2), dimension=4)
tag = embedding_column(
    fc.weighted_categorical_column(fc.categorical_column_with_identity("tag", 50), "tag_weight"),
    dimension=8,
    combiner="sqrtn",
)
# The model gets the vectors of a user's first five clicks, in order; shorter sequences are padded with zeros.
clicks = embedding_column(
    fc.sequence_categorical_column_with_identity("clicks", 100), dimension=8, max_sequence_length=5
)


def model_fn(features, labels, mode, params):
    """Builds a logistic regression over the looked-up vectors."""
    v1 = tf.compat.v1
    bags = v1.keras.layers.DenseFeatures([city, tag])(features)
    sequence, _ = tf.keras.experimental.SequenceFeatures([clicks])(features)
    x = tf.concat([bags, tf.reshape(sequence, [-1, 5 * 8])], axis=1)
    logits = v1.keras.layers.Dense(1)(x)[:, 0]
    if mode == "infer":
        return EstimatorSpec(mode, predictions={"score": tf.sigmoid(logits)})
    loss = v1.losses.sigmoid_cross_entropy(labels, logits)
    step = v1.train.get_or_create_global_step()
    return EstimatorSpec(mode, loss=loss, train_op=v1.train.AdamOptimizer(0.01).minimize(loss, step))


def input_fn(params):
    """Returns 512 random examples, in which users in Lima and Osaka click and others do not."""
    rng = np.random.default_rng(1)
    cities = rng.integers(0, len(CITIES), 512)
    features = {
        "city": tf.constant([[CITIES[c]] for c in cities]),
        "tag": tf.constant(rng.integers(0, 50, (512, 3))),
        "tag_weight": tf.constant(rng.uniform(0.1, 1, (512, 3)).astype(np.float32)),
        "clicks": tf.constant(rng.integers(0, 100, (512, 7))),
    }
    sparse = {name: tf.sparse.from_dense(values) for name, values in features.items() if name == "tag_weight"}
    dataset = tf.data.Dataset.from_tensor_slices(({**features, **sparse}, np.isin(cities, (1, 2)).astype(np.float32)))
    return dataset.repeat().batch(params["batch_size"])


def main() -> None:
    """Trains the model for 200 steps and exports it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("models/feature_columns"), metavar="DIR")
    out = parser.parse_args().out
    spec = EmbeddingConfigSpec(
        feature_columns=[city, tag, clicks], optimization_parameters=AdagradParameters(learning_rate=0.1)
    )
    with tempfile.TemporaryDirectory() as folder:
        estimator = EmbeddingEstimator(
            model_fn, model_dir=folder, config=RunConfig(), train_batch_size=64, embedding_config_spec=spec
        )
        estimator.train(input_fn, steps=200)
        receiver = build_parsing_serving_input_receiver_fn(PARSE_SPEC)
        print(f"exported and verified: {export(estimator, out, serving_input_receiver_fn=receiver)}")


if __name__ == "__main__":
    main()
