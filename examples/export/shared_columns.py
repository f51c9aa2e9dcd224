"""Trains two features that share one table: shared_embedding_columns with the tensor-core lookup, in a model_fn.

python examples/export/shared_columns.py --out models/shared_columns
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np

from model_export import (
    AdamParameters,
    EmbeddingConfigSpec,
    EmbeddingEstimator,
    EstimatorSpec,
    RunConfig,
    build_parsing_serving_input_receiver_fn,
    export,
    shared_embedding_columns,
)
from model_export.tensorflow_setup import tf

# Both columns are trained and served with the padded lookup of a TPU's tensor core: 4 ids per row, longer rows are cut.
watched, liked = shared_embedding_columns(
    [tf.feature_column.categorical_column_with_identity(key, 300) for key in ("watched", "liked")],
    dimension=16,
    combiner="mean",
    shared_embedding_collection_name="films",
    learning_rate_fn=lambda step: tf.compat.v1.train.exponential_decay(0.05, step, 100, 0.9),
    embedding_lookup_device="tpu_tensor_core",
    tensor_core_shape=[None, 4],
)


def model_fn(features, labels, mode, params):
    """Builds a regression that predicts the share of liked films among the watched films."""
    v1 = tf.compat.v1
    vectors = v1.keras.layers.DenseFeatures([watched, liked])(features)
    share = v1.keras.layers.Dense(1, activation="sigmoid")(vectors)[:, 0]
    if mode == "infer":
        return EstimatorSpec(mode, predictions={"share": share})
    loss = tf.reduce_mean(tf.square(share - labels))
    step = v1.train.get_or_create_global_step()
    return EstimatorSpec(mode, loss=loss, train_op=v1.train.AdamOptimizer(0.01).minimize(loss, step))


def input_fn(params):
    """Returns random lists of films; every user likes the films whose number is divisible by 3."""
    rng = np.random.default_rng(1)
    films = rng.integers(0, 300, (512, 4))
    likes = films % 3 == 0
    features = {"watched": films, "liked": np.where(likes, films, -1)}  # -1 is padding
    dataset = tf.data.Dataset.from_tensor_slices((features, likes.mean(axis=1).astype(np.float32)))
    return dataset.repeat().batch(params["batch_size"])


def main() -> None:
    """Trains the model for 300 steps and exports it with both lookups and a MetaGraph for TPUs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("models/shared_columns"), metavar="DIR")
    out = parser.parse_args().out
    spec = EmbeddingConfigSpec(feature_columns=[watched, liked], optimization_parameters=AdamParameters(0.05))
    with tempfile.TemporaryDirectory() as folder:
        estimator = EmbeddingEstimator(
            model_fn, model_dir=folder, config=RunConfig(), train_batch_size=64, embedding_config_spec=spec
        )
        estimator.train(input_fn, steps=300)
        parse_spec = {name: tf.io.VarLenFeature(tf.int64) for name in ("watched", "liked")}
        artifact = export(
            estimator,
            out,
            serving_input_receiver_fn=build_parsing_serving_input_receiver_fn(parse_spec),
            lookup_device=["cpu", "tpu_tensor_core"],
            export_to_tpu=True,
        )
        print(f"exported and verified: {artifact}")


if __name__ == "__main__":
    main()
