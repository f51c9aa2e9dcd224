"""The tensor-core lookup agrees with TensorFlow's own, which is forced to run on a CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.unit.model_export.columns.column_cases import (
    TABLE,
    K,
    expected,
    sparse,
    table_initializer,
    tpu_context,
    weights_of,
)

pytestmark = pytest.mark.tf

ROWS = [[], [5, 0], [1, 1, 2], [], [3, 4, 5, 2], []]


def layer_of(api: Any, combiner: str, width: int, is_shared: bool, categorical: Any) -> Any:
    """Returns a layer with one padded column."""
    from model_export.tensorflow_setup import tf

    arguments: dict[str, Any] = {
        "dimension": 3,
        "combiner": combiner,
        "initializer": table_initializer,
        "embedding_lookup_device": "tpu_tensor_core",
        "tensor_core_shape": [None, width],
    }
    shared, single = api.shared_embedding_columns, api.embedding_column
    made = shared([categorical], **arguments) if is_shared else [single(categorical, **arguments)]
    return tf.keras.layers.DenseFeatures(made)


@pytest.mark.parametrize("is_shared", [False, True])
@pytest.mark.parametrize("combiner", ["sum", "mean"])
@pytest.mark.parametrize("width", [1, 2, 3, 4, 7])
def test_serving_is_tensorflows_padded_lookup(combiner: str, width: int, is_shared: bool) -> None:
    from model_export.columns import embedding_column as ours
    from model_export.tensorflow_setup import tf

    categorical = tf.feature_column.categorical_column_with_identity("i", 6)
    features = {"i": sparse(ROWS, tf.int64)}
    theirs = layer_of(tf.compat.v1.tpu.experimental, combiner, width, is_shared, categorical)
    with tpu_context():
        wanted = theirs(features).numpy()
    outside = layer_of(ours, combiner, width, is_shared, categorical)(features).numpy()
    np.testing.assert_array_equal(outside, wanted)
    inside_layer = layer_of(ours, combiner, width, is_shared, categorical)
    with tpu_context():
        np.testing.assert_array_equal(inside_layer(features), wanted)
    np.testing.assert_allclose(wanted, expected(ROWS, combiner, width=width), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("is_shared", [False, True])
@pytest.mark.parametrize("combiner", ["sum", "mean"])
def test_training_is_tensorflows_with_the_mask_it_asks_for(combiner: str, is_shared: bool) -> None:
    from model_export.columns import embedding_column as ours
    from model_export.tensorflow_setup import tf

    fc = tf.feature_column
    plain = fc.categorical_column_with_identity("i", 6)
    factors = weights_of(ROWS)
    ids, mask = np.zeros([len(ROWS), K], np.int32), np.zeros([len(ROWS), K], np.float32)
    for r, row in enumerate(ROWS):
        ids[r, : len(row[:K])], mask[r, : len(row[:K])] = row[:K], factors[r][:K]
    mine = layer_of(ours, combiner, K, is_shared, fc.weighted_categorical_column(plain, "w"))
    theirs = layer_of(tf.compat.v1.tpu.experimental, combiner, K, is_shared, plain)
    pull = tf.reshape(tf.range(1.0, len(ROWS) + 1), [-1, 1])
    results = []
    for layer, features, context in (
        (mine, {"i": sparse(ROWS, tf.int64), "w": sparse(factors, tf.float32)}, None),
        (theirs, {"i": tf.constant(ids), "i__TENSOR_CORE_MASK": tf.constant(mask)}, tpu_context(is_inference=False)),
    ):
        with tf.GradientTape() as tape:
            if context is None:
                vectors = layer(features)
            else:
                with context:
                    vectors = layer(features)
            target = tf.reduce_sum(vectors * pull)
        (table,) = tape.watched_variables()
        gradient = tf.convert_to_tensor(tape.gradient(target, table))
        tf.compat.v1.train.GradientDescentOptimizer(0.1).apply_gradients([(gradient, table)])
        results.append((vectors.numpy(), gradient.numpy(), table.numpy()))
    for mine_part, their_part in zip(*results, strict=True):
        np.testing.assert_allclose(mine_part, their_part, rtol=1e-6, atol=1e-6)
    assert np.abs(results[0][2] - TABLE).max() > 0.01, "the step moved the table"


def test_a_row_is_cut_by_column_also_where_columns_are_empty() -> None:
    from model_export.columns import embedding_column as ours
    from model_export.tensorflow_setup import tf

    categorical = tf.feature_column.categorical_column_with_identity("i", 6)
    # Row 0 has ids in columns 0, 2 and 5. A tensor core reads K = 3 columns, 0 to 2, of which column 1 is empty.
    features = {"i": tf.SparseTensor([[0, 0], [0, 2], [0, 5], [2, 1]], tf.constant([1, 2, 3, 4], tf.int64), [3, 6])}
    theirs = layer_of(tf.compat.v1.tpu.experimental, "mean", K, False, categorical)
    with tpu_context():
        wanted = theirs(features).numpy()
    np.testing.assert_array_equal(layer_of(ours, "mean", K, False, categorical)(features), wanted)
    np.testing.assert_allclose(wanted, expected([[1, 2], [], [4]], "mean"), rtol=1e-6)


def test_padding_gives_rows_and_mask() -> None:
    from model_export.columns.device_lookup import for_tpu, padded
    from model_export.tensorflow_setup import tf

    ids, weights = sparse([[7, -1, 9], [], [2**40]], tf.int64), sparse([[0.5, 2.0, 3.0], [], [-1.0]], tf.float64)
    values, mask = padded(ids, weights, 2, drops_negative=True)
    assert values.numpy().tolist() == [[7, 0], [0, 0], [2**40, 0]]
    assert mask.numpy().tolist() == [[0.5, 0.0], [0.0, 0.0], [-1.0, 0.0]] and mask.dtype == tf.float32
    assert padded(ids, None, 2, drops_negative=False)[0].numpy().tolist()[0] == [7, -1]
    assert for_tpu(values).numpy().tolist()[2] == [2**31 - 1, 0], "beyond any table, where a plain cast gives row 0"


def test_a_long_id_does_not_wrap_into_the_table() -> None:
    from model_export.columns import embedding_column as ours
    from model_export.tensorflow_setup import tf

    categorical = tf.feature_column.categorical_column_with_identity("i", 6)
    features = {"i": sparse([[2**32 + 1]], tf.int64)}
    with pytest.raises(tf.errors.InvalidArgumentError):
        layer_of(ours, "mean", K, False, categorical)(features)
    theirs = layer_of(tf.compat.v1.tpu.experimental, "mean", K, False, categorical)
    with tpu_context():
        np.testing.assert_array_equal(theirs(features), TABLE[[1]])  # TensorFlow's column reads row 1 for id 2**32 + 1


def test_words_reach_the_padded_lookup_of_a_tpu() -> None:
    from model_export.columns import embedding_column as ours
    from model_export.tensorflow_setup import tf

    categorical = tf.feature_column.categorical_column_with_vocabulary_list("w", list("abcdef"))
    features = {"w": sparse([["b", "zz", "f"], ["zz"]], tf.string)}
    for is_shared in (False, True):
        layer = layer_of(ours, "mean", K, is_shared, categorical)
        with tpu_context():
            np.testing.assert_allclose(layer(features), expected([[1, 5], []], "mean"), rtol=1e-6)


def test_sqrtn_has_no_padded_form() -> None:
    from model_export.columns.device_lookup import combined
    from model_export.tensorflow_setup import tf

    with pytest.raises(ValueError, match="other than sum and mean"):
        combined(tf.zeros([2, 2]), tf.zeros([1, 1], tf.int64), tf.ones([1, 1]), "sqrtn")
