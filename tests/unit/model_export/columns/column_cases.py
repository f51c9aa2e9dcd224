"""Columns of every categorical kind with one batch of features, and the expected results of their lookups.

The rows are lists of ids of the table; the features are values that become those ids. V is 6 and D is 3 for all tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.unit.model_export.late import tf

V, D, K = 6, 3, 3
TABLE = np.random.default_rng(7).normal(size=(V, D)).astype(np.float32)
# Empty rows at the start, in the middle and at the end; rows of K - 1, K and K + 1 ids; the last row of the table; a
# repeated id.
SAFE_ROWS: list[list[int]] = [[], [V - 1, 0], [1, 1, 2], [], [3, 4, 5, 2], [-1, 2], [-1], []]
UNSAFE_ROWS: list[list[int]] = [[], [V - 1, 0], [1, 1, 2], [], [3, 4, 5, 2], [4]]
WORDS = ["a", "b", "c", "d", "e", "f"]
NUMBERS = [10, 11, 12, 13, 14, 15]


def table_initializer(shape: Any, dtype: Any = None, partition_info: Any = None) -> Any:
    """Initializes the table of every column with the same numbers."""
    assert list(shape) == [V, D]
    return tf.constant(TABLE)


def weights_of(rows: list[list[int]]) -> list[list[float]]:
    """Returns a weight for each id: fractions, and from the fourth row on also 0 and negative weights."""
    choices = [0.5, 2.0, 1.5, -1.0, 0.0, 0.25, 3.0]
    count = iter(range(1000))
    return [[choices[next(count) % (3 if r < 3 else 7)] for _ in row] for r, row in enumerate(rows)]


def sparse(rows: list[list[Any]], dtype: Any) -> Any:
    """Converts rows of values to a SparseTensor whose width is that of the longest row."""
    indices = [[r, c] for r, row in enumerate(rows) for c in range(len(row))]
    values = [value for row in rows for value in row]
    width = max(map(len, rows), default=0)
    return tf.SparseTensor(np.array(indices, np.int64).reshape(-1, 2), tf.constant(values, dtype), [len(rows), width])


@dataclass(frozen=True)
class Kind:
    """One kind of categorical column, with features from which the column makes the rows of ids."""

    column: Any
    features: Callable[[list[list[int]]], dict[str, Any]]
    is_weighted: bool = False


def kinds(folder: Path) -> dict[str, Kind]:
    """Returns every kind of categorical column but sequences, each with its own feature key."""
    fc = tf.feature_column
    words = folder / "words.txt"
    words.write_text("".join(word + "\n" for word in WORDS))

    def ids(key: str) -> Callable[[list[list[int]]], dict[str, Any]]:
        return lambda rows: {key: sparse(rows, tf.int64)}

    def named(key: str, names: list[Any], unknown: Any, dtype: Any) -> Callable[[list[list[int]]], dict[str, Any]]:
        return lambda rows: {key: sparse([[names[i] if i >= 0 else unknown for i in row] for row in rows], dtype)}

    def weighted(rows: list[list[int]]) -> dict[str, Any]:
        return {"weighted": sparse(rows, tf.int64), "factor": sparse(weights_of(rows), tf.float32)}

    return {
        "identity": Kind(fc.categorical_column_with_identity("identity", V), ids("identity")),
        "weighted": Kind(
            fc.weighted_categorical_column(fc.categorical_column_with_identity("weighted", V), "factor"),
            weighted,
            is_weighted=True,
        ),
        "vocabulary_file": Kind(
            fc.categorical_column_with_vocabulary_file("file", str(words)), named("file", WORDS, "zz", tf.string)
        ),
        "vocabulary_list": Kind(
            fc.categorical_column_with_vocabulary_list("list", WORDS), named("list", WORDS, "zz", tf.string)
        ),
        "vocabulary_list_of_int": Kind(
            fc.categorical_column_with_vocabulary_list("numbers", NUMBERS), named("numbers", NUMBERS, 99, tf.int64)
        ),
    }


def expected(
    rows: list[list[int]],
    combiner: str,
    *,
    weights: list[list[float]] | None = None,
    is_safe: bool = True,
    width: int | None = None,
    table: np.ndarray[Any, Any] = TABLE,
) -> np.ndarray[Any, Any]:
    """Computes the expected vectors by the documented formulas; with a width, those of the tensor-core lookup."""
    out = np.zeros((len(rows), table.shape[1]))
    for r, row in enumerate(rows):
        pairs = list(zip(row, weights[r] if weights else [1.0] * len(row), strict=True))[:width]
        if is_safe:
            prunes = combiner != "sum" and width is None
            pairs = [(i, w) for i, w in pairs if i >= 0 and (w > 0 or not prunes)]
        factors = np.array([w for _, w in pairs])
        total = sum((w * table[i].astype(np.float64) for i, w in pairs), np.zeros(table.shape[1]))
        divisor = {"sum": 1.0, "mean": factors.sum(), "sqrtn": np.sqrt((factors * factors).sum())}[combiner]
        if width is not None and combiner == "mean":
            divisor = max(divisor, 1.0)
        out[r] = total / divisor if divisor else 0.0
    return out


@contextmanager
def tpu_context(*, shards: int | None = 1, is_inference: bool = True) -> Iterator[None]:
    """Simulates TensorFlow's context for TPU graphs; outside_compilation just calls the function."""
    from tensorflow.python.tpu import tpu, tpu_function

    with tpu_function.tpu_shard_context(shards) if shards else nullcontext():
        if not is_inference:
            yield
            return
        context = tpu._TPUInferenceContext("inference", check_ops=False)
        context.Enter()
        try:
            yield
        finally:
            context.Exit()
