"""Cuts and pads sequences to max_sequence_length; TensorFlow itself does so only on the embedding cores of a TPU."""

from __future__ import annotations

from typing import Any

from model_export.tensorflow_setup import tf


def cut(sequences: Any, length: int) -> Any:
    """Cuts sequences of ids, or of their weights, to L steps.

    Args:
      sequences: SparseTensor [B, T, M]: M ids at each of T steps.
      length: L.

    Returns:
      SparseTensor [B, L, M], even if T is less than L: a lookup of it gives [B, L, D], with zeros for a step without
      ids.
    """
    rows, _, width = tf.unstack(sequences.dense_shape, num=3)
    kept = tf.sparse.slice(sequences, [0, 0, 0], tf.stack([rows, tf.constant(length, tf.int64), width]))
    return tf.SparseTensor(kept.indices, kept.values, tf.stack([rows, tf.constant(length, tf.int64), width]))


def cut_lengths(lengths: Any, length: int) -> Any:
    """Limits [B] lengths of sequences to L; returns int64."""
    return tf.minimum(lengths, tf.cast(length, lengths.dtype))
