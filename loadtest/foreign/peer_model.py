"""Builds a typical recommender: concatenated rows, ragged means by segment_mean, and a dense tower."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from loadtest.foreign.kinds import Ids, Ragged
from loadtest.foreign.models import ZOO, Rows
from loadtest.foreign.random_tables import Tower, save_module, spec, variable

USERS, ITEMS, TAGS = 5000, 2000, 1000
_INPUTS = {
    "user": Ids(USERS),
    "item": Ids(ITEMS),
    "ids": Ids(ITEMS),
    "tag": Ids(TAGS),
    "tag_values": Ragged(TAGS, splits="tag_splits"),
}


@ZOO.foreign(_INPUTS)
def peer(folder: Path, rows: Rows) -> None:
    """Builds a model with signatures w1 (one concatenated output), w2 (three outputs), w4 (rows) and w5 (a tower)."""
    import tensorflow as tf

    users, items = variable("user", rows(USERS), 64), variable("item", rows(ITEMS), 64)
    tags, tower = variable("tag", rows(TAGS), 32), Tower("tower", 160, hidden=256)

    def mean(values: Any, splits: Any) -> Any:
        lengths = tf.cast(splits[1:] - splits[:-1], tf.int32)
        return tf.math.segment_mean(tf.gather(tags, values), tf.repeat(tf.range(tf.size(splits) - 1), lengths))

    def joined(user: Any, item: Any, tag: Any) -> Any:
        return {"emb": tf.concat([tf.gather(users, user), tf.gather(items, item), tf.gather(tags, tag)], 1)}

    def apart(user: Any, item: Any, tag_values: Any, tag_splits: Any) -> Any:
        vectors = {"user_emb": tf.gather(users, user), "item_emb": tf.gather(items, item)}
        return {**vectors, "tag_emb": mean(tag_values, tag_splits)}

    def by_id(ids: Any) -> Any:
        return {"rows": tf.gather(items, ids)}

    def score(user: Any, item: Any, tag_values: Any, tag_splits: Any) -> Any:
        vectors = [tf.gather(users, user), tf.gather(items, item), mean(tag_values, tag_splits)]
        return {"score": tower(tf.concat(vectors, 1))}

    ragged = [spec("user"), spec("item"), spec("tag_values"), spec("tag_splits")]
    signatures = {
        "w1": (joined, [spec("user"), spec("item"), spec("tag")]),
        "w2": (apart, ragged),
        "w4": (by_id, [spec("ids")]),
        "w5": (score, ragged),
    }
    save_module(folder, {"users": users, "items": items, "tags": tags, "tower": tower.variables}, signatures)
