"""Computes a TPU tensor core's lookup on any device: pads ids to [B, K], gathers their rows, and masks the padding.

TensorFlow has this lookup in TPU graphs only, and for raw ids. Here it runs on a CPU too, and for the ids that the
categorical column gives: with default value, vocabulary and out-of-vocabulary buckets applied before the padding.

Differences from TensorFlow's lookup, named as the policies of service.artifact.manifest.LookupFeature:
  on_bad_id "drop_negative": with use_safe_embedding_lookup, an id below 0 (a word outside the vocabulary) is left out.
TensorFlow reads row 0 instead on a TPU and fails on a CPU. Without use_safe_embedding_lookup both fail on a CPU.
On a CPU int64 ids stay int64; TensorFlow's wrap to int32. The same as in TensorFlow: on_too_many_ids "truncate" by
column index (an id in column K or later is cut, even if earlier columns are empty), mean_divisor "at_least_one", and
weights of 0 or less count.

Source: TensorFlow 2.21, python/tpu/feature_column_v2.py, pad_sparse_embedding_lookup_indices and
sparse_embedding_aggregate_slice.
"""

from __future__ import annotations

from typing import Any

from model_export.tensorflow_setup import tf


def padded(ids: Any, weights: Any, width: int, *, drops_negative: bool) -> tuple[Any, Any]:
    """Cuts and pads rows of ids to K columns.

    Args:
      ids: SparseTensor [B, any] int64.
      weights: SparseTensor of floats at the same places; None: 1 everywhere.
      width: K.
      drops_negative: whether an id below 0 gets the mask 0.

    Returns:
      values: [B, K] int64, rows of the table; 0 for padding.
      mask: [B, K] float32, the weight of each id; 0 for padding.
    """
    shape = ids.dense_shape
    factors = tf.ones_like(ids.values, tf.float32) if weights is None else tf.cast(weights.values, tf.float32)
    if drops_negative:
        factors = tf.where(ids.values < 0, 0.0, factors)
    # With drops_negative, a negative id reads row 0 without effect, because the mask gives it the weight 0.
    mask = _dense(tf.SparseTensor(ids.indices, factors, shape), width)
    values = tf.maximum(ids.values, 0) if drops_negative else ids.values
    return _dense(tf.SparseTensor(ids.indices, values, shape), width), mask


def combined(table: Any, values: Any, mask: Any, combiner: str) -> Any:
    """Gathers the vectors of padded ids and combines the vectors of each row.

    Args:
      table: [V, D] float32 variable or tensor.
      values, mask: [B, K], from padded().
      combiner: "sum": sum(m v). "mean": sum(m v) / max(sum(m), 1).

    Returns:
      [B, D] float32; zeros for an empty row, unless row 0 of the table holds an Inf or NaN, which padding reads.

    Raises:
      ValueError: the combiner is neither "sum" nor "mean".
    """
    if combiner not in ("sum", "mean"):
        raise ValueError("Dense TPU Embedding does not support combiner other than sum and mean.")
    vectors = tf.nn.embedding_lookup(table, values)
    factors = tf.expand_dims(mask, -1)
    total = tf.reduce_sum(vectors * factors, axis=1)
    return total if combiner == "sum" else total / tf.maximum(tf.reduce_sum(factors, axis=1), 1.0)


def for_tpu(values: Any) -> Any:
    """Converts ids to int32, the dtype by which a TPU gathers; clips an id beyond int32, so that it does not wrap."""
    return tf.cast(tf.clip_by_value(values, tf.int32.min, tf.int32.max), tf.int32)


def _dense(sparse: Any, width: int) -> Any:
    rows = sparse.dense_shape[0]
    cut = tf.sparse.slice(sparse, [0, 0], [rows, width])
    return tf.scatter_nd(cut.indices, cut.values, [rows, width])
