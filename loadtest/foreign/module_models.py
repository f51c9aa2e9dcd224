"""Builds tf.Modules that no row of row_models describes: recommenders, ragged inputs, vocabulary files, odd tables.

The models that TensorFlow 2.15's TPUEstimator exported are copied from a folder that is not part of this repository.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from loadtest.foreign.frameworks import Tower, save_module, spec, tf, variable
from loadtest.foreign.kinds import Examples, Kind, Numbers, ids, padded, vocabulary, words
from loadtest.foreign.models import ZOO, Skip
from loadtest.live_server import ROOT

_WORDS = 800
USERS, ITEMS, TAGS = 5000, 2000, 1000


_PEER_INPUTS = {
    "user": ids(USERS),
    "item": ids(ITEMS),
    "ids": ids(ITEMS),
    "tag": ids(TAGS),
    "tag_values": ids(TAGS, splits="tag_splits"),
}


@ZOO.foreign(_PEER_INPUTS)
def peer(folder: Path) -> None:
    """Builds a model with signatures w1 (one concatenated output), w2 (three outputs), w4 (rows) and w5 (a tower)."""
    users, items = variable("user", USERS, 64), variable("item", ITEMS, 64)
    tags, tower = variable("tag", TAGS, 32), Tower("tower", 160, hidden=256)

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


@ZOO.foreign({"tag_values": ids(500, lengths="tag_lengths")})
def module_ragged_by_lengths(folder: Path) -> None:
    """Builds a model that averages the vectors of each row, given the ids of all rows and each row's number of ids."""
    table = variable("tag", 500, 16)

    def read(tag_values: Any, tag_lengths: Any) -> Any:
        ragged = tf.RaggedTensor.from_row_lengths(tag_values, tag_lengths)
        return {"mean": tf.reduce_mean(tf.gather(table, ragged), axis=1)}

    save_module(folder, {"table": table}, {"serving_default": (read, [spec("tag_values"), spec("tag_lengths")])})


@ZOO.foreign({"tag_values": ids(500, rowids="tag_rows", num_rows="num_rows")})
def module_ragged_by_row_numbers(folder: Path) -> None:
    """Builds a model whose inputs are the ids of all rows, the row number of each id, and the number of rows."""
    table = variable("tag", 500, 16)

    def read(tag_values: Any, tag_rows: Any, num_rows: Any) -> Any:
        return {"sum": tf.math.unsorted_segment_sum(tf.gather(table, tag_values), tag_rows, num_rows)}

    specs = [spec("tag_values"), spec("tag_rows"), spec("num_rows", "int64", ())]
    save_module(folder, {"table": table}, {"serving_default": (read, specs)})


@ZOO.foreign({"tag_values": ids(500, splits="tag_splits", weights="tag_weights")})
def module_ragged_weighted_sum(folder: Path) -> None:
    """Builds a model that multiplies each vector by a weight before it sums the vectors of a ragged row."""
    table = variable("tag", 500, 16)

    def read(tag_values: Any, tag_splits: Any, tag_weights: Any) -> Any:
        weighted = tf.gather(table, tag_values) * tag_weights[:, None]
        return {"sum": tf.reduce_sum(tf.RaggedTensor.from_row_splits(weighted, tag_splits), axis=1)}

    specs = [spec("tag_values"), spec("tag_splits"), spec("tag_weights", "float32")]
    save_module(folder, {"table": table}, {"serving_default": (read, specs)})


def _save_keyed(folder: Path, keys: Any, initializer: Any, buckets: int) -> None:
    table = variable("word", _WORDS + max(buckets, 1), 16)
    if buckets:
        found = tf.lookup.StaticVocabularyTable(initializer, buckets)
    else:
        # Without hash buckets, each word outside the vocabulary reads the row after the last word's row.
        found = tf.lookup.StaticHashTable(initializer, _WORDS)

    def read(word: Any) -> Any:
        return {"rows": tf.gather(table, found.lookup(word))}

    save_module(folder, {"table": table, "found": found}, {"serving_default": (read, [keys])})


def _words_file(folder: Path) -> str:
    # TensorFlow copies this vocabulary file into the assets/ folder of the SavedModel.
    path = folder.parent / "words.txt"
    path.write_text("".join(f"{word}\n" for word in vocabulary("word", _WORDS)))
    return str(path)


def _file_initializer(folder: Path) -> Any:
    index = tf.lookup.TextFileIndex
    file = _words_file(folder)
    return tf.lookup.TextFileInitializer(file, tf.string, index.WHOLE_LINE, tf.int64, index.LINE_NUMBER)


