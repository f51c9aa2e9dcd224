"""The graphs that gather and combine rows: for ragged ids on a CPU, and for ids padded to fixed sizes on a tensor core.

Source: the arithmetic of pad_sparse_embedding_lookup_indices and sparse_embedding_aggregate_slice in
python/tpu/feature_column_v2.py (TensorFlow 2.21).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from model_export.graphs.reduced_graph import GraphTable
from model_export.spec.features import TableSpec
from model_export.tensorflow_setup import tf
from service.artifact.manifest import LookupFeature, SignatureEntry


def placed(lookup: LookupFeature, ids: Any, vocabulary_size: int) -> tuple[Any, Any | None]:
    """Applies the policy on_bad_id; returns ids in [0, V), except refused ones, and a mask of the ids to keep (None:
    all).

    Ids that the policy refuses stay unchanged; bad_id_checks() finds them.

    Args:
      ids: [N] int64 or int32.
    """
    if lookup.on_bad_id == "error":
        return ids, None
    last = tf.constant(vocabulary_size - 1, ids.dtype)
    if lookup.on_bad_id == "clamp":
        return tf.clip_by_value(ids, tf.zeros([], ids.dtype), last), None
    if lookup.on_bad_id == "wrap":
        return tf.where(ids < 0, ids + last + 1, ids), None
    is_inside = ids >= 0
    if lookup.on_bad_id != "drop_negative":
        is_inside = tf.logical_and(is_inside, ids <= last)
    if lookup.on_bad_id == "default_row":
        return tf.where(is_inside, ids, tf.constant(lookup.default_row, ids.dtype)), None
    return tf.where(is_inside, ids, tf.zeros([], ids.dtype)), is_inside


def bad_id_checks(lookup: LookupFeature, ids: Any, weights: Any, vocabulary_size: int) -> list[Any]:
    """Returns assertions that fail for a refused id. Without them, a gather that XLA compiled would clamp bad ids.

    An id that its weight drops is not checked, as in TensorFlow's safe lookup.
    """
    checks = []
    if lookup.on_nonpositive_weight == "drop" and weights is not None:
        ids = tf.boolean_mask(ids, weights > 0)
    if lookup.on_bad_id == "error":
        checks.append(tf.debugging.assert_non_negative(ids, f"{lookup.ids}: an id is negative"))
    if lookup.on_bad_id == "wrap":
        first = tf.constant(-vocabulary_size, ids.dtype)
        checks.append(tf.debugging.assert_greater_equal(ids, first, f"{lookup.ids}: an id is before the table"))
    if lookup.on_bad_id in ("error", "drop_negative", "wrap"):
        last = tf.constant(vocabulary_size, ids.dtype)
        checks.append(tf.debugging.assert_less(ids, last, f"{lookup.ids}: an id is beyond the table"))
    return checks


def too_many_checks(lookup: LookupFeature, ids: Any) -> list[Any]:
    """Returns a list with an assertion that no row has more than K ids; [] if the policy cuts longer rows."""
    if lookup.max_ids_per_row is None or lookup.on_too_many_ids != "error":
        return []
    width = tf.constant(lookup.max_ids_per_row, tf.int64)
    message = f"{lookup.ids}: a row has more than {lookup.max_ids_per_row} ids"
    return [tf.debugging.assert_less_equal(ids.row_lengths(), width, message)]


def gathered(table: Any, ids: Any) -> Any:
    """Gathers a table's vectors for ids of any shape.

    Args:
      table: a variable, a tensor, a list of its parts in order of rows, or a GraphTable (a table stored in fewer bits).
    """
    if isinstance(table, GraphTable):
        return table.gather(ids)
    if isinstance(table, list | tuple):
        return tf.compat.v1.nn.embedding_lookup(list(table), ids, partition_strategy="div")
    return tf.gather(table, ids)


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
    with tf.control_dependencies(bad_id_checks(lookup, ids, None, shape.vocabulary_size)):
        inside, is_kept = placed(lookup, ids, shape.vocabulary_size)
        vectors = gathered(table, inside)
    return vectors if is_kept is None else tf.where(is_kept[:, None], vectors, 0.0)


def _sequence(lookup: LookupFeature, shape: TableSpec, table: Any, ids: Any) -> Any:
    length = lookup.max_sequence_length
    # Only ids that remain after the cut are checked: a bad id that is cut off is no error.
    ids = ids[:, :length]
    with tf.control_dependencies(bad_id_checks(lookup, ids.flat_values, None, shape.vocabulary_size)):
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
    factors = None if weighted is None else weighted.flat_values
    checks += bad_id_checks(lookup, ids.flat_values, factors, shape.vocabulary_size)
    with tf.control_dependencies(checks):
        inside, is_kept = placed(lookup, ids.flat_values, shape.vocabulary_size)
        inside = ids.with_flat_values(tf.identity(inside))
    if lookup.on_nonpositive_weight == "drop" and factors is not None:
        is_positive = factors > 0
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


Compile = Callable[[Callable[..., dict[str, Any]]], Callable[..., Mapping[str, Any]]]


def by_xla(function: Callable[..., dict[str, Any]]) -> Callable[..., Mapping[str, Any]]:
    compiled: Callable[..., Mapping[str, Any]] = tf.function(function, autograph=False, jit_compile=True)
    return compiled


def padded_lookup(
    entry: SignatureEntry,
    shapes: Mapping[str, TableSpec],
    tables: Mapping[str, Any],
    rows: Mapping[str, Any],
    weights: Mapping[str, Any],
    *,
    compiled: Compile = by_xla,
) -> dict[str, Any]:
    """Builds the graph of a padded lookup; returns [B, D] or, of a sequence, [B, L, D] float32 by feature.

    `compiled` wraps the function of (padded ids, mask) that gathers and combines, so that XLA compiles it or a TPU runs
    it.

    Rows are padded on the host to [b, K] ids and mask (id 0, mask 0), b being the smallest of the entry's batch_sizes
    that holds them. For each size one compiled function of static shape gathers and combines; then the padding is cut
    off. The graph fails on an id that the policy refuses (XLA itself would clamp it), on a row of more than K ids
    unless the policy cuts it, on features with different numbers of rows, and on more rows than the last batch size.
    """
    sizes = entry.batch_sizes
    ids = {name: _int32(part) for name, part in rows.items()}

    def combine(padded: Mapping[str, Any], mask: Mapping[str, Any]) -> dict[str, Any]:
        return {
            name: _reduced(lookup, gathered(tables[name], padded[name]), mask.get(name))
            for name, lookup in entry.features.items()
        }

    run_compiled = compiled(combine)
    count = _num_rows(ids[next(iter(entry.features))])
    most = tf.constant(sizes[-1], tf.int64)
    checks = [tf.debugging.assert_less_equal(count, most, f"more than the {sizes[-1]} rows of the largest batch size")]
    for name, lookup in entry.features.items():
        same = f"{name}: all features must have the same number of rows"
        checks.append(tf.debugging.assert_equal(_num_rows(ids[name]), count, same))
        used, factors = ids[name], weights.get(name)
        if lookup.row_splits is not None:
            checks += too_many_checks(lookup, used)
            # Only ids that remain after the cut are checked: a bad id that is cut off is no error.
            width = _width(lookup)
            factors = None if factors is None else used.with_values(factors)[:, :width].flat_values
            used = used[:, :width].flat_values
        checks += bad_id_checks(lookup, used, factors, shapes[name].vocabulary_size)
    with tf.control_dependencies(checks):
        # The number of rows, `count`, depends on the checks, and the padding uses `count`, so the padding waits until
        # the checks have passed.
        count = tf.identity(count)
        prepared = {
            name: _prepared(lookup, ids[name], weights.get(name), shapes[name].vocabulary_size)
            for name, lookup in entry.features.items()
        }

    def run(size: int) -> dict[str, Any]:
        features = entry.features.items()
        padded = {name: _pad(lookup, prepared[name][0], size) for name, lookup in features}
        mask = {name: _pad(lookup, m, size) for name, lookup in features if (m := prepared[name][1]) is not None}
        return {name: vectors[:count] for name, vectors in run_compiled(padded, mask).items()}

    size_index = tf.searchsorted(tf.constant(sizes, tf.int64), count[None])[0]
    return dict(tf.switch_case(size_index, [lambda size=size: run(size) for size in sizes]))


def _width(lookup: LookupFeature) -> int:
    width = lookup.max_sequence_length or lookup.max_ids_per_row
    # lookup_features() sets max_sequence_length or max_ids_per_row for every ragged feature, so the width is known.
    assert width is not None
    return width


def _num_rows(ids: Any) -> Any:
    return ids.nrows() if isinstance(ids, tf.RaggedTensor) else tf.shape(ids, out_type=tf.int64)[0]


def _int32(ids: Any) -> Any:
    # A vocabulary returns int64 row numbers, but this lookup gathers by int32, which can hold each row number.
    if isinstance(ids, tf.RaggedTensor):
        return ids.with_flat_values(tf.cast(ids.flat_values, tf.int32))
    return tf.cast(ids, tf.int32)


def _prepared(lookup: LookupFeature, ids: Any, weights: Any, vocabulary_size: int) -> tuple[Any, Any | None]:
    # Returns ids inside the table and their weights, 0 for a dropped id. The weights are None if each row has one id
    # and no id is dropped.
    if lookup.row_splits is None:
        inside, is_kept = placed(lookup, ids, vocabulary_size)
        return inside, None if is_kept is None else tf.cast(is_kept, tf.float32)
    inside, is_kept = placed(lookup, ids.flat_values, vocabulary_size)
    mask = tf.ones(tf.shape(inside)) if weights is None else weights
    if lookup.on_nonpositive_weight == "drop":
        # A dropped id is not checked, so it may lie outside the table.
        inside = tf.where(mask > 0, inside, tf.zeros([], inside.dtype))
        mask = tf.where(mask > 0, mask, 0.0)
    if is_kept is not None:
        mask = tf.where(is_kept, mask, 0.0)
    return ids.with_flat_values(inside), ids.with_flat_values(mask)


def _pad(lookup: LookupFeature, rows: Any, size: int) -> Any:
    if lookup.row_splits is None:
        return tf.ensure_shape(tf.pad(rows, [[0, size - tf.shape(rows)[0]]]), [size])
    width = _width(lookup)
    return tf.ensure_shape(rows.to_tensor(shape=[size, width]), [size, width])


def _reduced(lookup: LookupFeature, vectors: Any, mask: Any) -> Any:
    if mask is None:
        return vectors
    # A plain product would turn NaN or infinity in the table's row 0, which padding reads, into NaN in every padded
    # row.
    vectors = tf.math.multiply_no_nan(vectors, mask[..., None])
    if lookup.combiner is None:
        return vectors
    total = tf.reduce_sum(vectors, axis=1)
    if lookup.combiner == "sum":
        return total
    divisor = tf.reduce_sum(mask, axis=1, keepdims=True)
    if lookup.mean_divisor == "at_least_one":
        return total / tf.maximum(divisor, 1.0)
    return tf.math.divide_no_nan(total, divisor)
