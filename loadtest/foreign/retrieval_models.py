"""Builds two-tower retrieval models with vocabularies, as tf.Modules and with Keras."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from loadtest.foreign.keras3_models import keras3
from loadtest.foreign.kinds import Ids, Words, vocabulary
from loadtest.foreign.models import ZOO, Rows
from loadtest.foreign.random_tables import Tower, save_module, spec, variable

_USERS, _ITEMS = 1500, 800
_WORDS = {"user": Words("user", _USERS), "item": Words("item", _ITEMS)}


@ZOO.foreign(_WORDS)
def two_towers_of_keras3(folder: Path, rows: Rows) -> None:
    """Builds a model with the signatures query, candidate and score, each of which has a StringLookup."""
    import tensorflow as tf

    keras = keras3()

    def tower(name: str, size: int) -> Any:
        words = keras.Input((), dtype="string", name=name)
        lookup = keras.layers.StringLookup(vocabulary=vocabulary(name, rows(size)))
        vectors = keras.layers.Embedding(rows(size) + 1, 16)(lookup(words))
        return keras.Model(words, keras.layers.Dense(16, activation="relu")(vectors))

    query, candidate = tower("user", _USERS), tower("item", _ITEMS)

    def score(user: Any, item: Any) -> Any:
        return {"score": tf.reduce_sum(query(user) * candidate(item), 1)}

    users, items = spec("user", "string"), spec("item", "string")
    archive = keras.export.ExportArchive()
    archive.track(query)
    archive.track(candidate)
    archive.add_endpoint("query", lambda user: {"vector": query(user)}, input_signature=[users])
    archive.add_endpoint("candidate", lambda item: {"vector": candidate(item)}, input_signature=[items])
    archive.add_endpoint("score", score, input_signature=[users, items])
    archive.write_out(str(folder), verbose=False)


@ZOO.foreign({"user": Ids(3000), "item": Ids(2000)})
def two_towers_of_a_module(folder: Path, rows: Rows) -> None:
    """Builds a model of ids that returns the normalized vectors of two towers, and their dot product."""
    import tensorflow as tf

    users, items = variable("user", rows(3000), 32), variable("item", rows(2000), 32)
    of_user, of_item = Tower("user_tower", 32, outputs=16), Tower("item_tower", 32, outputs=16)

    def query(user: Any) -> Any:
        return {"vector": tf.math.l2_normalize(of_user(tf.gather(users, user)), 1)}

    def candidate(item: Any) -> Any:
        return {"vector": tf.math.l2_normalize(of_item(tf.gather(items, item)), 1)}

    def score(user: Any, item: Any) -> Any:
        return {"score": tf.reduce_sum(query(user)["vector"] * candidate(item)["vector"], 1)}

    signatures = {
        "query": (query, [spec("user")]),
        "candidate": (candidate, [spec("item")]),
        "score": (score, [spec("user"), spec("item")]),
    }
    variables = {"users": users, "items": items, "of_user": of_user.variables, "of_item": of_item.variables}
    save_module(folder, variables, signatures)


@ZOO.foreign({"user": Ids(3000)})
def nearest_items(folder: Path, rows: Rows) -> None:
    """Builds a model that scores a user's row against all rows of items, and returns the ten best."""
    import tensorflow as tf

    users, items = variable("user", rows(3000), 16), variable("item", rows(2000), 16)

    def best(user: Any) -> Any:
        scores, ids = tf.math.top_k(tf.matmul(tf.gather(users, user), items, transpose_b=True), 10)
        return {"scores": scores, "ids": ids}

    save_module(folder, {"users": users, "items": items}, {"serving_default": (best, [spec("user")])})
