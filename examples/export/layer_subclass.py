"""Exports a subclassed Keras model with a vocabulary: the layer gets row numbers, clients of the export send words.

python examples/export/layer_subclass.py --out models/layer_subclass
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from model_export import TPUEmbedding, export
from model_export.tensorflow_setup import tf

embedding = tf.tpu.experimental.embedding
GENRES = ["action", "comedy", "drama", "horror", "western"]


class GenreModel(tf.keras.Model):
    """Model that scores a list of genres; row 0 of its table is for genres outside the vocabulary."""

    def __init__(self):
        super().__init__()
        table = embedding.TableConfig(len(GENRES) + 1, 4, combiner="sum", name="genre")
        self.vectors = TPUEmbedding(
            {"genres": embedding.FeatureConfig(table=table)}, tf.tpu.experimental.embedding.Adagrad(0.3)
        )
        self.score = tf.keras.layers.Dense(1, activation="sigmoid")

    def call(self, features):
        return {"score": self.score(self.vectors(features)["genres"])[:, 0]}


def main() -> None:
    """Trains the model and exports it with a vocabulary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("models/layer_subclass"), metavar="DIR")
    out = parser.parse_args().out
    rng = np.random.default_rng(1)
    lengths = rng.integers(0, 4, 512)
    genres = tf.RaggedTensor.from_row_lengths(rng.integers(0, len(GENRES) + 1, lengths.sum()), lengths)
    # Id 3 means "drama": the layer's ids start at 1, because 0 stands for a genre outside GENRES.
    likes = tf.cast(tf.reduce_any(genres == 3, axis=1), tf.float32)
    model = GenreModel()
    model.compile(tf.keras.optimizers.legacy.Adam(0.01), {"score": "binary_crossentropy"})
    data = tf.data.Dataset.from_tensor_slices(({"genres": genres}, {"score": likes})).batch(64)
    history = model.fit(data, epochs=10, verbose=0)
    print("loss", [round(loss, 4) for loss in history.history["loss"]])
    vocabulary = tf.keras.layers.StringLookup(vocabulary=GENRES)
    artifact = export(model, out, vocabularies={"genres": vocabulary}, history=history)
    print(f"exported and verified: {artifact}")


if __name__ == "__main__":
    main()
