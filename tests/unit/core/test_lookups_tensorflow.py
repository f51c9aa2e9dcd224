"""Lookups do TensorFlow's arithmetic: its serving lookup, its safe sparse lookup, and its tensor-core functions."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from tests import oracle
from tests.feature_lookups import Where, combine, gather
from tests.stored_tables import store
from tests.unit.core.test_lookups import COMBINERS
from tests.unit.core.test_lookups import where as where

pytestmark = pytest.mark.tf

V, D, K = 7, 5, 4
CASES = 25


def draw(seed: int, *, positive: bool) -> tuple[np.ndarray, list[list[int]], list[list[float]]]:
    """Returns a table, rows of ids of which some are empty, and a weight for each id."""
    random = np.random.default_rng(seed)
    table = random.normal(size=(V, D)).astype(np.float32)
    rows = [random.integers(0, V, random.integers(0, K + 1)).tolist() for _ in range(random.integers(1, 6))]
    # Weights are quarters, which float32 adds without rounding, so that whether a sum is zero does not depend on the
    # order.
    low = 1 if positive else -8
    weights = [(random.integers(low, 9, len(row)) / 4).tolist() for row in rows]
    return table, rows, weights


def ragged_tensor(tf: Any, rows: oracle.Rows, dtype: str = "int64") -> Any:
    """Returns rows as a RaggedTensor."""
    return tf.RaggedTensor.from_row_splits(*oracle.ragged(rows, dtype))


@pytest.mark.parametrize("combiner", COMBINERS)
@pytest.mark.parametrize("is_weighted", [False, True])
def test_equals_the_serving_lookup_of_ragged_ids(where: Where, tf: Any, combiner: str, is_weighted: bool) -> None:
    for seed, expected in enumerate(serving_lookups(tf, combiner, is_weighted)):
        table, rows, weights = draw(seed, positive=False)
        found = combine(where, store(table), rows, combiner=combiner, weights=weights if is_weighted else None)
        np.testing.assert_allclose(found, expected, rtol=2e-6, atol=2e-6, err_msg=f"seed {seed}")


# Cached, because two tests compare lookups with these results.
@cache
def serving_lookups(tf: Any, combiner: str, is_weighted: bool) -> list[np.ndarray]:
    """Returns the answers of TensorFlow's serving lookup of ragged ids, for each seed."""
    embedding = tf.tpu.experimental.embedding
    found = []
    for seed in range(CASES):
        table, rows, weights = draw(seed, positive=False)
        config = embedding.TableConfig(vocabulary_size=V, dim=D, combiner=combiner, name="t")
        (answer,) = embedding.serving_embedding_lookup(
            [ragged_tensor(tf, rows)],
            [ragged_tensor(tf, weights, "float32")] if is_weighted else None,
            {config: tf.Variable(table)},
            [embedding.FeatureConfig(table=config)],
        )
        found.append(answer.numpy())
    return found


@pytest.mark.parametrize("combiner", COMBINERS)
@pytest.mark.parametrize("is_weighted", [False, True])
def test_equals_the_safe_sparse_lookup_where_that_prunes_nothing(
    where: Where, tf: Any, combiner: str, is_weighted: bool
) -> None:
    # safe_embedding_lookup_sparse drops ids whose weight is not positive, unless it sums. TensorFlow's lookup of ragged
    # ids keeps them, and so do these lookups, so the weights here are positive.
    for seed in range(CASES):
        table, rows, weights = draw(seed, positive=combiner != "sum")
        expected = safe_lookup(tf, seed, combiner, is_weighted, positive=combiner != "sum")
        found = combine(where, store(table), rows, combiner=combiner, weights=weights if is_weighted else None)
        # safe_embedding_lookup_sparse gives no row for empty rows at the end of a batch; no batch here ends in one.
        assert len(expected) == len(rows)
        np.testing.assert_allclose(found, expected, rtol=2e-6, atol=2e-6, err_msg=f"seed {seed}")


def without_zeros(rows: oracle.Rows) -> list[list[int]]:
    """Returns rows with -1 in place of each id 0."""
    return [[row_id if row_id else -1 for row_id in row] for row in rows]


