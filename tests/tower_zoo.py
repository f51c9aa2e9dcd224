"""Writes models of common architectures as SavedModels, each with a manifest that describes only its tables.

Weights are small integers, so that sums have the same bits in any order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from model_export.graphs.source import VARIABLES_PREFIX
from model_export.parity.integrity import file_sizes, table_entry
from service.artifact.bundle import read_bundle
from service.artifact.manifest import MANIFEST_PATH, Manifest
from service.types import Array

Request = dict[str, Array]
SIGNATURE = "serving_default"
NUM_KEYS = 50
ZOO_ROWS = 60


class ZooModel(NamedTuple):
    """One architecture of the zoo, with the function that writes a model of it.

    build: (tensorflow, module, rows per table) -> the signature's function and its input specs; it sets the module's
        attribute `tables`.
    request: (rows, rows per table, random) -> inputs.
    """

    build: Callable[[Any, Any, int], tuple[Callable[..., Any], list[Any]]]
    request: Callable[[int, int, np.random.Generator], Request]


def write_zoo_model(tf: Any, name: str, folder: Path, table_rows: int = ZOO_ROWS) -> Path:
    """Writes version 1 of a model below a folder; returns the version's folder. table_rows: of each table."""
    module = tf.Module()
    function, specs = ZOO[name].build(tf, module, table_rows)
    signature = tf.function(function, input_signature=specs, autograph=False)
    version = folder / "1"
    tf.saved_model.save(module, str(version), signatures={SIGNATURE: signature})
    write_tables_manifest(version)
    return version


def write_tables_manifest(version: Path) -> None:
    """Writes a manifest into a SavedModel, which describes as tables the variables of rank 2 below `tables`."""
    variables = read_bundle(version / VARIABLES_PREFIX)
    tables = {
        key.split("/")[1]: table_entry(version, key, entry, None)
        for key, entry in variables.items()
        if key.startswith("tables/") and len(entry.shape) == 2
    }
    path = version / MANIFEST_PATH
    path.parent.mkdir(exist_ok=True)
    path.write_text(Manifest(tables=tables, features={}, signatures={}, files=file_sizes(version)).to_json())


def _numbers(tf: Any, shape: tuple[int, ...], seed: int) -> Any:
    return tf.Variable(np.random.default_rng(seed).integers(-2, 3, shape).astype(np.float32))


def _tables(tf: Any, module: Any, count: int, size: int, dim: int) -> list[Any]:
    module.tables = {f"t{i:02}": _numbers(tf, (size, dim), i) for i in range(count)}
    return list(module.tables.values())


def _mlp(tf: Any, module: Any, name: str, *sizes: int) -> Callable[[Any], Any]:
    kernels = [_numbers(tf, shape, 100 + i) for i, shape in enumerate(zip(sizes, sizes[1:], strict=False))]
    setattr(module, name, kernels)

    def apply(x: Any) -> Any:
        for kernel in kernels[:-1]:
            x = tf.nn.relu(x @ kernel)
        return x @ kernels[-1]

    return apply


def _id_specs(tf: Any, count: int, shape: list[int | None] | None = None) -> list[Any]:
    return [tf.TensorSpec(shape or [None], tf.int64, f"c{i}") for i in range(count)]


def _ids(count: int, *more: int) -> Callable[[int, int, np.random.Generator], Request]:
    return lambda rows, size, random: {f"c{i}": random.integers(0, size, (rows, *more)) for i in range(count)}


def _interactions(tf: Any, stacked: Any, count: int) -> Any:
    products = tf.matmul(stacked, stacked, transpose_b=True)
    places = [i * count + j for i in range(count) for j in range(i)]
    return tf.gather(tf.reshape(products, [-1, count * count]), places, axis=1)


def _dlrm(tf: Any, module: Any, size: int) -> tuple[Callable[..., Any], list[Any]]:
    tables = _tables(tf, module, 8, size, 16)
    bottom, top = _mlp(tf, module, "bottom", 13, 32, 16), _mlp(tf, module, "top", 52, 64, 1)

    def score(dense: Any, *ids: Any) -> dict[str, Any]:
        x = bottom(dense)
        stacked = tf.stack([x, *(tf.gather(t, i) for t, i in zip(tables, ids, strict=True))], axis=1)
        return {"score": top(tf.concat([x, _interactions(tf, stacked, 9)], 1))}

    return score, [tf.TensorSpec([None, 13], tf.float32, "dense"), *_id_specs(tf, 8)]


