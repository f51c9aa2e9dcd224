"""Trains and exports a functional Keras model with a TPUEmbedding layer.

python examples/export/layer_functional.py --out models/layer_functional
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from model_export import TPUEmbedding, export
from model_export.tensorflow_setup import tf

embedding = tf.tpu.experimental.embedding


def make_model():
    """Returns a model with three features: a user, the items that the user saw, and the user's last four clicks."""
    users = embedding.TableConfig(100, 8, name="users")
    items = embedding.TableConfig(50, 8, name="items", combiner="mean")
    feature_config = {
        "user": embedding.FeatureConfig(table=users),
        "seen": embedding.FeatureConfig(table=items),
        "clicks": embedding.FeatureConfig(table=items, max_sequence_length=4),
    }
    inputs = {
        "user": tf.keras.Input(shape=(), dtype=tf.int64, name="user"),
        "seen": tf.keras.Input(shape=(None,), dtype=tf.int64, ragged=True, name="seen"),
        "clicks": tf.keras.Input(shape=(None,), dtype=tf.int64, ragged=True, name="clicks"),
    }
    vectors = TPUEmbedding(feature_config, optimizer="adagrad")(inputs)
    clicks = tf.keras.layers.Flatten()(tf.keras.layers.Reshape([4, 8])(vectors["clicks"]))
    x = tf.keras.layers.Concatenate()([vectors["user"], vectors["seen"], clicks])
    score = tf.keras.layers.Dense(1, activation="sigmoid", name="score")(x)
    return tf.keras.Model(inputs, score)


def make_data(rows=512, seed=1):
    """Returns features and labels: the label is 1 for users with an even number."""
    rng = np.random.default_rng(seed)
    user = rng.integers(0, 100, rows)

    def ragged(most):
        lengths = rng.integers(0, most, rows)
        return tf.RaggedTensor.from_row_lengths(rng.integers(0, 50, lengths.sum()), lengths)

    return {"user": user, "seen": ragged(6), "clicks": ragged(8)}, (user % 2 == 0).astype(np.float32)


def main() -> None:
    """Trains the model for five epochs and exports it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("models/layer_functional"), metavar="DIR")
    out = parser.parse_args().out
    model = make_model()
    model.compile(tf.keras.optimizers.legacy.Adagrad(0.5), "binary_crossentropy")
    history = model.fit(tf.data.Dataset.from_tensor_slices(make_data()).batch(64), epochs=5, verbose=0)
    print("loss", [round(loss, 4) for loss in history.history["loss"]])
    # The padded tensor-core lookup refuses a request with a row of more than five seen items.
    artifact = export(
        model, out, lookup_device=["cpu", "tpu_tensor_core"], max_ids_per_row={"seen": 5}, history=history
    )
    print(f"exported and verified: {artifact}")


if __name__ == "__main__":
    main()