def beyond_where_left_out(rows: oracle.Rows, weights: oracle.Weights) -> list[list[int]]:
    """Returns rows with an id beyond the table in place of each id whose weight is not positive."""
    pairs = [zip(row, factors, strict=True) for row, factors in zip(rows, weights, strict=True)]
    return [[row_id if weight > 0 else V + 3 for row_id, weight in row] for row in pairs]


@cache
def safe_lookup(
    tf: Any, seed: int, combiner: str, is_weighted: bool, *, positive: bool, has_negative: bool = False
) -> np.ndarray:
    """Returns the answer of TensorFlow's safe sparse lookup for a seed."""
    table, rows, weights = draw(seed, positive=positive)
    if has_negative:
        rows = without_zeros(rows)
    if is_weighted and combiner != "sum":
        rows = beyond_where_left_out(rows, weights)
    found: np.ndarray = tf.nn.safe_embedding_lookup_sparse(
        [tf.constant(table)],
        ragged_tensor(tf, rows).to_sparse(),
        sparse_weights=ragged_tensor(tf, weights, "float32").to_sparse() if is_weighted else None,
        combiner=combiner,
    ).numpy()
    return found


@pytest.mark.parametrize("combiner", COMBINERS)
def test_dropping_negative_ids_is_what_the_safe_lookup_does(where: Where, tf: Any, combiner: str) -> None:
    for seed in range(CASES):
        table, rows, _ = draw(seed, positive=True)
        rows = without_zeros(rows)
        expected = safe_lookup(tf, seed, combiner, False, positive=True, has_negative=True)
        found = combine(where, store(table), rows, combiner=combiner, on_bad_id="drop")
        np.testing.assert_allclose(found, expected, rtol=2e-6, atol=2e-6, err_msg=f"seed {seed}")


@pytest.mark.parametrize("combiner", ["mean", "sqrtn"])
def test_leaving_weights_out_is_what_the_safe_lookup_does_unless_it_sums(where: Where, tf: Any, combiner: str) -> None:
    for seed in range(CASES):
        table, rows, weights = draw(seed, positive=False)
        rows = beyond_where_left_out(without_zeros(rows), weights)
        expected = safe_lookup(tf, seed, combiner, True, positive=False, has_negative=True)
        found = combine(
            where,
            store(table),
            rows,
            combiner=combiner,
            weights=weights,
            on_bad_id="drop_negative",
            on_nonpositive_weight="drop",
        )
        np.testing.assert_allclose(found, expected, rtol=2e-6, atol=2e-6, err_msg=f"seed {seed}")


def test_clamping_is_what_a_compiled_gather_does(where: Where, tf: Any) -> None:
    table, _, _ = draw(0, positive=True)
    ids = np.array([-(2**31), -1, 0, V - 1, V, 2**31 - 1], np.int32)
    expected = tf.function(tf.gather, jit_compile=True)(tf.constant(table), tf.constant(ids)).numpy()
    assert np.array_equal(gather(where, store(table), ids.tolist(), on_bad_id="clamp"), expected)


@pytest.mark.parametrize("is_sparse", [True, False])
@pytest.mark.parametrize("length", [1, 2, K])
def test_equals_the_serving_lookup_of_sequences(where: Where, tf: Any, length: int, is_sparse: bool) -> None:
    for seed in range(CASES):
        table, rows, _ = draw(seed, positive=True)
        expected = sequence_of_seed(tf, seed, length, is_sparse)
        assert np.array_equal(combine(where, store(table), rows, max_sequence_length=length), expected), f"seed {seed}"


@cache
def sequence_of_seed(tf: Any, seed: int, length: int, is_sparse: bool) -> np.ndarray:
    """Returns the vectors of TensorFlow's serving lookup of a sequence feature; the seed determines table and ids."""
    table, rows, _ = draw(seed, positive=True)
    ids = ragged_tensor(tf, rows)
    return serving_sequence(tf, table, ids.to_sparse() if is_sparse else ids, length)