@ZOO.foreign({"word": words("word", _WORDS)})
def keyed_by_file(folder: Path) -> None:
    """Builds a model in which a word's row is its line in an asset file; unknown words read the last row."""
    _save_keyed(folder, spec("word", "string"), _file_initializer(folder), 0)


@ZOO.foreign({"word": words("word", _WORDS)})
def keyed_by_file_with_buckets(folder: Path) -> None:
    """Builds a model in which a word's row is its line in an asset file; unknown words are hashed to 7 rows."""
    _save_keyed(folder, spec("word", "string"), _file_initializer(folder), 7)


@ZOO.foreign({"item": ids(1000)})
def table_of_int8_with_scale(folder: Path) -> None:
    """Builds a model that stores rows as int8 with a scale for each row; its graph multiplies a row by its scale."""
    stored = tf.Variable(tf.cast(tf.round(variable("item", 1000, 16) * 40.0), tf.int8))
    scale = tf.Variable(tf.abs(variable("scale", 1000, 1)) * 0.025)

    def read(item: Any) -> Any:
        return {"rows": tf.cast(tf.gather(stored, item), tf.float32) * tf.gather(scale, item)}

    save_module(folder, {"stored": stored, "scale": scale}, {"serving_default": (read, [spec("item")])})


@ZOO.foreign({"item": ids(1000)})
def table_of_one_column(folder: Path) -> None:
    """Builds a model that reads biases [V] and weights [V, 1]."""
    biases, weights = variable("bias", 1000), variable("weight", 1000, 1)

    def read(item: Any) -> Any:
        return {"bias": tf.gather(biases, item), "weight": tf.gather(weights, item)}

    save_module(folder, {"biases": biases, "weights": weights}, {"serving_default": (read, [spec("item")])})


@ZOO.foreign({"item": ids(1000)})
def table_of_three_dimensions(folder: Path) -> None:
    """Builds a model whose table has a matrix [4, 8] for each id."""
    table = variable("item", 1000, 4, 8)
    save_module(
        folder, {"table": table}, {"serving_default": (lambda i: {"rows": tf.gather(table, i)}, [spec("item")])}
    )


@ZOO.foreign({"item": ids(1000)})
def table_changed_in_the_graph(folder: Path) -> None:
    """Builds a model that returns rows multiplied by another variable, and the norms of the rows."""
    table, factor = variable("item", 1000, 16), variable("factor", 16)

    def read(item: Any) -> Any:
        return {"rows": tf.gather(table, item) * factor, "length": tf.norm(tf.gather(table, item), axis=1)}

    save_module(folder, {"table": table, "factor": factor}, {"serving_default": (read, [spec("item")])})


_DLRM_TABLES = {f"field_{i}": 300 * (i + 1) for i in range(8)}


_FM_FIELDS = {f"f{i}": 400 for i in range(10)}


def _ids(sizes: dict[str, int]) -> dict[str, Kind]:
    return {name: ids(size) for name, size in sizes.items()}


@ZOO.foreign({**_ids(_DLRM_TABLES), "dense": Numbers()})
def dlrm(folder: Path) -> None:
    """Builds a DLRM: eight tables, a bottom tower, the interactions of all pairs, and a top tower."""
    width = 16
    tables = {name: variable(name, size, width) for name, size in _DLRM_TABLES.items()}
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
def deepfm(folder: Path) -> None:
    """Builds a DeepFM: ten fields in two tables each, of width 1 and 8; first order, factorization machine, tower."""
    first = {f"{name}_first": variable(f"{name}_first", size, 1) for name, size in _FM_FIELDS.items()}
    second = {name: variable(name, size, 8) for name, size in _FM_FIELDS.items()}
    tower = Tower("deep", 80, hidden=32)

    def score(**ids: Any) -> Any:
        linear = tf.add_n([tf.gather(first[f"{name}_first"], ids[name]) for name in second])
        vectors = tf.stack([tf.gather(second[name], ids[name]) for name in second], 1)
        squares = tf.square(tf.reduce_sum(vectors, 1)) - tf.reduce_sum(tf.square(vectors), 1)
        pairs = 0.5 * tf.reduce_sum(squares, 1, keepdims=True)
        return {"click": tf.sigmoid(linear + pairs + tower(tf.reshape(vectors, [-1, 80])))}

    _save_of_fields(folder, second, [tower], score, more=first)


