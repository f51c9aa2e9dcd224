"""Describes the lookups of an EmbeddingConfigSpec as a ModelSpec, and finds the ids in a batch that they look up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from model_export.columns import to_spec
from model_export.columns.names import feature_names, safe_name
from model_export.estimator.activations import feature_ids
from model_export.estimator.embedding_tables import embedding_columns
from model_export.spec.embedding_config_spec import EmbeddingConfigSpec
from model_export.spec.features import FeatureSpec, ModelSpec, TableSpec
from model_export.spec.table_config import FeatureConfig, TableConfig
from model_export.tensorflow_setup import tf

DEFAULT_MAX_IDS_PER_ROW = 32


def lookup_spec(spec: EmbeddingConfigSpec, *, max_ids_per_row: int = DEFAULT_MAX_IDS_PER_ROW) -> ModelSpec:
    """Returns an EmbeddingConfigSpec as a ModelSpec, whose lookups treat bad ids and weights as training does.

    Args:
      max_ids_per_row: largest number of ids in a row, for features that do not set it themselves.

    Raises:
      TypeError, ValueError: a column or name can not be described in a manifest (model_export.columns.to_spec).
    """
    if spec.feature_columns:
        return to_spec.model_spec(embedding_columns(spec), max_ids_per_row=max_ids_per_row)
    tables, features = spec.table_to_config_dict, spec.feature_to_config_dict
    assert tables and features  # EmbeddingConfigSpec checks this
    return ModelSpec(
        tuple(_table(name, table) for name, table in tables.items()),
        tuple(_feature(name, config, tables[config.table_id], max_ids_per_row) for name, config in features.items()),
    )


def looked_up_ids(spec: EmbeddingConfigSpec, features: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the row numbers that each feature looks up for one batch, by the feature names of lookup_spec().

    A value is a SparseTensor, or a dense tensor if each example has one id.

    Args:
      features: the batch: the features that input_fn returned, in the current graph.
    """
    if spec.feature_columns:
        from tensorflow.python.feature_column.feature_column_v2 import FeatureTransformationCache

        columns = feature_names(embedding_columns(spec))
        return {
            name: column.categorical_column.get_sparse_tensors(FeatureTransformationCache(features), None).id_tensor
            for name, column in columns.items()
        }
    tables, configs = spec.table_to_config_dict, spec.feature_to_config_dict
    assert tables and configs  # EmbeddingConfigSpec checks this
    return {
        safe_name(name, "feature"): feature_ids(name, config, tables[config.table_id], features)[0]
        for name, config in configs.items()
    }


def weight_keys(spec: EmbeddingConfigSpec) -> dict[str, str]:
    """Maps the names of weighted features in lookup_spec() to the keys of their weights in input_fn's features."""
    if spec.feature_columns:
        columns = feature_names(embedding_columns(spec)).items()
        keys = {name: getattr(column.categorical_column, "weight_feature_key", None) for name, column in columns}
    else:
        configs = (spec.feature_to_config_dict or {}).items()
        keys = {safe_name(name, "feature"): config.weight_key for name, config in configs}
    return {name: key for name, key in keys.items() if key}


def _table(name: str, table: TableConfig) -> TableSpec:
    stddev = getattr(table.initializer, "stddev", table.initial_stddev)
    return TableSpec(safe_name(name, "table"), table.vocabulary_size, table.dimension, table.combiner or "mean", stddev)


def _feature(name: str, config: FeatureConfig, table: TableConfig, max_ids_per_row: int) -> FeatureSpec:
    length = config.max_sequence_length
    name, table_name = safe_name(name, "feature"), safe_name(config.table_id, "table")
    if table.combiner is None and not length:
        return FeatureSpec(name, table_name)
    if length:
        return FeatureSpec(name, table_name, is_ragged=True, max_sequence_length=length)
    return FeatureSpec(
        name,
        table_name,
        is_ragged=True,
        max_ids_per_row=max_ids_per_row,
        combiner=table.combiner,
        on_bad_id="drop_negative",
        on_nonpositive_weight="keep" if table.combiner == "sum" else "drop",
    )


def ids_and_splits(ids: Any) -> tuple[Any, Any]:
    """Returns values and row_splits of the ids that a session run returned; row_splits is None for dense ids."""
    if not isinstance(ids, tf.compat.v1.SparseTensorValue):
        return ids.reshape(-1), None
    lengths = np.bincount(ids.indices[:, 0], minlength=ids.dense_shape[0])
    return ids.values, np.concatenate([[0], np.cumsum(lengths)])
