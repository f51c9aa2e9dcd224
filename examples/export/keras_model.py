"""Trains and exports a plain Keras 3 model: StringLookup maps names to rows, Embedding maps rows to vectors.

python examples/export/keras_model.py --out models/films
"""

from __future__ import annotations

import argparse
from pathlib import Path

import keras
import numpy as np
from keras import layers

from model_export import export

USERS = ["ann", "bob", "cyd", "dan"]
FILMS = 20


def make_model():
    """Returns a Keras model that predicts a rating from the user's name, the film's number and the film's age."""
    user = keras.Input((), dtype="string", name="user")
    film = keras.Input((), dtype="int64", name="film")
    age = keras.Input((1,), dtype="float32", name="age")
    # Row 0 of the table is for names that are not in the vocabulary.
    user_vector = layers.Embedding(len(USERS) + 1, 8, name="users")(layers.StringLookup(vocabulary=USERS)(user))
    film_vector = layers.Embedding(FILMS, 8, name="films")(film)
    x = layers.Concatenate()([user_vector, film_vector, age])
    rating = layers.Dense(1, name="rating")(layers.Dense(16, activation="relu")(x))
    return keras.Model({"user": user, "film": film, "age": age}, {"rating": rating}, name="films")


def make_data(rows=512, seed=1):
    """Returns batches of features and ratings: some users like films of even number, the others of odd number."""
    import tensorflow as tf

    rng = np.random.default_rng(seed)
    user, film = rng.integers(0, len(USERS), rows), rng.integers(0, FILMS, rows)
    features = {"user": np.array(USERS)[user], "film": film, "age": rng.random((rows, 1), np.float32)}
    rating = np.where((user + film) % 2 == 0, 5, 1).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices((features, {"rating": rating[:, None]})).batch(32)


def main() -> None:
    """Trains the model for twenty epochs and exports it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("models/films"), metavar="DIR")
    out = parser.parse_args().out
    keras.utils.set_random_seed(1)
    model = make_model()
    model.compile(keras.optimizers.Adam(0.03), "mse")
    history = model.fit(make_data(), epochs=20, shuffle=False, verbose=0)
    print("loss", [round(loss, 4) for loss in history.history["loss"]])
    # With say=print, export() prints how each signature will be served.
    print(f"exported and verified: {export(model, out, say=print)}")


if __name__ == "__main__":
    main()
