"""Replaces ids by looked-up vectors in the features that model_fn gets, as feature_to_config_dict says.

Source: tensorflow_estimator/python/estimator/tpu/_tpu_estimator_embedding.py, split_inputs, at 2.15.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from model_export.estimator.embedding_tables import TableRecorder
from model_export.spec.embedding_config_spec import EmbeddingConfigSpec
from model_export.spec.table_config import FeatureConfig, TableConfig
from model_export.tensorflow_setup import tf

SEQUENCE_LENGTH_SUFFIX = "_seq_length_"


def with_activations(spec: EmbeddingConfigSpec, features: Any, recorder: TableRecorder) -> dict[str, Any]:
    """Returns the features, with vectors in place of the ids of each configured feature; creates the tables.

    A feature of a table with a combiner becomes [B, D]. A sequence becomes [B, L, D], cut at L and padded with zeros;
    its lengths are the feature <name>_seq_length_: [B] int64. Without a combiner, [B] ids become [B, D].

    Args:
      features: dict of [B, K] sparse or ragged ids, or of dense ids, in which 0 is padding if the table has a combiner.

    Raises:
      ValueError: a feature or its weights are missing, or ids are not integers.
    """
    if not isinstance(features, Mapping):
        raise ValueError(f"features is {type(features)}; feature_to_config_dict needs a dict with an entry per feature")
    assert spec.feature_to_config_dict and spec.table_to_config_dict  # callers check this
    tables = {}
    for name, config in spec.table_to_config_dict.items():
        tables[name] = recorder.create(name, partial(create_table, name, config))
    given = {name: tensor for name, tensor in features.items() if name not in spec.feature_to_config_dict}
    vectors: dict[str, Any] = {}
    for name, feature in spec.feature_to_config_dict.items():
        if name not in features:
            raise ValueError(f"features has no {name!r}, which feature_to_config_dict names")
        table = spec.table_to_config_dict[feature.table_id]
        ids, weights = feature_ids(name, feature, table, features)
        if feature.weight_key is not None:
            given.pop(feature.weight_key, None)
        variable, length = tables[feature.table_id], feature.max_sequence_length
        if length:
            vectors[name], vectors[name + SEQUENCE_LENGTH_SUFFIX] = _sequence(variable, ids, length)
        elif isinstance(ids, tf.SparseTensor):
            vectors[name] = tf.nn.safe_embedding_lookup_sparse(variable, ids, weights, combiner=table.combiner)
        else:
            vectors[name] = tf.nn.embedding_lookup(variable, ids)
    return {**given, **vectors}


def feature_ids(name: str, config: FeatureConfig, table: TableConfig, features: Mapping[str, Any]) -> tuple[Any, Any]:
    """Returns a feature's ids, sparse or (only for a table without combiner) dense, and its weights or None.

    Raises:
      ValueError: the ids or weights are invalid, as in with_activations.
    """
    ids = _sparse(features[name])
    if not ids.dtype.is_integer:
        raise ValueError(
            f"feature {name!r} has {ids.dtype.name} values; map strings to ids in input_fn, as "
            "feature_to_config_dict has no vocabularies"
        )
    weights = None
    if config.weight_key is not None:
        if config.weight_key not in features:
            raise ValueError(f"features has no {config.weight_key!r}, the weights of feature {name!r}")
        weights = _sparse(features[config.weight_key])
        if not isinstance(weights, tf.SparseTensor) or not isinstance(ids, tf.SparseTensor):
            raise ValueError(f"feature {name!r} has weights: both must be sparse or ragged")
        weights = tf.SparseTensor(weights.indices, tf.cast(weights.values, tf.float32), weights.dense_shape)
    if isinstance(ids, tf.SparseTensor):
        if table.combiner is None and not config.max_sequence_length:
            raise ValueError(f"feature {name!r} is sparse, but its table {config.table_id!r} has no combiner")
        return ids, weights
    if table.combiner is None and not config.max_sequence_length:
        return ids, None
    # If ids are combined or form a sequence, a 0 in a dense matrix is padding, as in TPUEstimator: a dense matrix has
    # no other way to hold rows of fewer ids.
    return tf.sparse.from_dense(ids), None


def _sparse(tensor: Any) -> Any:
    return tensor.to_sparse() if isinstance(tensor, tf.RaggedTensor) else tensor


def _sequence(table: Any, ids: Any, length: int) -> tuple[Any, Any]:
    rows = tf.RaggedTensor.from_sparse(ids)[:, :length]
    vectors = rows.with_values(tf.nn.embedding_lookup(table, rows.values))
    return vectors.to_tensor(shape=[None, length, table.shape[1]]), rows.row_lengths()


def create_table(name: str, config: TableConfig) -> Any:
    """Adds a table's variable to the current graph; its name is the table's, without the scope of the caller.

    Args:
      name: key in table_to_config_dict, which is also the table's key in a TPU's checkpoint.

    Returns:
      A resource variable, [vocabulary_size, dimension] float32.

    Raises:
      ValueError: the graph already has a variable of that name.
    """
    v1 = tf.compat.v1
    initializer = config.initializer
    if initializer is None:
        initializer = v1.truncated_normal_initializer(mean=0.0, stddev=config.initial_stddev)
    with v1.variable_scope(v1.VariableScope(reuse=False, name=""), auxiliary_name_scope=False), v1.name_scope(None):
        return v1.get_variable(
            name, shape=[config.vocabulary_size, config.dimension], initializer=initializer, use_resource=True
        )