def _dlrm_request(rows: int, size: int, random: np.random.Generator) -> Request:
    return {"dense": random.integers(-2, 3, (rows, 13)).astype(np.float32)} | _ids(8)(rows, size, random)


def _dlrm_matrix(tf: Any, module: Any, size: int) -> tuple[Callable[..., Any], list[Any]]:
    tables = _tables(tf, module, 8, size, 16)
    bottom, top = _mlp(tf, module, "bottom", 13, 32, 16), _mlp(tf, module, "top", 52, 64, 1)

    def score(dense: Any, ids: Any) -> dict[str, Any]:
        x = bottom(dense)
        stacked = tf.stack([x, *(tf.gather(t, ids[:, i]) for i, t in enumerate(tables))], axis=1)
        return {"score": top(tf.concat([x, _interactions(tf, stacked, 9)], 1))}

    return score, [tf.TensorSpec([None, 13], tf.float32, "dense"), tf.TensorSpec([None, 8], tf.int64, "ids")]


def _dlrm_matrix_request(rows: int, size: int, random: np.random.Generator) -> Request:
    dense = random.integers(-2, 3, (rows, 13)).astype(np.float32)
    return {"dense": dense, "ids": random.integers(0, size, (rows, 8))}


def _deepfm(tf: Any, module: Any, size: int) -> tuple[Callable[..., Any], list[Any]]:
    vectors_of = {f"t{i:02}": _numbers(tf, (size, 8), i) for i in range(10)}
    weights_of = {f"w{i:02}": _numbers(tf, (size, 1), 50 + i) for i in range(10)}
    module.tables = vectors_of | weights_of
    tables = list(module.tables.values())
    deep = _mlp(tf, module, "deep", 80, 64, 32, 1)

    def score(*ids: Any) -> dict[str, Any]:
        vectors = [tf.gather(t, i) for t, i in zip(tables[:10], ids, strict=True)]
        first = tf.add_n([tf.gather(t, i) for t, i in zip(tables[10:], ids, strict=True)])
        stacked = tf.stack(vectors, axis=1)
        crossed = tf.square(tf.reduce_sum(stacked, 1)) - tf.reduce_sum(tf.square(stacked), 1)
        second = 0.5 * tf.reduce_sum(crossed, 1, keepdims=True)
        return {"score": first + second + deep(tf.concat(vectors, 1))}

    return score, _id_specs(tf, 10)


def _many(tf: Any, module: Any, size: int) -> tuple[Callable[..., Any], list[Any]]:
    tables = _tables(tf, module, 40, size, 8)
    top = _mlp(tf, module, "top", 320, 64, 1)

    def score(*ids: Any) -> dict[str, Any]:
        return {"score": top(tf.concat([tf.gather(t, i) for t, i in zip(tables, ids, strict=True)], 1))}

    return score, _id_specs(tf, 40)


def _strings(count: int) -> Callable[[int, int, np.random.Generator], Request]:
    keys = np.array([b"", *(f"key {i}".encode() for i in range(2 * NUM_KEYS))], object)
    return lambda rows, size, random: {f"c{i}": random.choice(keys, rows) for i in range(count)}


def _hashed(tf: Any, module: Any, size: int) -> tuple[Callable[..., Any], list[Any]]:
    tables = _tables(tf, module, 4, size, 16)
    top = _mlp(tf, module, "top", 64, 64, 1)

    def score(*keys: Any) -> dict[str, Any]:
        ids = [tf.strings.to_hash_bucket_fast(key, size) for key in keys]
        return {"score": top(tf.concat([tf.gather(t, i) for t, i in zip(tables, ids, strict=True)], 1))}

    return score, [tf.TensorSpec([None], tf.string, f"c{i}") for i in range(4)]


def _two_towers(tf: Any, module: Any, size: int) -> tuple[Callable[..., Any], list[Any]]:
    tables = _tables(tf, module, 2, size, 32)
    towers = [_mlp(tf, module, f"tower{i}", 32, 64, 16) for i in range(2)]
    keys = tf.constant([f"key {i}" for i in range(NUM_KEYS)])
    values = tf.range(1, NUM_KEYS + 1, dtype=tf.int64)
    module.names = [tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, values), 0) for _ in range(2)]

    def score(*names: Any) -> dict[str, Any]:
        ids = [table.lookup(name) for table, name in zip(module.names, names, strict=True)]
        user, item = (tower(tf.gather(t, i)) for tower, t, i in zip(towers, tables, ids, strict=True))
        return {"score": tf.reduce_sum(user * item, 1), "user": user}

    return score, [tf.TensorSpec([None], tf.string, f"c{i}") for i in range(2)]


