"""Trains in a custom loop with two optimizers: Adagrad with a decaying rate for tables, Adam for all other variables.

python examples/export/separate_optimizers.py --out models/separate_optimizers
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np

from model_export import TPUEmbedding, export, split_variables, tpu_strategy, train_step
from model_export.tensorflow_setup import tf

embedding = tf.tpu.experimental.embedding
legacy = tf.keras.optimizers.legacy


class Ranker(tf.keras.Model):
    """Model of user and film vectors, which a small network converts to a rating."""

    def __init__(self, table_optimizer):
        super().__init__()
        users, films = (embedding.TableConfig(size, 8, name=name) for name, size in (("users", 200), ("films", 100)))
        self.vectors = TPUEmbedding(
            {"user_id": embedding.FeatureConfig(table=users), "film_id": embedding.FeatureConfig(table=films)},
            table_optimizer,
        )
        self.hidden = tf.keras.layers.Dense(16, activation="relu")
        self.output_layer = tf.keras.layers.Dense(1)

    def call(self, features):
        vectors = self.vectors(features)
        both = tf.concat([vectors["user_id"], vectors["film_id"]], axis=1)
        return {"rating": self.output_layer(self.hidden(both))[:, 0]}


def batches(rows=256, seed=1):
    """Yields batches of random users and films, and ratings that depend on both."""
    rng = np.random.default_rng(seed)
    while True:
        user, film = rng.integers(0, 200, rows), rng.integers(0, 100, rows)
        features = {"user_id": tf.constant(user), "film_id": tf.constant(film)}
        yield features, tf.constant((1 + user % 3 + film % 2).astype(np.float32))


def main() -> None:
    """Trains a model, restores its checkpoint in a second model without optimizers, and exports the second model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("models/separate_optimizers"), metavar="DIR")
    out = parser.parse_args().out
    with tpu_strategy().scope(), tempfile.TemporaryDirectory() as folder:
        table_optimizer = legacy.Adagrad(tf.keras.optimizers.schedules.ExponentialDecay(0.5, 50, 0.9))
        dense_optimizer = legacy.Adam(0.01)
        model = Ranker(table_optimizer)
        data = batches()
        model(next(data)[0])
        tables, dense = split_variables(model)
        print("by Adagrad:", [v.name for v in tables], "by Adam:", [v.name for v in dense])
        step = train_step(
            model, lambda rating, answer: tf.reduce_mean((answer["rating"] - rating) ** 2), dense_optimizer
        )
        losses = [float(step(*next(data))) for _ in range(200)]
        print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f}, table learning rate now {table_rate(table_optimizer):.4f}")
        checkpoint = tf.train.Checkpoint(model=model, tables=table_optimizer, dense=dense_optimizer)
        path = checkpoint.save(folder + "/checkpoint")

        # Serving needs no optimizer slots, so a second model, without a table optimizer, restores the checkpoint and is
        # exported.
        again = Ranker(None)
        tf.train.Checkpoint(model=again).restore(path).expect_partial()
        again(next(data)[0])
    print(f"exported and verified: {export(again, out)}")


def table_rate(optimizer) -> float:
    """Returns the learning rate of the tables in the next step."""
    return float(optimizer.learning_rate(optimizer.iterations))


if __name__ == "__main__":
    main()
