"""Builds the lookup of device cpu: rows of any number of ids, combined by TensorFlow's serving_embedding_lookup."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from model_export.graphs.id_policies import bad_id_checks, gathered, placed, too_many_checks
from model_export.graphs.reduced_graph import GraphTable
from model_export.spec.features import TableSpec
from model_export.tensorflow_setup import tf
from service.artifact.manifest import LookupFeature, SignatureEntry

embedding = tf.tpu.experimental.embedding


def ragged_lookup(
    entry: SignatureEntry,
    shapes: Mapping[str, TableSpec],
    tables: Mapping[str, Any],
    rows: Mapping[str, Any],
    weights: Mapping[str, Any],
) -> dict[str, Any]:
    """Builds the graph of a ragged lookup; returns float32 by feature: [B, D], or [B, L, D] of a sequence.

    Each feature may have its own number of rows.

    Args:
      shapes, tables: feature -> its TableSpec, and its variable, parts or GraphTable.
      rows: feature -> ids, [B] or ragged [B, (K)].
      weights: feature -> [N] float32, for weighted features only.
    """
    return {
        name: _vectors(lookup, shapes[name], tables[name], rows[name], weights.get(name))
        for name, lookup in entry.features.items()
    }


def _vectors(lookup: LookupFeature, shape: TableSpec, table: Any, ids: Any, weights: Any) -> Any:
    if lookup.row_splits is None:
        return _one_per_row(lookup, shape, table, ids)
    if lookup.max_sequence_length is not None:
        return _sequence(lookup, shape, table, ids)
    return _combined(lookup, shape, table, ids, weights)


def _one_per_row(lookup: LookupFeature, shape: TableSpec, table: Any, ids: Any) -> Any:
    with tf.control_dependencies(bad_id_checks(lookup, ids, shape.vocabulary_size)):
        inside, is_kept = placed(lookup, ids, shape.vocabulary_size)
        vectors = gathered(table, inside)
    return vectors if is_kept is None else tf.where(is_kept[:, None], vectors, 0.0)


def _sequence(lookup: LookupFeature, shape: TableSpec, table: Any, ids: Any) -> Any:
    length = lookup.max_sequence_length
    # Only ids that remain after the cut are checked: a bad id that is cut off is no error.
    ids = ids[:, :length]
    with tf.control_dependencies(bad_id_checks(lookup, ids.flat_values, shape.vocabulary_size)):
        inside, is_kept = placed(lookup, ids.flat_values, shape.vocabulary_size)
        vectors = gathered(table, inside)
    if is_kept is not None:
        vectors = tf.where(is_kept[:, None], vectors, 0.0)
    padded = ids.with_flat_values(vectors).to_tensor(0.0, shape=[None, length, shape.embedding_dim])
    return tf.ensure_shape(padded, [None, length, shape.embedding_dim])


def _combined(lookup: LookupFeature, shape: TableSpec, table: Any, ids: Any, weights: Any) -> Any:
    checks = too_many_checks(lookup, ids)
    weighted = None if weights is None else ids.with_values(weights)
    if lookup.max_ids_per_row is not None and lookup.on_too_many_ids == "truncate":
        ids = ids[:, : lookup.max_ids_per_row]
        weighted = None if weighted is None else weighted[:, : lookup.max_ids_per_row]
    checks += bad_id_checks(lookup, ids.flat_values, shape.vocabulary_size)
    with tf.control_dependencies(checks):
        inside, is_kept = placed(lookup, ids.flat_values, shape.vocabulary_size)
        inside = ids.with_flat_values(tf.identity(inside))
    if lookup.on_nonpositive_weight == "drop" and weighted is not None:
        is_positive = weighted.flat_values > 0
        is_kept = is_positive if is_kept is None else tf.logical_and(is_kept, is_positive)
    if is_kept is not None:
        mask = ids.with_flat_values(is_kept)
        inside = tf.ragged.boolean_mask(inside, mask)
        weighted = None if weighted is None else tf.ragged.boolean_mask(weighted, mask)
    if lookup.mean_divisor == "at_least_one" and lookup.combiner == "mean":
        total = _tensorflows(shape, "sum", table, inside, weighted)
        counted = tf.cast(inside.row_lengths(), tf.float32) if weighted is None else tf.reduce_sum(weighted, axis=1)
        return total / tf.maximum(counted, 1.0)[:, None]
    if lookup.summation != "in_order":
        return _in_order_of(lookup, gathered(table, inside.flat_values), inside, weighted)
    return _tensorflows(shape, lookup.combiner, table, inside, weighted)


def _in_order_of(lookup: LookupFeature, vectors: Any, ids: Any, weights: Any) -> Any:
    """Combines the vectors of ragged ids in the order of additions that an adopted graph has (lookup.summation)."""
    rows, count = ids.value_rowids(), ids.nrows()
    if lookup.summation == "blocks_of_8":
        combine = {
            "sum": tf.sparse.segment_sum,
            "mean": tf.sparse.segment_mean,
            "sqrtn": tf.sparse.segment_sqrt_n,
        }[str(lookup.combiner)]
        return combine(vectors, tf.range(tf.size(rows)), rows, num_segments=count)
    if lookup.summation == "segment_mean":
        return _of_all_rows(tf.math.segment_mean(vectors, rows), count)
    factors = tf.ones(tf.shape(rows)) if weights is None else weights.flat_values
    total = _segment_sums(vectors * factors[:, None], rows, count)
    if lookup.combiner == "sum":
        return total
    if lookup.combiner == "mean":
        return tf.math.divide_no_nan(total, _segment_sums(factors, rows, count)[:, None])
    return tf.math.divide_no_nan(total, tf.sqrt(_segment_sums(factors * factors, rows, count))[:, None])


def _segment_sums(values: Any, rows: Any, count: Any) -> Any:
    return _of_all_rows(tf.math.segment_sum(values, rows), count)


def _of_all_rows(sums: Any, count: Any) -> Any:
    # segment_sum and segment_mean end at the last row that has an id.
    missing = tf.cast(count, tf.int32) - tf.shape(sums)[0]
    return tf.concat([sums, tf.zeros(tf.concat([[missing], tf.shape(sums)[1:]], 0))], 0)


def _tensorflows(shape: TableSpec, combiner: Any, table: Any, ids: Any, weights: Any) -> Any:
    if isinstance(table, list | tuple | GraphTable):
        # serving_embedding_lookup accepts whole float32 tables only: of a list of n parts, it would look for row i in
        # part i mod n. So the vectors are gathered first, and looked up as a table of their own.
        vectors = gathered(table, ids.flat_values)
        ids, table = ids.with_flat_values(tf.range(tf.shape(ids.flat_values, tf.int64)[0])), vectors
    rows = embedding.TableConfig(shape.vocabulary_size, shape.embedding_dim, combiner=combiner, name=shape.name)
    config = embedding.FeatureConfig(rows)
    vectors = embedding.serving_embedding_lookup([ids], [weights], {rows: table}, [config])[0]
    return tf.ensure_shape(vectors, [None, shape.embedding_dim])
