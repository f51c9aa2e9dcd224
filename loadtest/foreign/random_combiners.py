"""Combines the rows of a table as the graphs of others do: the combiners of random models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from loadtest.foreign.random_models import Feature, Table


@dataclass(frozen=True, slots=True)
class Keyed:
    """The rows that a graph computed for one input.

    ids: row numbers, [B], [B, K] or, with splits or indices, [N].
    """

    ids: Any
    splits: Any = None
    indices: Any = None
    dense_shape: Any = None
    weights: Any = None

    def sparse(self, values: Any) -> Any:
        import tensorflow as tf

        if self.indices is not None:
            return tf.SparseTensor(self.indices, values, self.dense_shape)
        return tf.RaggedTensor.from_row_splits(values, self.splits).to_sparse()


def read_table(feature: Feature, table: Table, params: Any) -> Any:
    """Returns the table as the graph changes it before it gathers rows; see random_models.READS."""
    import tensorflow as tf

    if feature.layer == "zero_row":
        return tf.concat([tf.zeros([1, table.dim], params.dtype), params], 0)
    if feature.layer == "cast_table":
        return tf.cast(params, tf.float32)
    if feature.layer == "normalized":
        return tf.math.l2_normalize(params, 1)
    if feature.layer == "sliced":
        return params[: max(1, table.rows - 1)]
    return tf.reverse(params, [0]) if feature.layer == "reversed" else params


def gathered(feature: Feature, table: Table, params: Any, ids: Any, max_norm: float | None = None) -> Any:
    """Returns the row of each id, as the model reads it from the table or from what read_table() made of it."""
    import tensorflow as tf

    if feature.layer == "one_hot":
        return tf.linalg.matmul(tf.one_hot(ids, table.rows, dtype=params.dtype)[..., None, :], params)[..., 0, :]
    if table.parts > 1 or max_norm:
        return tf.compat.v1.nn.embedding_lookup(params, ids, partition_strategy=table.strategy, max_norm=max_norm)
    return tf.gather(params, ids)


def _after_gather(feature: Feature, rows: Any, ids: Any) -> Any:
    import tensorflow as tf

    if feature.layer == "zeroed":
        return rows * tf.cast(tf.not_equal(ids, 0), rows.dtype)[..., None]
    return rows * tf.cast(rows.shape[-1] ** 0.5, rows.dtype) if feature.layer == "scaled" else rows


def combined(feature: Feature, table: Table, params: Any, keyed: Keyed) -> Any:
    """Returns the vectors that the model computes from an input's rows: [B, D], or [B, K, D] without a combiner."""
    import tensorflow as tf

    kind, _, name = feature.combiner.rpartition("_")
    if "lookup_sparse" in kind or "safe" in kind:
        return _by_lookup(feature, table, params, keyed, kind, name)
    if kind == "sparse_segment":
        segment = {"sum": tf.sparse.segment_sum, "mean": tf.sparse.segment_mean, "sqrtn": tf.sparse.segment_sqrt_n}
        return segment[name](params, keyed.ids, _row_numbers(keyed.splits))
    if kind == "counted_segment":
        segment = {"sum": tf.sparse.segment_sum, "mean": tf.sparse.segment_mean, "sqrtn": tf.sparse.segment_sqrt_n}
        count = tf.size(keyed.splits) - 1
        return segment[name](params, keyed.ids, _row_numbers(keyed.splits), num_segments=count)
    rows = _after_gather(feature, gathered(feature, table, params, keyed.ids, feature.max_norm), keyed.ids)
    if feature.combiner == "none":
        return rows
    if feature.combiner in ("sum", "mean"):
        return tf.reduce_sum(rows, 1) if name == "sum" else tf.reduce_mean(rows, 1)
    if feature.combiner.startswith("mean_not"):
        padding = 0 if feature.combiner == "mean_not_0" else -1
        counts = tf.cast(tf.not_equal(keyed.ids, padding), rows.dtype)[..., None]
        return tf.reduce_sum(rows * counts, 1) / tf.maximum(tf.reduce_sum(counts, 1), 1)
    if kind == "reduce":
        ragged = tf.RaggedTensor.from_row_splits(rows, keyed.splits)
        return tf.reduce_sum(ragged, axis=1) if name == "sum" else tf.reduce_mean(ragged, axis=1)
    if kind == "segment":
        segments = tf.math.segment_sum if name == "sum" else tf.math.segment_mean
        return segments(rows, _row_numbers(keyed.splits))
    assert kind == "unsorted_segment", feature.combiner
    segments = tf.math.unsorted_segment_sum if name == "sum" else tf.math.unsorted_segment_mean
    return segments(rows, _row_numbers(keyed.splits), tf.size(keyed.splits) - 1)


def ids_read(feature: Feature, ids: Any) -> Any:
    """Returns the ids at which the model reads the table: -1 of a padded row reads row 0, whose number is left out."""
    import tensorflow as tf

    return tf.maximum(ids, 0) if feature.combiner == "mean_not_minus_1" else ids


def _by_lookup(feature: Feature, table: Table, params: Any, keyed: Keyed, kind: str, name: str) -> Any:
    import tensorflow as tf

    nn = tf.compat.v1.nn
    dtype = "float32" if feature.layer == "cast_table" else table.dtype
    weights = None if keyed.weights is None else keyed.sparse(tf.cast(keyed.weights, dtype))
    options = {"combiner": name, "max_norm": feature.max_norm, "partition_strategy": table.strategy}
    if kind.startswith("safe"):
        default = 0 if kind == "safe_default" else None
        return nn.safe_embedding_lookup_sparse(params, keyed.sparse(keyed.ids), weights, default_id=default, **options)
    if kind == "fast_lookup_sparse":
        options["allow_fast_lookup"] = True
    return nn.embedding_lookup_sparse(params, keyed.sparse(keyed.ids), weights, **options)


def _row_numbers(splits: Any) -> Any:
    import tensorflow as tf

    return tf.repeat(tf.range(tf.size(splits) - 1), tf.cast(splits[1:] - splits[:-1], tf.int32))
