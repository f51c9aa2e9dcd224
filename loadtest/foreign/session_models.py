"""Builds TensorFlow 1 models with a graph, a session and simple_save: with reference variables or partitioned ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from loadtest.foreign.kinds import Ids, Kind, Ragged, Sparse, Words, vocabulary
from loadtest.foreign.models import SEED, ZOO, Rows
from loadtest.foreign.random_tables import normal

_USERS, _TAGS, _WORDS = 1000, 500, 400
# Type of a function of (tf, v1, rows) that builds a graph and returns its placeholders and its outputs.
Graph = Callable[[Any, Any, Rows], tuple[dict[str, Any], dict[str, Any]]]


def _add(name: str, inputs: dict[str, Kind], graph: Graph, *, is_resource: bool = False) -> None:
    def build(folder: Path, rows: Rows) -> None:
        import tensorflow as tf

        v1 = tf.compat.v1
        with tf.Graph().as_default():
            v1.set_random_seed(SEED)
            with v1.variable_scope("", use_resource=is_resource):
                placeholders, outputs = graph(tf, v1, rows)
            with v1.Session() as session:
                session.run([v1.global_variables_initializer(), v1.tables_initializer()])
                v1.saved_model.simple_save(session, str(folder), placeholders, outputs, v1.tables_initializer())

    ZOO.add(name, inputs, build)


def _table(v1: Any, name: str, rows: int, dim: int, *, parts: int = 0) -> Any:
    return v1.get_variable(
        name,
        [rows, dim],
        initializer=v1.constant_initializer(normal(name, rows, dim)) if not parts else v1.random_normal_initializer(),
        partitioner=v1.fixed_size_partitioner(parts) if parts else None,
    )


def _ids(v1: Any, name: str, dtype: str = "int64", shape: tuple[int | None, ...] = (None,)) -> Any:
    return v1.placeholder(dtype, shape, name)


def _gather(tf: Any, v1: Any, rows: Rows) -> tuple[dict[str, Any], dict[str, Any]]:
    user = _ids(v1, "user")
    vectors = tf.gather(_table(v1, "users", rows(_USERS), 16), user)
    kernel = _table(v1, "kernel", 16, 1)
    return {"user": user}, {"vectors": vectors, "score": tf.matmul(vectors, kernel)}


def _rows_only(tf: Any, v1: Any, rows: Rows) -> tuple[dict[str, Any], dict[str, Any]]:
    user = _ids(v1, "user", "int32")
    return {"user": user}, {"vectors": tf.nn.embedding_lookup(_table(v1, "users", rows(_USERS), 16), user)}


_add("session_reference_variables", {"user": Ids(_USERS)}, _gather)
_add("session_resource_variables", {"user": Ids(_USERS)}, _gather, is_resource=True)
_add("session_rows_of_a_reference_variable", {"user": Ids(_USERS)}, _rows_only)


def _partitioned(strategy: str) -> Graph:
    def graph(tf: Any, v1: Any, rows: Rows) -> tuple[dict[str, Any], dict[str, Any]]:
        user = _ids(v1, "user")
        table = _table(v1, "users", rows(_USERS), 16, parts=3)
        vectors = v1.nn.embedding_lookup(table, user, partition_strategy=strategy)
        return {"user": user}, {"vectors": vectors}

    return graph


_add("session_partitioned_div", {"user": Ids(_USERS)}, _partitioned("div"))
_add("session_partitioned_mod", {"user": Ids(_USERS)}, _partitioned("mod"))


def _partitioned_safe(tf: Any, v1: Any, rows: Rows) -> tuple[dict[str, Any], dict[str, Any]]:
    ids, indices = _ids(v1, "ids"), _ids(v1, "indices", shape=(None, 2))
    dense_shape = _ids(v1, "dense_shape", shape=(2,))
    table = _table(v1, "tags", rows(_TAGS), 8, parts=4)
    sparse = v1.SparseTensor(indices, ids, dense_shape)
    mean = v1.nn.safe_embedding_lookup_sparse(table, sparse, combiner="mean", partition_strategy="div")
    return {"ids": ids, "indices": indices, "dense_shape": dense_shape}, {"mean": mean}


_SPARSE: dict[str, Kind] = {"ids": Sparse(_TAGS, indices="indices", dense_shape="dense_shape")}
_add("session_partitioned_safe_mean", _SPARSE, _partitioned_safe)


def _segments(tf: Any, v1: Any, rows: Rows) -> tuple[dict[str, Any], dict[str, Any]]:
    values, splits = _ids(v1, "values"), _ids(v1, "splits")
    vectors = tf.nn.embedding_lookup(_table(v1, "tags", rows(_TAGS), 8), values)
    row_numbers = tf.repeat(tf.range(tf.size(splits) - 1), splits[1:] - splits[:-1])
    return {"values": values, "splits": splits}, {"sum": tf.math.segment_sum(vectors, row_numbers)}


_add("session_segment_sum", {"values": Ragged(_TAGS, splits="splits")}, _segments)


def _keyed(tf: Any, v1: Any, rows: Rows) -> tuple[dict[str, Any], dict[str, Any]]:
    word = _ids(v1, "word", "string")
    table = v1.nn.embedding_lookup(
        _table(v1, "words", rows(_WORDS) + 3, 8),
        tf.lookup.StaticVocabularyTable(
            tf.lookup.KeyValueTensorInitializer(
                tf.constant(vocabulary("word", rows(_WORDS))), tf.range(rows(_WORDS), dtype=tf.int64)
            ),
            3,
        ).lookup(word),
    )
    return {"word": word}, {"vectors": table}


_add("session_vocabulary", {"word": Words("word", _WORDS)}, _keyed)
