"""Builds tf.Modules that no row of row_models describes: recommenders, ragged inputs, vocabulary files, odd tables.

The models that TensorFlow 2.15's TPUEstimator exported are copied from a folder that is not part of this repository.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from loadtest.foreign.frameworks import Tower, save_module, tf, variable
from loadtest.foreign.kinds import Edges, ExampleEdges, Kind, Numbers, ids, vocabulary, words
from loadtest.foreign.models import ZOO, Skip
from loadtest.live_server import ROOT

_WORDS = 800
USERS, ITEMS, TAGS = 5000, 2000, 1000


def _module(inputs: Mapping[str, Kind], **specs: Any) -> Callable[[Callable[[], Any]], object]:
    """Returns a decorator that registers a tf.Module, which the function makes.

    The function returns the call of the signature serving_default, or calls by signature, and all that they read.

    Args:
      specs: as in save_module().
    """

    def register(make: Callable[[], Any]) -> object:
        def build(folder: Path) -> None:
            calls, *kept = make()
            save_module(folder, calls if isinstance(calls, dict) else {"serving_default": calls}, kept, inputs, **specs)

        ZOO.add(make.__name__, inputs, build)
        return make

    return register


_PEER_INPUTS = {"user": ids(USERS), "item": ids(ITEMS), "ids": ids(ITEMS), "tag": ids(TAGS)}


@_module({**_PEER_INPUTS, "tag_values": ids(TAGS, splits="tag_splits")})
def peer() -> Any:
    """Makes a model with signatures w1 (one concatenated output), w2 (three outputs), w4 (rows) and w5 (a tower)."""
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

    return {"w1": joined, "w2": apart, "w4": by_id, "w5": score}, users, items, tags, tower.variables


@_module({"tag_values": ids(500, lengths="tag_lengths")})
def module_ragged_by_lengths() -> Any:
    """Makes a model that averages the vectors of each row, given the ids of all rows and each row's number of ids."""
    table = variable("tag", 500, 16)

    def read(tag_values: Any, tag_lengths: Any) -> Any:
        ragged = tf.RaggedTensor.from_row_lengths(tag_values, tag_lengths)
        return {"mean": tf.reduce_mean(tf.gather(table, ragged), axis=1)}

    return read, table


@_module({"tag_values": ids(500, rowids="tag_rows", num_rows="num_rows")}, num_rows=("int64", ()))
def module_ragged_by_row_numbers() -> Any:
    """Makes a model whose inputs are the ids of all rows, the row number of each id, and the number of rows."""
    table = variable("tag", 500, 16)

    def read(tag_values: Any, tag_rows: Any, num_rows: Any) -> Any:
        return {"sum": tf.math.unsorted_segment_sum(tf.gather(table, tag_values), tag_rows, num_rows)}

    return read, table


@_module({"tag_values": ids(500, splits="tag_splits", weights="tag_weights")}, tag_weights=("float32", [None]))
def module_ragged_weighted_sum() -> Any:
    """Makes a model that multiplies each vector by a weight before it sums the vectors of a ragged row."""
    table = variable("tag", 500, 16)

    def read(tag_values: Any, tag_splits: Any, tag_weights: Any) -> Any:
        weighted = tf.gather(table, tag_values) * tag_weights[:, None]
        return {"sum": tf.reduce_sum(tf.RaggedTensor.from_row_splits(weighted, tag_splits), axis=1)}

    return read, table


def _keyed_by_file(buckets: int, folder: Path) -> None:
    """Builds a model in which a word's row is its line in an asset file; unknown words are hashed to some rows."""
    # TensorFlow copies this vocabulary file into the assets/ folder of the SavedModel.
    file, index = folder.parent / "words.txt", tf.lookup.TextFileIndex
    file.write_text("".join(f"{word}\n" for word in vocabulary("word", _WORDS)))
    rows = tf.lookup.TextFileInitializer(str(file), tf.string, index.WHOLE_LINE, tf.int64, index.LINE_NUMBER)
    # Without hash buckets, each word outside the vocabulary reads the row after the last word's row.
    found = tf.lookup.StaticVocabularyTable(rows, buckets) if buckets else tf.lookup.StaticHashTable(rows, _WORDS)
    table = variable("word", _WORDS + max(buckets, 1), 16)

    def read(word: Any) -> Any:
        return {"rows": tf.gather(table, found.lookup(word))}

    save_module(folder, {"serving_default": read}, [table, found], word=("string", [None]))


for _name, _buckets in (("keyed_by_file", 0), ("keyed_by_file_with_buckets", 7)):
    ZOO.add(_name, {"word": words("word", _WORDS)}, partial(_keyed_by_file, _buckets))


@_module({"item": ids(1000)})
def table_of_int8_with_scale() -> Any:
    """Makes a model that stores rows as int8 with a scale for each row; its graph multiplies a row by its scale."""
    stored = tf.Variable(tf.cast(tf.round(variable("item", 1000, 16) * 40.0), tf.int8))
    scale = tf.Variable(tf.abs(variable("scale", 1000, 1)) * 0.025)

    def read(item: Any) -> Any:
        return {"rows": tf.cast(tf.gather(stored, item), tf.float32) * tf.gather(scale, item)}

    return read, stored, scale


