"""Builds ranking models as tf.Modules: DLRM, DeepFM, wide and deep, many small tables, sequences."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from loadtest.foreign.kinds import Ids, Kind, Numbers, Padded, Ragged, Words
from loadtest.foreign.models import ZOO, Rows
from loadtest.foreign.random_tables import Tower, save_module, spec, variable

_DLRM_TABLES = {f"field_{i}": 300 * (i + 1) for i in range(8)}
_FM_FIELDS = {f"f{i}": 400 for i in range(10)}
_SMALL_TABLES = {f"small_{i}": 20 + i for i in range(40)}


def _ids(sizes: dict[str, int]) -> dict[str, Kind]:
    return {name: Ids(size) for name, size in sizes.items()}


@ZOO.foreign({**_ids(_DLRM_TABLES), "dense": Numbers()})
def dlrm(folder: Path, rows: Rows) -> None:
    """Builds a DLRM: eight tables, a bottom tower, the interactions of all pairs, and a top tower."""
    import tensorflow as tf

    width = 16
    tables = {name: variable(name, rows(size), width) for name, size in _DLRM_TABLES.items()}
    bottom = Tower("bottom", 13, hidden=64, outputs=width)
    pairs = (len(tables) + 1) * len(tables) // 2
    top = Tower("top", pairs + width, hidden=64)

    def score(dense: Any, **ids: Any) -> Any:
        below = bottom(dense)
        vectors = tf.stack([below, *(tf.gather(tables[name], ids[name]) for name in tables)], 1)
        products = tf.matmul(vectors, vectors, transpose_b=True)
        mask = tf.linalg.band_part(tf.ones_like(products), -1, 0) - tf.linalg.band_part(tf.ones_like(products), 0, 0)
        lower = tf.reshape(tf.boolean_mask(products, mask > 0), [-1, pairs])
        return {"click": tf.sigmoid(top(tf.concat([below, lower], 1)))[:, 0]}

    _save_of_fields(folder, tables, [bottom, top], score, dense=spec("dense", "float32", (None, 13)))


@ZOO.foreign(_ids(_FM_FIELDS))
def deepfm(folder: Path, rows: Rows) -> None:
    """Builds a DeepFM: ten fields in two tables each, of width 1 and 8; first order, factorization machine, tower."""
    import tensorflow as tf

    first = {f"{name}_first": variable(f"{name}_first", rows(size), 1) for name, size in _FM_FIELDS.items()}
    second = {name: variable(name, rows(size), 8) for name, size in _FM_FIELDS.items()}
    tower = Tower("deep", 80, hidden=32)

    def score(**ids: Any) -> Any:
        linear = tf.add_n([tf.gather(first[f"{name}_first"], ids[name]) for name in second])
        vectors = tf.stack([tf.gather(second[name], ids[name]) for name in second], 1)
        squares = tf.square(tf.reduce_sum(vectors, 1)) - tf.reduce_sum(tf.square(vectors), 1)
        pairs = 0.5 * tf.reduce_sum(squares, 1, keepdims=True)
        return {"click": tf.sigmoid(linear + pairs + tower(tf.reshape(vectors, [-1, 80])))}

    _save_of_fields(folder, second, [tower], score, more=first)


@ZOO.foreign({**_ids(_SMALL_TABLES)})
def forty_small_tables(folder: Path, rows: Rows) -> None:
    """Builds a model that concatenates rows of forty tables of different widths before a tower."""
    import tensorflow as tf

    widths = {name: 4 + i % 5 for i, name in enumerate(_SMALL_TABLES)}
    tables = {name: variable(name, rows(size), widths[name]) for name, size in _SMALL_TABLES.items()}
    tower = Tower("tower", sum(widths.values()))

    def score(**ids: Any) -> Any:
        return {"score": tower(tf.concat([tf.gather(tables[name], ids[name]) for name in tables], 1))}

    _save_of_fields(folder, tables, [tower], score)


@ZOO.foreign({"user": Ids(3000), "word": Words("word", 500), "tag_values": Ragged(500, splits="tag_splits")})
def wide_and_deep(folder: Path, rows: Rows) -> None:
    """Builds a wide and deep model: a linear part over hashed feature crosses, and a tower over a row and a mean."""
    import tensorflow as tf

    users, tags = variable("user", rows(3000), 16), variable("tag", rows(500), 8)
    wide, tower = variable("wide", rows(1000), 1), Tower("deep", 24)

    def score(user: Any, word: Any, tag_values: Any, tag_splits: Any) -> Any:
        mean = tf.reduce_mean(tf.RaggedTensor.from_row_splits(tf.gather(tags, tag_values), tag_splits), axis=1)
        # tf.reduce_mean gives NaN for a row without tags.
        mean = tf.where(tf.math.is_nan(mean), tf.zeros_like(mean), mean)
        crossed = tf.strings.join([tf.strings.as_string(user), word], separator="_X_")
        linear = tf.gather(wide, tf.strings.to_hash_bucket_fast(crossed, rows(1000)))
        return {"logit": linear + tower(tf.concat([tf.gather(users, user), mean], 1))}

    specs = [spec("user"), spec("word", "string"), spec("tag_values"), spec("tag_splits")]
    variables = {"users": users, "tags": tags, "wide": wide, "tower": tower.variables}
    save_module(folder, variables, {"serving_default": (score, specs)})


@ZOO.foreign({"history": Padded(2000, 0), "item": Ids(2000), "user": Ids(3000)})
def sequence_with_attention(folder: Path, rows: Rows) -> None:
    """Builds a model that combines a padded history [B, L] by attention to the scored item, as DIN does."""
    import tensorflow as tf

    items, users, tower = variable("item", rows(2000), 16), variable("user", rows(3000), 16), Tower("tower", 48)

    def score(history: Any, item: Any, user: Any) -> Any:
        seen, query = tf.gather(items, history), tf.gather(items, item)
        weights = tf.reduce_sum(seen * query[:, None, :], 2) + tf.where(history == 0, -1e9, 0.0)
        context = tf.reduce_sum(tf.nn.softmax(weights)[:, :, None] * seen, 1)
        return {"score": tower(tf.concat([context, query, tf.gather(users, user)], 1))}

    specs = [spec("history", "int64", (None, None)), spec("item"), spec("user")]
    variables = {"items": items, "users": users, "tower": tower.variables}
    save_module(folder, variables, {"serving_default": (score, specs)})


@ZOO.foreign({"history": Ids(2000), "item": Ids(2000)})
def sequence_with_mean(folder: Path, rows: Rows) -> None:
    """Builds a model that takes the plain mean of a history of fixed length, [B, 20]."""
    import tensorflow as tf

    items, tower = variable("item", rows(2000), 16), Tower("tower", 32)

    def score(history: Any, item: Any) -> Any:
        mean = tf.reduce_mean(tf.gather(items, history), 1)
        return {"score": tower(tf.concat([mean, tf.gather(items, item)], 1)), "history_mean": mean}

    specs = [spec("history", "int32", (None, 20)), spec("item")]
    save_module(folder, {"items": items, "tower": tower.variables}, {"serving_default": (score, specs)})


def _save_of_fields(
    folder: Path, tables: dict[str, Any], towers: list[Tower], score: Any, *, more: Any = None, dense: Any = None
) -> None:
    # tf.function passes a signature's inputs by position, and `score` takes them by the names of the tables.
    names = [*tables] if dense is None else ["dense", *tables]
    specs = [spec(name) for name in tables]
    variables = {"tables": tables, "towers": [tower.variables for tower in towers], "more": more or {}}

    def by_position(*inputs: Any) -> Any:
        return score(**dict(zip(names, inputs, strict=True)))

    save_module(folder, variables, {"serving_default": (by_position, specs if dense is None else [dense, *specs])})
