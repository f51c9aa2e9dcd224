"""Builds the lookup of device tpu_tensor_core: pads rows of ids to fixed sizes, combines them in compiled functions.

Source: the arithmetic of pad_sparse_embedding_lookup_indices and sparse_embedding_aggregate_slice in
python/tpu/feature_column_v2.py (TensorFlow 2.21).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from model_export.graphs.id_policies import bad_id_checks, gathered, placed, too_many_checks
from model_export.spec.features import TableSpec
from model_export.tensorflow_setup import tf
from service.artifact.manifest import LookupFeature, SignatureEntry

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
        used = ids[name]
        if lookup.row_splits is not None:
            checks += too_many_checks(lookup, used)
            # Only ids that remain after the cut are checked: a bad id that is cut off is no error.
            used = used[:, : _width(lookup)].flat_values
        checks += bad_id_checks(lookup, used, shapes[name].vocabulary_size)
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