@ZOO.foreign({"user": ids(3000), "word": words("word", 500), "tag_values": ids(500, splits="tag_splits")})
def wide_and_deep(folder: Path) -> None:
    """Builds a wide and deep model: a linear part over hashed feature crosses, and a tower over a row and a mean."""
    users, tags = variable("user", 3000, 16), variable("tag", 500, 8)
    wide, tower = variable("wide", 1000, 1), Tower("deep", 24)

    def score(user: Any, word: Any, tag_values: Any, tag_splits: Any) -> Any:
        mean = tf.reduce_mean(tf.RaggedTensor.from_row_splits(tf.gather(tags, tag_values), tag_splits), axis=1)
        # tf.reduce_mean gives NaN for a row without tags.
        mean = tf.where(tf.math.is_nan(mean), tf.zeros_like(mean), mean)
        crossed = tf.strings.join([tf.strings.as_string(user), word], separator="_X_")
        linear = tf.gather(wide, tf.strings.to_hash_bucket_fast(crossed, 1000))
        return {"logit": linear + tower(tf.concat([tf.gather(users, user), mean], 1))}

    specs = [spec("user"), spec("word", "string"), spec("tag_values"), spec("tag_splits")]
    variables = {"users": users, "tags": tags, "wide": wide, "tower": tower.variables}
    save_module(folder, variables, {"serving_default": (score, specs)})


@ZOO.foreign({"history": padded(2000), "item": ids(2000), "user": ids(3000)})
def sequence_with_attention(folder: Path) -> None:
    """Builds a model that combines a padded history [B, L] by attention to the scored item, as DIN does."""
    items, users, tower = variable("item", 2000, 16), variable("user", 3000, 16), Tower("tower", 48)

    def score(history: Any, item: Any, user: Any) -> Any:
        seen, query = tf.gather(items, history), tf.gather(items, item)
        weights = tf.reduce_sum(seen * query[:, None, :], 2) + tf.where(history == 0, -1e9, 0.0)
        context = tf.reduce_sum(tf.nn.softmax(weights)[:, :, None] * seen, 1)
        return {"score": tower(tf.concat([context, query, tf.gather(users, user)], 1))}

    specs = [spec("history", "int64", (None, None)), spec("item"), spec("user")]
    variables = {"items": items, "users": users, "tower": tower.variables}
    save_module(folder, variables, {"serving_default": (score, specs)})


@ZOO.foreign({"history": ids(2000), "item": ids(2000)})
def sequence_with_mean(folder: Path) -> None:
    """Builds a model that takes the plain mean of a history of fixed length, [B, 20]."""
    items, tower = variable("item", 2000, 16), Tower("tower", 32)

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


@ZOO.foreign({"user": ids(3000), "item": ids(2000)})
def two_towers_of_a_module(folder: Path) -> None:
    """Builds a model of ids that returns the normalized vectors of two towers, and their dot product."""
    users, items = variable("user", 3000, 32), variable("item", 2000, 32)
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


@ZOO.foreign({"user": ids(3000)})
def nearest_items(folder: Path) -> None:
    """Builds a model that scores a user's row against all rows of items, and returns the ten best."""
    users, items = variable("user", 3000, 16), variable("item", 2000, 16)

    def best(user: Any) -> Any:
        scores, ids = tf.math.top_k(tf.matmul(tf.gather(users, user), items, transpose_b=True), 10)
        return {"scores": scores, "ids": ids}

    save_module(folder, {"users": users, "items": items}, {"serving_default": (best, [spec("user")])})


# Environment variable that names the folder of the models that TensorFlow 2.15 exported; by default, the folder lies
# beside the repository.
GOLDEN_VARIABLE = "FOREIGN_GOLDEN"
_ESTIMATOR_IDS = {"a": 10, "b": 10, "c": 20}
_ESTIMATORS: dict[str, dict[str, Kind]] = {
    "cpu": {"examples": Examples(_ESTIMATOR_IDS)},
    "tpu_v1": {"examples": Examples(_ESTIMATOR_IDS)},
    "tpu_v2": {"examples": Examples(_ESTIMATOR_IDS)},
    # The model's inputs are sparse ids; a request sends each as two inputs, values and row splits.
    "tpu_sparse": {f"{name}__values": ids(size, splits=f"{name}__row_splits") for name, size in _ESTIMATOR_IDS.items()},
}


def golden_folder() -> Path:
    """Returns the folder of the models that TensorFlow 2.15 exported."""
    given = os.environ.get(GOLDEN_VARIABLE)
    return Path(given) if given else ROOT.parent / "shared" / "golden" / "tpu_estimator_2_15" / "tensor_core"


def _copy(export: str, folder: Path) -> None:
    source = golden_folder() / export / "1"
    if not source.is_dir():
        raise Skip(f"no exports of TensorFlow 2.15 beside the repository; --golden or ${GOLDEN_VARIABLE} says where")
    shutil.copytree(source, folder)


for _name, _kinds in _ESTIMATORS.items():
    ZOO.add(f"estimator_{_name}", _kinds, lambda folder, export=_name: _copy(export, folder))
