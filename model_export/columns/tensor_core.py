"""The tensor-core lookup, on any device: ids padded to [B, K], one dense gather, a mask.

TensorFlow runs it inside a TPU graph only, on ids as they come. Here the ids have been through the categorical column
(its default value, its vocabulary, its out-of-vocabulary buckets) before they are padded, and it runs on a CPU too.

Differences from TensorFlow's own, by the policy of service.artifact.manifest.LookupFeature that names them:
  on_bad_id "drop_negative": with use_safe_embedding_lookup an id below 0, which is how a word outside the vocabulary
    comes, is left out; TensorFlow's reads row 0 on a TPU and fails on a CPU. Without it a CPU fails as TensorFlow does.
  int64 ids stay int64 on a CPU; TensorFlow's wrap to int32.
The rest is as TensorFlow has it: on_too_many_ids "truncate" by column index (an id in column K or later is cut, also
where columns before it are empty), mean_divisor "at_least_one", and weights of 0 or less count.

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
      drops_negative: gives an id below 0 the mask 0.

    Returns:
      values: [B, K] int64, rows of the table; 0 where there is none.
      mask: [B, K] float32, the weight of each; 0 where there is none.
    """
    shape = ids.dense_shape
    factors = tf.ones_like(ids.values, tf.float32) if weights is None else tf.cast(weights.values, tf.float32)
    if drops_negative:
        factors = tf.where(ids.values < 0, 0.0, factors)
    # The mask goes first: it asks for the ids as they were.
    mask = _dense(tf.SparseTensor(ids.indices, factors, shape), width)
    values = tf.maximum(ids.values, 0) if drops_negative else ids.values
    return _dense(tf.SparseTensor(ids.indices, values, shape), width), mask


def combined(table: Any, values: Any, mask: Any, combiner: str) -> Any:
    """Gathers and combines padded rows.

    Args:
      table: [V, D] float32 variable or tensor.
      values, mask: [B, K], as padded returns them.
      combiner: "sum": sum(m v). "mean": sum(m v) / max(sum(m), 1).

    Returns:
      [B, D] float32; zeros for an empty row, unless row 0 of the table holds an Inf or NaN, which padding reads.

    Raises:
      ValueError: another combiner.
    """
    if combiner not in ("sum", "mean"):
        raise ValueError("Dense TPU Embedding does not support combiner other than sum and mean.")
    vectors = tf.nn.embedding_lookup(table, values)
    factors = tf.expand_dims(mask, -1)
    total = tf.reduce_sum(vectors * factors, axis=1)
    return total if combiner == "sum" else total / tf.maximum(tf.reduce_sum(factors, axis=1), 1.0)


def for_tpu(values: Any) -> Any:
    """Returns ids as int32, what a TPU gathers by; one beyond int32 stays beyond the table and does not wrap."""
    return tf.cast(tf.clip_by_value(values, tf.int32.min, tf.int32.max), tf.int32)


def _dense(sparse: Any, width: int) -> Any:
    rows = sparse.dense_shape[0]
    cut = tf.sparse.slice(sparse, [0, 0], [rows, width])
    return tf.scatter_nd(cut.indices, cut.values, [rows, width])
