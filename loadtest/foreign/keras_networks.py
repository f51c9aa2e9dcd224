"""Builds networks in the same way with Keras 2 and Keras 3: functional, subclassed and sequential."""

from __future__ import annotations

from typing import Any

from loadtest.foreign.kinds import Ids, Kind
from loadtest.foreign.models import Rows

USERS, ITEMS, TAGS = 3000, 2000, 500
_USER, _ITEM, _PRICE = Ids(USERS), Ids(ITEMS), Ids(100)
# Keras 3 replaces the names of inputs in a dict: it numbers the inputs in the order of their names.
FUNCTIONAL: dict[str, Kind] = {"user": _USER, "item": _ITEM, "inputs": _ITEM, "inputs_1": _USER}
SUBCLASSED: dict[str, Kind] = {
    **{"user": _USER, "item": _ITEM, "price": _PRICE},
    **{"args_0": _ITEM, "args_0_1": _PRICE, "args_0_2": _USER},
    **{"inputs": _ITEM, "inputs_1": _PRICE, "inputs_2": _USER},
}
SEQUENTIAL: dict[str, Kind] = {"*": Ids(TAGS)}


def functional(keras: Any, rows: Rows) -> Any:
    """Returns a functional model with inputs of shape [B, 1] and [B]."""
    user = keras.Input((1,), dtype="int64", name="user")
    item = keras.Input((), dtype="int64", name="item")
    user_vector = keras.layers.Flatten()(keras.layers.Embedding(rows(USERS), 16, name="users")(user))
    item_vector = keras.layers.Embedding(rows(ITEMS), 16, name="items")(item)
    hidden = keras.layers.Dense(32, activation="relu")(keras.layers.Concatenate()([user_vector, item_vector]))
    return keras.Model({"user": user, "item": item}, keras.layers.Dense(1, activation="sigmoid")(hidden))


def subclassed(keras: Any, rows: Rows) -> Any:
    """Returns a subclassed model with a dict of inputs of shape [B], which Keras 3 exports as float32."""
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
    model({name: keras.Input((), dtype="int64", name=name) for name in ("user", "item", "price")})
    return model


def sequential(keras: Any, rows: Rows) -> Any:
    """Returns a sequential model of ids [B, 10], in which 0 is padding."""
    return keras.Sequential(
        [
            keras.Input((10,), dtype="int32"),
            keras.layers.Embedding(rows(TAGS), 8, mask_zero=True),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dense(4),
        ]
    )
