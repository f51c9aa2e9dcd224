"""The two lookup signatures: TensorFlow's serving lookup (cpu) and the padded tensor-core lookup.

Both take the ids of every feature and give one [B, D] output per feature, named by it. Weights may be left out: their
default is an empty vector, which means 1 for every id.

Source (TensorFlow 2.21): tpu.experimental.embedding.serving_embedding_lookup for cpu; for tpu_tensor_core the
arithmetic of pad_sparse_embedding_lookup_indices and sparse_embedding_aggregate_slice in
python/tpu/feature_column_v2.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from model_export.errors import ExportError
from model_export.spec.features import FeatureSpec, ModelSpec
from model_export.tensorflow_setup import tf


def input_specs(spec: ModelSpec, id_dtype: Any) -> dict[str, Any]:
    """Returns the TensorSpec of every input of a lookup, by name."""
    specs = {}
    for feature in spec.features:
        specs[feature.ids_input] = tf.TensorSpec([None], id_dtype, feature.ids_input)
        if feature.row_splits_input and feature.weights_input:
            specs[feature.row_splits_input] = tf.TensorSpec([None], tf.int64, feature.row_splits_input)
            specs[feature.weights_input] = tf.TensorSpec([None], tf.float32, feature.weights_input)
    return specs


def feature_ids(feature: FeatureSpec, inputs: Mapping[str, Any]) -> Any:
    """Returns the ids of a feature: [B], or ragged [B, (K)] with its row_splits checked."""
    ids = inputs[feature.ids_input]
    if feature.row_splits_input is None:
        return ids
    return tf.RaggedTensor.from_row_splits(ids, inputs[feature.row_splits_input], validate=True)


def cpu_lookup(spec: ModelSpec, tables: Mapping[Any, Any], config: Mapping[str, Any]) -> Any:
    """Returns the tf.function of the `lookup` signature.

    Each feature may have its own number of rows. An id outside [0, V) is an error.
    """

    def lookup(inputs: Mapping[str, Any]) -> Any:
        ids = {f.name: feature_ids(f, inputs) for f in spec.features}
        weights = {f.name: ids[f.name].with_values(_weights(f, inputs)) if f.is_ragged else None for f in spec.features}
        return tf.tpu.experimental.embedding.serving_embedding_lookup(ids, weights, tables, config)

    return _with_default_weights(lookup, spec, tf.int64)


def tensor_core_lookup(spec: ModelSpec, tables: Mapping[str, Any], batch_sizes: Sequence[int]) -> Any:
    """Returns the tf.function of the `lookup_tpu_tensor_core` signature.

    Rows are padded on the host to [b, K] ids and mask (id 0, mask 0), b being the smallest of batch_sizes that holds
    them; one compiled function of static shape per size gathers and combines; the padding is cut off again. All
    features must have the same number of rows. Errors in the graph: an id outside [0, V) (XLA itself would clamp it), a
    row of more than K ids (it would be cut), more rows than the last size.

    Raises:
      ExportError: a ragged feature's combiner is sqrtn, which the tensor core does not know, or the sizes are not an
        ascending list.
    """
    sizes = tuple(batch_sizes)
    if not sizes or sizes[0] < 1 or list(sizes) != sorted(set(sizes)):
        raise ExportError(f"batch sizes {list(sizes)} are not an ascending list of positive integers")
    for feature in spec.features:
        if feature.is_ragged and spec.table(feature.table).combiner == "sqrtn":
            raise ExportError(
                f"feature {feature.name!r}: the tpu_tensor_core lookup combines by sum or mean, table "
                f"{feature.table!r} by sqrtn"
            )

    def combine(ids: Mapping[str, Any], mask: Mapping[str, Any]) -> dict[str, Any]:
        return {f.name: _aggregate(spec, f, tables[f.table], ids[f.name], mask) for f in spec.features}

    compiled = tf.function(combine, autograph=False, jit_compile=True)

    def lookup(inputs: Mapping[str, Any]) -> dict[str, Any]:
        ids = {f.name: feature_ids(f, inputs) for f in spec.features}
        rows = tf.shape(ids[spec.features[0].name], out_type=tf.int64)[0]
        most = tf.constant(sizes[-1], tf.int64)
        checks = [
            tf.debugging.assert_less_equal(rows, most, f"more than the {sizes[-1]} rows of the largest batch size")
        ]
        for feature in spec.features:
            checks += _checks(feature, ids[feature.name], rows, spec.table(feature.table).vocabulary_size)
        with tf.control_dependencies(checks):
            # The choice of a size hangs on rows, so no padding is tried before the checks have passed.
            rows = tf.identity(rows)
            mask = {f.name: ids[f.name].with_values(_weights(f, inputs)) for f in spec.features if f.is_ragged}

        def run(size: int) -> dict[str, Any]:
            padded_ids = {f.name: _pad(f, ids[f.name], size) for f in spec.features}
            padded_mask = {f.name: _pad(f, mask[f.name], size) for f in spec.features if f.is_ragged}
            return {name: vectors[:rows] for name, vectors in compiled(padded_ids, padded_mask).items()}

        size_index = tf.searchsorted(tf.constant(sizes, tf.int64), rows[None])[0]
        return dict(tf.switch_case(size_index, [lambda size=size: run(size) for size in sizes]))

    return _with_default_weights(lookup, spec, tf.int32)


def _with_default_weights(function: Any, spec: ModelSpec, id_dtype: Any) -> Any:
    # tf.saved_model.save turns the tensors among a tf.function's Python defaults into SignatureDef.defaults, so that
    # TensorFlow Serving and ours accept requests without them; None is no default.
    specs = input_specs(spec, id_dtype)
    weights = {feature.weights_input for feature in spec.features}
    defaults = {name: tf.zeros([0]) if name in weights else None for name in specs}

    def lookup(inputs: Mapping[str, Any] = defaults) -> Any:
        return function(inputs)

    return tf.function(lookup, input_signature=[specs], autograph=False)


def _weights(feature: FeatureSpec, inputs: Mapping[str, Any]) -> Any:
    # [N] float32; the empty default becomes ones. Any other length than N is an error.
    assert feature.weights_input is not None  # callers ask for ragged features only
    values, weights = inputs[feature.ids_input], inputs[feature.weights_input]
    ones = tf.ones(tf.shape(values), tf.float32)
    weights = tf.cond(tf.equal(tf.size(weights), 0), lambda: ones, lambda: weights)
    same = tf.debugging.assert_equal(tf.size(weights), tf.size(values), f"{feature.weights_input}: one weight per id")
    with tf.control_dependencies([same]):
        return tf.identity(weights)


def _checks(feature: FeatureSpec, ids: Any, rows: Any, vocabulary_size: int) -> list[Any]:
    own_rows = tf.shape(ids, out_type=tf.int64)[0] if not feature.is_ragged else ids.nrows()
    values = ids.flat_values if feature.is_ragged else ids
    checks = [
        tf.debugging.assert_equal(own_rows, rows, f"{feature.name}: all features must have the same number of rows"),
        tf.debugging.assert_non_negative(values, f"{feature.ids_input}: an id is negative"),
        tf.debugging.assert_less(values, vocabulary_size, f"{feature.ids_input}: an id is beyond the table"),
    ]
    if feature.is_ragged:
        width = tf.constant(feature.max_ids_per_row, tf.int64)
        message = f"{feature.name}: a row has more than {feature.max_ids_per_row} ids"
        checks.append(tf.debugging.assert_less_equal(ids.row_lengths(), width, message))
    return checks


def _pad(feature: FeatureSpec, rows: Any, size: int) -> Any:
    if feature.is_ragged:
        return tf.ensure_shape(rows.to_tensor(shape=[size, feature.max_ids_per_row]), [size, feature.max_ids_per_row])
    return tf.ensure_shape(tf.pad(rows, [[0, size - tf.shape(rows)[0]]]), [size])


def _aggregate(spec: ModelSpec, feature: FeatureSpec, table: Any, ids: Any, mask: Mapping[str, Any]) -> Any:
    if not feature.is_ragged:
        return tf.gather(table, ids)
    weights = mask[feature.name]
    total = tf.reduce_sum(tf.gather(table, ids) * weights[:, :, None], axis=1)
    if spec.table(feature.table).combiner == "sum":
        return total
    return total / tf.maximum(tf.reduce_sum(weights, axis=1, keepdims=True), 1.0)