def test_ids_behind_the_cut_of_a_sequence_are_not_judged_as_in_the_lookup_of_sparse_ids(where: Where, tf: Any) -> None:
    # TensorFlow's lookup of ragged ids reads the ids beyond the sequence's length before it cuts them off, so it fails
    # here.
    table, _, _ = draw(0, positive=True)
    rows = [[1, 2, V], [3]]
    assert np.array_equal(
        combine(where, store(table), rows, max_sequence_length=2),
        serving_sequence(tf, table, ragged_tensor(tf, rows).to_sparse(), 2),
    )
    with pytest.raises(tf.errors.InvalidArgumentError):
        serving_sequence(tf, table, ragged_tensor(tf, rows), 2)


def serving_sequence(tf: Any, table: np.ndarray, ids: Any, length: int) -> np.ndarray:
    """Returns the vectors that TensorFlow's serving lookup gives for a sequence feature with these ids."""
    embedding = tf.tpu.experimental.embedding
    config = embedding.TableConfig(vocabulary_size=V, dim=D, name="t")
    feature = embedding.FeatureConfig(table=config, max_sequence_length=length)
    return embedding.serving_embedding_lookup([ids], None, {config: tf.Variable(table)}, [feature])[0].numpy()


def tensor_core(tf: Any, table: np.ndarray, rows: oracle.Rows, weights: Any, combiner: str, width: int) -> np.ndarray:
    """Returns the answer of TensorFlow's own tensor-core functions."""
    from tensorflow.python.tpu import feature_column_v2

    ids = ragged_tensor(tf, rows).to_sparse()
    indices, mask = feature_column_v2.pad_sparse_embedding_lookup_indices(ids, width)
    if weights is not None:
        factors = ragged_tensor(tf, weights, "float32").to_sparse()
        padded = tf.sparse.to_dense(tf.sparse.slice(factors, [0, 0], [len(rows), width]))
        mask = tf.pad(padded, [[0, 0], [0, width - padded.shape[1]]])
    return feature_column_v2.sparse_embedding_aggregate_slice(tf.constant(table), (indices, mask), combiner).numpy()


@pytest.mark.parametrize("combiner", ["sum", "mean"])
@pytest.mark.parametrize("is_weighted", [False, True])
@pytest.mark.parametrize("width", [1, 2, K])
def test_equals_the_tensor_core_functions(where: Where, tf: Any, combiner: str, is_weighted: bool, width: int) -> None:
    for seed in range(CASES // 2):
        table, rows, weights = draw(seed, positive=False)
        used = weights if is_weighted else None
        expected = tensor_core_of_seed(tf, seed, is_weighted, combiner, width)
        found = combine(
            where,
            store(table),
            rows,
            combiner=combiner,
            weights=used,
            mean_divisor="at_least_one",
            max_ids_per_row=width,
            on_too_many_ids="truncate",
        )
        np.testing.assert_allclose(found, expected, rtol=2e-6, atol=2e-6, err_msg=f"seed {seed}")


@cache
def tensor_core_of_seed(tf: Any, seed: int, is_weighted: bool, combiner: str, width: int) -> np.ndarray:
    """Returns the answer of the tensor-core functions for a seed."""
    table, rows, weights = draw(seed, positive=False)
    return tensor_core(tf, table, rows, weights if is_weighted else None, combiner, width)


def test_the_tensor_core_knows_no_sqrtn(tf: Any) -> None:
    with pytest.raises(ValueError, match="does not support combiner other than sum and mean"):
        tensor_core(tf, np.ones((V, D), np.float32), [[1]], None, "sqrtn", 2)


@pytest.mark.parametrize("combiner", COMBINERS)
def test_the_oracle_agrees_with_tensorflow_too(tf: Any, combiner: str) -> None:
    for seed, expected in enumerate(serving_lookups(tf, combiner, True)):
        table, rows, weights = draw(seed, positive=False)
        found = oracle.combine(table, rows, combiner, weights=weights)
        np.testing.assert_allclose(found, expected, rtol=2e-6, atol=2e-6, err_msg=f"seed {seed}")
