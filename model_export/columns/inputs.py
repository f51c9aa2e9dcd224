"""What columns are fed: from a signature's explicit tensors, or parsed from tf.Example."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from model_export.columns.names import checked_columns, feature_names
from model_export.tensorflow_setup import tf


def column_features(feature_columns: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what DenseFeatures and SequenceFeatures take, made of a signature's inputs.

    Args:
      inputs: `<feature>__values` [N] and `<feature>__row_splits` [B+1] of each feature, and `<feature>__weights` [N]
        float of a weighted one, for which 1 stands where they are left out.

    Returns:
      column key -> SparseTensor [B, longest row].
    """
    features = {}
    for name, column in feature_names(feature_columns).items():
        row_splits = tf.cast(inputs[f"{name}__row_splits"], tf.int64)
        values = inputs[f"{name}__values"]
        features[column.get_feature_key_name()] = _sparse(values, row_splits)
        if column.is_categorical_column_weighted():
            weights = inputs.get(f"{name}__weights")
            if weights is None:
                weights = tf.ones(tf.shape(values))
            dtype = column.categorical_column.dtype
            features[column.get_weight_key_name()] = _sparse(tf.cast(weights, dtype), row_splits)
    return features


def serving_parse_spec(feature_columns: Any) -> dict[str, Any]:
    """Returns the fields of a tf.Example that the columns read, for tf.io.parse_example."""
    columns = checked_columns(feature_columns)
    spec: dict[str, Any] = tf.feature_column.make_parse_example_spec(columns)
    return spec


def _sparse(values: Any, row_splits: Any) -> Any:
    return tf.RaggedTensor.from_row_splits(values, row_splits).to_sparse()
