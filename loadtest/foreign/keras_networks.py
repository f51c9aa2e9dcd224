"""Networks that Keras 2 and Keras 3 build alike: functional, subclassed and sequential."""

from __future__ import annotations

from typing import Any

from loadtest.foreign.kinds import Ids, Kind
from loadtest.foreign.models import Rows

USERS, ITEMS, TAGS = 3000, 2000, 500
FUNCTIONAL: dict[str, Kind] = {"user": Ids(USERS), "item": Ids(ITEMS)}
SUBCLASSED: dict[str, Kind] = {"user": Ids(USERS), "item": Ids(ITEMS), "price": Ids(100)}
SEQUENTIAL: dict[str, Kind] = {"*": Ids(TAGS)}


def functional(keras: Any, rows: Rows) -> Any:
    """Returns a model of inputs of shape [B, 1] and [B]."""
    user = keras.Input((1,), dtype="int64", name="user")
    item = keras.Input((), dtype="int64", name="item")
    user_vector = keras.layers.Flatten()(keras.layers.Embedding(rows(USERS), 16, name="users")(user))
    item_vector = keras.layers.Embedding(rows(ITEMS), 16, name="items")(item)
    hidden = keras.layers.Dense(32, activation="relu")(keras.layers.Concatenate()([user_vector, item_vector]))
    return keras.Model({"user": user, "item": item}, keras.layers.Dense(1, activation="sigmoid")(hidden))


def subclassed(keras: Any, rows: Rows) -> Any:
    """Returns a model that has been called once, with a dict of inputs of shape [B]."""
    import tensorflow as tf

    class Ranker(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.users = keras.layers.Embedding(rows(USERS), 16)
            self.items = keras.layers.Embedding(rows(ITEMS), 16)
            self.hidden = keras.layers.Dense(24, activation="relu")
            self.score = keras.layers.Dense(1)

        def call(self, inputs: Any) -> Any:
            vectors = [self.users(inputs["user"]), self.items(inputs["item"])]
            return self.score(self.hidden(tf.concat(vectors, 1))) * tf.cast(inputs["price"], tf.float32)[:, None]

    model = Ranker()
    model({name: tf.zeros([2], tf.int64) for name in ("user", "item", "price")})
    return model


def sequential(keras: Any, rows: Rows) -> Any:
    """Returns a model of ids [B, 10], where 0 is padding."""
    return keras.Sequential(
        [
            keras.Input((10,), dtype="int32"),
            keras.layers.Embedding(rows(TAGS), 8, mask_zero=True),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dense(4),
        ]
    )