@_module({"item": ids(1000)})
def table_of_one_column() -> Any:
    """Makes a model that reads biases [V] and weights [V, 1]."""
    biases, weights = variable("bias", 1000), variable("weight", 1000, 1)
    return lambda item: {"bias": tf.gather(biases, item), "weight": tf.gather(weights, item)}, biases, weights


@_module({"item": ids(1000)})
def table_of_three_dimensions() -> Any:
    """Makes a model whose table has a matrix [4, 8] for each id."""
    table = variable("item", 1000, 4, 8)
    return lambda item: {"rows": tf.gather(table, item)}, table


@_module({"item": ids(1000)})
def table_changed_in_the_graph() -> Any:
    """Makes a model that returns rows multiplied by another variable, and the norms of the rows."""
    table, factor = variable("item", 1000, 16), variable("factor", 16)

    def read(item: Any) -> Any:
        return {"rows": tf.gather(table, item) * factor, "length": tf.norm(tf.gather(table, item), axis=1)}

    return read, table, factor


_DLRM_TABLES = {f"field_{i}": 300 * (i + 1) for i in range(8)}
_FM_FIELDS = {f"f{i}": 400 for i in range(10)}


def _ids(sizes: dict[str, int]) -> dict[str, Kind]:
    return {name: ids(size) for name, size in sizes.items()}


@_module({**_ids(_DLRM_TABLES), "dense": Numbers()}, dense=("float32", [None, 13]))
def dlrm() -> Any:
    """Makes a DLRM: eight tables, a bottom tower, the interactions of all pairs, and a top tower."""
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

    return score, tables, bottom.variables, top.variables


@_module(_ids(_FM_FIELDS))
def deepfm() -> Any:
    """Makes a DeepFM: ten fields in two tables each, of width 1 and 8; first order, factorization machine, tower."""
    first = {f"{name}_first": variable(f"{name}_first", size, 1) for name, size in _FM_FIELDS.items()}
    second = {name: variable(name, size, 8) for name, size in _FM_FIELDS.items()}
    tower = Tower("deep", 80, hidden=32)

    def score(**ids: Any) -> Any:
        linear = tf.add_n([tf.gather(first[f"{name}_first"], ids[name]) for name in second])
        vectors = tf.stack([tf.gather(second[name], ids[name]) for name in second], 1)
        squares = tf.square(tf.reduce_sum(vectors, 1)) - tf.reduce_sum(tf.square(vectors), 1)
        pairs = 0.5 * tf.reduce_sum(squares, 1, keepdims=True)
        return {"click": tf.sigmoid(linear + pairs + tower(tf.reshape(vectors, [-1, 80])))}

    return score, first, second, tower.variables


@_module(
    {"user": ids(3000), "word": words("word", 500), "tag_values": ids(500, splits="tag_splits")},
    word=("string", [None]),
)
def wide_and_deep() -> Any:
    """Makes a wide and deep model: a linear part over hashed feature crosses, and a tower over a row and a mean."""
    users, tags = variable("user", 3000, 16), variable("tag", 500, 8)
    wide, tower = variable("wide", 1000, 1), Tower("deep", 24)

    def score(user: Any, word: Any, tag_values: Any, tag_splits: Any) -> Any:
        mean = tf.reduce_mean(tf.RaggedTensor.from_row_splits(tf.gather(tags, tag_values), tag_splits), axis=1)
        # tf.reduce_mean gives NaN for a row without tags.
        mean = tf.where(tf.math.is_nan(mean), tf.zeros_like(mean), mean)
        crossed = tf.strings.join([tf.strings.as_string(user), word], separator="_X_")
        linear = tf.gather(wide, tf.strings.to_hash_bucket_fast(crossed, 1000))
        return {"logit": linear + tower(tf.concat([tf.gather(users, user), mean], 1))}

    return score, users, tags, wide, tower.variables


# Environment variable that names the folder of the models that TensorFlow 2.15 exported; by default, the folder lies
# beside the repository.
_GOLDEN = "FOREIGN_GOLDEN"
_ESTIMATOR_IDS = {"a": 10, "b": 10, "c": 20}
_EXAMPLES = ExampleEdges(
    {name: Edges(tuple(range(size))) for name, size in _ESTIMATOR_IDS.items()},
    dict.fromkeys(_ESTIMATOR_IDS, ("int64", False, False)),
)
_ESTIMATORS: dict[str, dict[str, Kind]] = {
    **dict.fromkeys(("cpu", "tpu_v1", "tpu_v2"), {"examples": _EXAMPLES}),
    # The model's inputs are sparse ids; a request sends each as two inputs, values and row splits.
    "tpu_sparse": {f"{name}__values": ids(size, splits=f"{name}__row_splits") for name, size in _ESTIMATOR_IDS.items()},
}


def _copy(export: str, folder: Path) -> None:
    given = os.environ.get(_GOLDEN)
    golden = Path(given) if given else ROOT.parent / "shared" / "golden" / "tpu_estimator_2_15" / "tensor_core"
    if not (golden / export / "1").is_dir():
        raise Skip(f"no exports of TensorFlow 2.15 beside the repository; ${_GOLDEN} says where")
    shutil.copytree(golden / export / "1", folder)


for _name, _kinds in _ESTIMATORS.items():
    ZOO.add(f"estimator_{_name}", _kinds, partial(_copy, _name))
