"""The rows of all keys are worked out from ops; TensorFlow itself, asked for keys around every edge, is the oracle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from model_export.adoption.key_evaluation import Evaluation, KeyFunction
from model_export.adoption.key_graph import Fixed, Hashed, Known, NotRead, Shifted, Within
from service.artifact.hashes import fingerprint64
from service.graph.flat_graph import flatten
from service.types import Array

pytestmark = pytest.mark.tf

V = 200
LIMITS = {"int64": (-(2**63), 2**63 - 1), "int32": (-(2**31), 2**31 - 1)}
EDGES = (0, 1, 2, 7, 50, 100, 199, 200, 201, 417, 1000, 2**31, 2**32 + 5, 2**40 + 1)


class Graph:
    """A graph of one placeholder of keys, with the function that computes rows from them.

    Args:
      build: takes TensorFlow and the tensor of keys, returns the tensor of rows.
    """

    def __init__(self, build: Callable[[Any, Any], Any], dtype: str) -> None:
        from model_export.tensorflow_setup import tf

        self.tf, self.dtype = tf, dtype
        with tf.Graph().as_default() as graph:
            keys = tf.compat.v1.placeholder(tf.as_dtype(dtype), [None], "keys")
            self.rows = tf.identity(build(tf, keys), "rows").name
            self.session = tf.compat.v1.Session(graph=graph)
            self.session.run(tf.compat.v1.tables_initializer())
        flat = flatten(graph.as_graph_def(), [self.rows])
        self.function = KeyFunction(flat, "keys:0", dtype, self._is_constant, self.session.run, self._table)
        self._flat = flat

    def _is_constant(self, tensor: str) -> bool:
        return "keys" not in self._flat.ancestors([tensor])

    def _table(self, handle: str) -> tuple[Array, Array]:
        tf = self.tf
        node = self.session.graph.get_operation_by_name(handle.partition(":")[0]).node_def
        with self.session.graph.as_default():
            exported = tf.raw_ops.LookupTableExportV2(
                table_handle=self.session.graph.get_tensor_by_name(handle),
                Tkeys=tf.as_dtype(node.attr["key_dtype"].type),
                Tvalues=tf.as_dtype(node.attr["value_dtype"].type),
            )
        keys, values = self.session.run([exported.keys, exported.values])
        return keys, values

    def asked(self, keys: list[Any]) -> list[int]:
        """Returns TensorFlow's rows of some keys."""
        found: list[int] = self.session.run(self.rows, {"keys:0": keys}).tolist()
        return found


def look(graph: Graph) -> Callable[[Evaluation], tuple[Known, ...]]:
    def find(evaluation: Evaluation) -> tuple[Known, ...]:
        row = evaluation.of(graph.rows)
        evaluation.is_within(row, V)
        return (row,)

    return find


def fits(value: Known, key: int, row: int) -> bool:
    """Says whether TensorFlow's row of a key is the one that a value says."""
    if isinstance(value, Shifted):
        return row == key + value.by
    if isinstance(value, Fixed):
        return row == int(value.value)
    if isinstance(value, Hashed):
        return row == value.first + fingerprint64(str(key).encode()) % value.buckets
    return isinstance(value, Within) and value.low <= row <= value.high