def _columns(tf: Any, module: Any, size: int) -> tuple[Callable[..., Any], list[Any]]:
    # As in a functional Keras model: each input of ids [B, 1] has an Embedding and a Flatten; Concatenate and Dense
    # layers follow.
    tables = _tables(tf, module, 6, size, 16)
    top = _mlp(tf, module, "top", 100, 64, 1)

    def score(dense: Any, *ids: Any) -> dict[str, Any]:
        rows = [tf.gather(t, i) for t, i in zip(tables, ids, strict=True)]
        flat = [tf.reshape(r, [tf.shape(r)[0], 16]) for r in rows[:3]]
        flat += [tf.squeeze(rows[3], 1), tf.reshape(rows[4], [-1, 16]), tf.reshape(rows[5], [-1, 16])]
        return {"score": top(tf.concat([*flat, dense], 1))}

    return score, [tf.TensorSpec([None, 4], tf.float32, "dense"), *_id_specs(tf, 6, [None, 1])]


def _columns_request(rows: int, size: int, random: np.random.Generator) -> Request:
    return {"dense": random.integers(-2, 3, (rows, 4)).astype(np.float32)} | _ids(6, 1)(rows, size, random)


def _tags(tf: Any, module: Any, size: int) -> tuple[Callable[..., Any], list[Any]]:
    # The graph combines the vectors of tags by segment_mean, with segments that it computes from the row splits.
    user, item, tag = _tables(tf, module, 3, size, 32)
    top = _mlp(tf, module, "top", 96, 64, 1)

    def score(users: Any, items: Any, values: Any, splits: Any) -> dict[str, Any]:
        segments = tf.repeat(tf.range(tf.size(splits) - 1), tf.cast(splits[1:] - splits[:-1], tf.int32))
        tags = tf.math.segment_mean(tf.gather(tag, values), segments)
        return {"score": top(tf.concat([tf.gather(user, users), tf.gather(item, items), tags], 1))}

    return score, [tf.TensorSpec([None], tf.int64, n) for n in ("c0", "c1", "tag_values", "tag_splits")]


def _tags_request(rows: int, size: int, random: np.random.Generator) -> Request:
    lengths = random.integers(0, 20, rows)
    # The last row has tags, because segment_mean returns no rows after the last segment that has ids.
    lengths[-1:] = 3
    splits = np.concatenate([[0], np.cumsum(lengths)])
    tags = {"tag_values": random.integers(0, size, int(splits[-1])), "tag_splits": splits}
    return _ids(2)(rows, size, random) | tags


def _stored(tf: Any, module: Any, size: int) -> tuple[Callable[..., Any], list[Any]]:
    # Rows of 16-bit numbers and of float64 are fed as they are stored: alone, side by side, and by ids that the graph
    # computes.
    dtypes = (tf.float16, tf.float16, tf.bfloat16, tf.float64)
    dims = (3, 5, 3, 3)
    module.tables = {
        f"t{i:02}": tf.Variable(tf.cast(_numbers(tf, (size, dim), i) / 4, dtype))
        for i, (dtype, dim) in enumerate(zip(dtypes, dims, strict=True))
    }
    first, second, brain, double = module.tables.values()
    top = _mlp(tf, module, "top", 17, 8, 1)

    def score(*ids: Any) -> dict[str, Any]:
        halves = tf.concat([tf.gather(first, ids[0]), tf.gather(second, ids[1])], 1)
        doubles = tf.gather(double, ids[3]) + tf.gather(double, tf.math.floormod(ids[3] + 1, size))
        parts = [halves, tf.gather(brain, ids[2]), doubles, tf.gather(double, ids[3])]
        return {"score": top(tf.concat([tf.cast(part, tf.float32) for part in parts], 1)), "double": doubles}

    return score, _id_specs(tf, 4)


ZOO: Mapping[str, ZooModel] = {
    "dlrm": ZooModel(_dlrm, _dlrm_request),
    "dlrm_matrix": ZooModel(_dlrm_matrix, _dlrm_matrix_request),
    "deepfm": ZooModel(_deepfm, _ids(10)),
    "many": ZooModel(_many, _ids(40)),
    "hashed": ZooModel(_hashed, _strings(4)),
    "two_towers": ZooModel(_two_towers, _strings(2)),
    "columns": ZooModel(_columns, _columns_request),
    "tags": ZooModel(_tags, _tags_request),
    "stored": ZooModel(_stored, _ids(4)),
}
