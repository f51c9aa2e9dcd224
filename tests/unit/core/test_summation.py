"""Sums in the order of TensorFlow's ops are bit for bit equal to theirs, however long a row is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from service.artifact.manifest import LookupFeature
from tests.feature_lookups import Where, looked_up
from tests.stored_tables import store
from tests.unit.core.test_lookups import where as where

pytestmark = pytest.mark.tf

LENGTHS = [*range(26), 40, 41, 63, 64, 65, 163]


def combine(
    where: Where,
    table: np.ndarray,
    splits: np.ndarray,
    ids: np.ndarray,
    summation: Any,
    combiner: Any,
    weights: np.ndarray | None = None,
) -> np.ndarray:
    """Returns the sums of a lookup that drops ids without a row."""
    inputs = {"ids": ids, "splits": splits} | ({} if weights is None else {"weights": weights})
    named = None if weights is None else "weights"
    feature = LookupFeature("ids", "splits", named, combiner=combiner, summation=summation, on_bad_id="drop")
    return looked_up(where, feature, store(table), inputs)


def drawn(dim: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Returns random: a table, ids, row splits with rows of all lengths, and the row of each id."""
    random = np.random.default_rng(dim)
    lengths = random.permutation(LENGTHS * 2)
    splits = np.cumsum([0, *lengths]).astype(np.int64)
    table = random.standard_normal((50, dim)).astype(np.float32)
    return table, random.integers(0, 50, splits[-1]), splits, np.repeat(np.arange(lengths.size), lengths)


@pytest.mark.parametrize("dim", [1, 4, 5, 8, 12, 16, 20, 36, 64])
@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_blocks_of_8_are_those_of_sparse_segments(where: Where, tf: Any, dim: int, combiner: str) -> None:
    table, ids, splits, rows = drawn(dim)
    function = {"sum": tf.sparse.segment_sum, "mean": tf.sparse.segment_mean, "sqrtn": tf.sparse.segment_sqrt_n}
    expected = function[combiner](table, ids, rows, num_segments=len(splits) - 1).numpy()
    found = combine(where, table, splits, ids, "blocks_of_8", combiner)
    assert found.tobytes() == expected.tobytes()


@pytest.mark.parametrize("dim", [1, 4, 5, 8, 12, 16, 20, 36, 64])
def test_four_lanes_are_those_of_segment_sum(where: Where, tf: Any, dim: int) -> None:
    table, ids, splits, rows = drawn(dim)
    expected = tf.math.segment_sum(table[ids], rows).numpy()
    found = combine(where, table, splits, ids, "four_lanes", "sum")[: len(expected)]
    # The order of sums assumes a TensorFlow built for AVX, which adds 8 columns at a time; other processors may need
    # another order.
    assert found.tobytes() == expected.tobytes()


@pytest.mark.parametrize("dim", [1, 5, 8, 20, 64])
@pytest.mark.parametrize("combiner", ["sum", "mean"])
def test_four_lanes_are_those_of_a_weighted_sparse_lookup(where: Where, tf: Any, dim: int, combiner: str) -> None:
    table, ids, splits, _ = drawn(dim)
    weights = np.random.default_rng(3).uniform(0.1, 2, ids.size).astype(np.float32)
    sparse_ids, sparse_weights = (tf.RaggedTensor.from_row_splits(a, splits).to_sparse() for a in (ids, weights))
    expected = tf.nn.embedding_lookup_sparse(tf.constant(table), sparse_ids, sparse_weights, combiner=combiner).numpy()
    found = combine(where, table, splits, ids, "four_lanes", combiner, weights)[: len(expected)]
    assert found.tobytes() == expected.tobytes()


def test_ids_that_are_dropped_do_not_count(where: Where, tf: Any) -> None:
    table, ids, splits, rows = drawn(12)
    bad = ids.copy()
    bad[::3] = -1
    kept = bad >= 0
    counts = np.bincount(rows[kept], minlength=len(splits) - 1)
    fewer = np.cumsum([0, *counts]).astype(np.int64)
    found = combine(where, table, splits, bad, "blocks_of_8", "mean")
    assert found.tobytes() == combine(where, table, fewer, bad[kept], "blocks_of_8", "mean").tobytes()