INTEGERS: dict[str, Callable[[Any, Any], Any]] = {
    "identity": lambda tf, k: k,
    "clamped": lambda tf, k: tf.clip_by_value(k, 0, V - 1),
    "minimum_only": lambda tf, k: tf.minimum(k, V - 1),
    "maximum_of_shifts": lambda tf, k: tf.maximum(k, k - 1),
    "one_retired": lambda tf, k: tf.where(k == 417, tf.constant(3, k.dtype), k),
    "not_equal": lambda tf, k: tf.where(k != 50, k, tf.constant(0, k.dtype)),
    "unknown_is_last": lambda tf, k: tf.where((k < 0) | (k >= V), tf.constant(V - 1, k.dtype), k),
    "unknown_is_first": lambda tf, k: tf.where((k >= 0) & (k < V), k, tf.zeros_like(k)),
    "unknown_is_filled": lambda tf, k: tf.where(
        (k < 0) | (k >= V), tf.fill(tf.shape(k), tf.constant(V - 1, k.dtype)), k
    ),
    "less_equal": lambda tf, k: tf.where(k <= 100, k, tf.ones_like(k)),
    "greater": lambda tf, k: tf.where(k > 100, tf.constant(7, k.dtype), k),
    "constant_is_less": lambda tf, k: tf.where(100 < k, tf.constant(7, k.dtype), k),
    "constant_is_at_most": lambda tf, k: tf.where(tf.less_equal(tf.constant(100, k.dtype), k), k - 1, k),
    "negated": lambda tf, k: tf.where(~(k >= 2), tf.constant(5, k.dtype), k),
    "offset": lambda tf, k: k - 1,
    "offset_back": lambda tf, k: (k - 7) + 7,
    "wrapped_as_keras": lambda tf, k: tf.where(k < 0, k + V, k),
    "times_one": lambda tf, k: k * tf.constant(1, k.dtype),
    "masked_to_zero": lambda tf, k: k * tf.cast(k < 100, k.dtype),
    "divided": lambda tf, k: tf.where((k >= 0) & (k < 20), k // 7, tf.zeros_like(k)),
    "remainder_in_steps": lambda tf, k: tf.where((k >= 0) & (k < 20), k % 7, tf.zeros_like(k)),
    "remainder": lambda tf, k: k % 100,
    "cast_up_and_down": lambda tf, k: tf.cast(tf.cast(tf.clip_by_value(k, -5, 500), tf.int16), k.dtype),
    "hash_as_text": lambda tf, k: tf.strings.to_hash_bucket_fast(tf.strings.as_string(k), V),
    "hash_behind_row_0": lambda tf, k: 1 + tf.strings.to_hash_bucket_fast(tf.strings.as_string(k), V - 1),
    "hash_of_all_but_0": lambda tf, k: tf.where(
        k == 0, tf.zeros_like(k, tf.int64), 1 + tf.strings.to_hash_bucket_fast(tf.strings.as_string(k), V - 1)
    ),
    "text_compared": lambda tf, k: tf.where(tf.strings.as_string(k) == "-1", tf.constant(9, k.dtype), k),
    "hash_and_remainder": lambda tf, k: tf.strings.to_hash_bucket_fast(tf.strings.as_string(k), V) % V,
}  # fmt: skip


@pytest.mark.parametrize("dtype", ["int64", "int32"])
@pytest.mark.parametrize("name", INTEGERS)
def test_pieces_cover_all_integers_and_say_tensorflows_rows(name: str, dtype: str) -> None:
    graph = Graph(INTEGERS[name], dtype)
    pieces = sorted(graph.function.pieces(look(graph), (0, V)), key=lambda piece: piece.keys or (0, 0))
    least, most = LIMITS[dtype]
    ends = [piece.keys for piece in pieces if piece.keys is not None]
    assert ends[0][0] == least and ends[-1][1] == most
    assert all(after[0] == before[1] + 1 for before, after in zip(ends, ends[1:], strict=False))
    random = np.random.default_rng(5)
    near = {edge + step for edge in (*EDGES, *(end for pair in ends for end in pair)) for step in (-1, 0, 1)}
    keys = sorted({key * sign for key in near for sign in (1, -1)} | set(random.integers(-300, 300, 50).tolist()))
    keys = [key for key in keys if least <= key <= most]
    for key, row in zip(keys, graph.asked(keys), strict=True):
        (value,) = next(p.values for p in pieces if p.keys is not None and p.keys[0] <= key <= p.keys[1])
        assert fits(value, key, row), (name, key, row, value)


def test_a_piece_lies_inside_the_table_or_outside() -> None:
    graph = Graph(INTEGERS["wrapped_as_keras"], "int64")
    pieces = graph.function.pieces(look(graph), (0, V))
    assert {piece.keys for piece in pieces} == {(-(2**63), -V - 1), (-V, -1), (0, V - 1), (V, 2**63 - 1)}


REFUSED: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "cast_to_int32": (lambda tf, k: tf.cast(k, tf.int32), "Cast to int32 drops the upper bits of ids"),
    "doubled": (lambda tf, k: k * 2, "Mul multiplies ids"),
    "squared": (lambda tf, k: k * k, "Mul multiplies ids"),
    "added_to_itself": (lambda tf, k: k + k, "AddV2 combines two numbers that both depend on the id"),
    "hash_of_a_shift": (
        lambda tf, k: tf.strings.to_hash_bucket_fast(tf.strings.as_string(k + 1), V),
        "AsString writes something else than the key",
    ),
    "hash_of_padded_text": (
        lambda tf, k: tf.strings.to_hash_bucket_fast(tf.strings.as_string(k, width=8, fill="0"), V),
        "AsString writes something else than the key",
    ),
    "divided_by_zero": (lambda tf, k: k // tf.constant(0, k.dtype), "FloorDiv divides ids by a number that is not"),
    "table_of_constants": (lambda tf, k: k + tf.constant([1, 2, 3], k.dtype), "a constant of 3 numbers takes part"),
    "hash_is_odd": (
        lambda tf, k: tf.where(tf.strings.to_hash_bucket_fast(tf.strings.as_string(k), V) < 100, k, tf.zeros_like(k)),
        "a hash of the key is compared with a number",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_arithmetic_that_is_not_known_exactly_is_named(name: str) -> None:
    build, message = REFUSED[name]
    graph = Graph(build, "int64")
    with pytest.raises(NotRead, match=message):
        graph.function.pieces(look(graph), (0, V))


def vocabulary(tf: Any, words: list[Any], default: int, first: int = 2) -> Any:
    rows = tf.range(first, first + len(words), dtype=tf.int64)
    return tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(words, rows), default)


STRINGS: dict[str, tuple[Callable[[Any, Any], Any], Known]] = {
    "hash": (lambda tf, k: tf.strings.to_hash_bucket_fast(k, V), Hashed(V)),
    "missing_value": (
        lambda tf, k: tf.where(k == "nan", tf.zeros_like(k, tf.int64), 1 + tf.strings.to_hash_bucket_fast(k, V - 1)),
        Hashed(V - 1, 1),
    ),
    "vocabulary": (lambda tf, k: vocabulary(tf, ["a", "b"], 1).lookup(k), Fixed(1)),
    "vocabulary_with_buckets": (
        lambda tf, k: tf.lookup.StaticVocabularyTable(
            tf.lookup.KeyValueTensorInitializer(["a", "b"], tf.constant([0, 1], tf.int64)), 5
        ).lookup(k),
        Hashed(5, 2),
    ),
    "mask_token": (
        lambda tf, k: tf.where(k == "[PAD]", tf.zeros_like(k, tf.int64), vocabulary(tf, ["a", "b"], 1).lookup(k)),
        Fixed(1),
    ),
    "not_the_empty_string": (
        lambda tf, k: tf.where(k != "", vocabulary(tf, ["a", "b"], 1).lookup(k), tf.zeros_like(k, tf.int64)),
        Fixed(1),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", STRINGS)
def test_special_keys_are_found_and_all_others_are_one_case(name: str) -> None:
    build, unknown = STRINGS[name]
    graph = Graph(build, "string")
    (piece,) = graph.function.pieces(lambda evaluation: (evaluation.of(graph.rows),))
    assert piece.keys is None and piece.values == (unknown,)
    special = graph.function.special_keys([graph.rows])
    assert b"" in special.tolist()
    assert graph.function.at(graph.rows, special).tolist() == graph.asked(special.tolist())
    for key in [b"other", b"A", b"a ", b"[PAD", b"\xff", b"NaN", b"x" * 100]:
        assert key not in special.tolist()
        (row,) = graph.asked([key])
        wanted = unknown.first + fingerprint64(key) % unknown.buckets if isinstance(unknown, Hashed) else None
        assert row == (wanted if isinstance(unknown, Hashed) else unknown.value)  # type: ignore[union-attr]


def test_a_vocabulary_of_integers_is_left_out_of_the_intervals() -> None:
    def lookup(tf: Any, keys: Any) -> Any:
        pairs = tf.constant([10, 20], tf.int64), tf.constant([2, 3], tf.int64)
        return tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(*pairs), 1).lookup(keys)

    graph = Graph(lookup, "int64")
    assert graph.function.special_keys([graph.rows]).tolist() == [10, 20]
    pieces = graph.function.pieces(lambda evaluation: (evaluation.of(graph.rows),))
    assert [piece.values for piece in pieces] == [(Fixed(1),)]
    assert graph.function.at(graph.rows, np.array([10, 20, 30])).tolist() == [2, 3, 1]


def test_a_vocabulary_of_strings_may_be_asked_for_the_text_of_an_integer() -> None:
    # No integer has the text 007, +7, -0 or red, and none of 64 bits that of 2^63.
    words = ["7", "-12", "0", "007", "+7", "-0", "red", str(2**63)]
    graph = Graph(lambda tf, keys: vocabulary(tf, words, 1).lookup(tf.strings.as_string(keys)), "int64")
    special = graph.function.special_keys([graph.rows])
    assert special.tolist() == [-12, 0, 7]
    assert graph.function.at(graph.rows, special).tolist() == graph.asked([-12, 0, 7]) == [3, 4, 2]
    pieces = graph.function.pieces(lambda evaluation: (evaluation.of(graph.rows),))
    assert [piece.values for piece in pieces] == [(Fixed(1),)]
    assert set(graph.asked([1, -1, 70, -7, 12, 2**63 - 1, -(2**63)])) == {1}
