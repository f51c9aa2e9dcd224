"""Wraps the private functions and classes of TensorFlow's feature columns.

Only this module of the columns imports private modules (`tensorflow.python...`), so that one file adapts to a changed
TensorFlow.
"""

from __future__ import annotations

from typing import Any

from model_export.tensorflow_setup import tf

# Importing model_export.tensorflow_setup makes TensorFlow use Keras 2, so it must come before imports of TensorFlow's
# own modules.
# isort: split
from tensorflow.python.feature_column import feature_column_v2 as _columns
from tensorflow.python.feature_column import serialization as _serialization
from tensorflow.python.ops import init_ops as _init_ops
from tensorflow.python.tpu import feature_column_v2 as _tpu_columns
from tensorflow.python.tpu import tpu as _tpu
from tensorflow.python.tpu import tpu_function as _tpu_function

CategoricalColumn = _columns.CategoricalColumn
IdentityColumn = _columns.IdentityCategoricalColumn
VocabularyFileColumn = _columns.VocabularyFileCategoricalColumn
VocabularyListColumn = _columns.VocabularyListCategoricalColumn
WeightedColumn = _columns.WeightedCategoricalColumn
SequenceColumn = _columns.SequenceCategoricalColumn
RefusedColumns = (_columns.HashedCategoricalColumn, _columns.BucketizedColumn, _columns.CrossedColumn)

EmbeddingColumn = _columns.EmbeddingColumn
SharedEmbeddingColumn = _columns.SharedEmbeddingColumn
SharedTable = _columns.SharedEmbeddingColumnCreator

TpuEmbeddingColumn = _tpu_columns._TPUEmbeddingColumnV2
TpuDeviceColumn = _tpu_columns._TPUDeviceSpecificEmbeddingColumnV2
TpuSharedColumn = _tpu_columns._TPUSharedEmbeddingColumnV2
TpuSharedDeviceColumn = _tpu_columns._TPUSharedDeviceSpecificEmbeddingColumnV2

EmbeddingDevice = _tpu_columns.EmbeddingDevice
register = _serialization.register_feature_column


def is_on_tpu() -> bool:
    return _tpu_function.get_tpu_context().number_of_shards is not None or is_tpu_inference()


def is_tpu_inference() -> bool:
    return bool(_tpu.under_tpu_inference_context())


def on_host(computation: Any) -> Any:
    """Places a computation of a TPU graph on the TPU's host; outside of a TPU graph, just calls the function."""
    return tf.compat.v1.tpu.outside_compilation(computation)


def column_config(column: Any) -> dict[str, Any]:
    config: dict[str, Any] = _serialization.serialize_feature_column(column)
    return config


def column_from_config(config: Any, custom_objects: Any, columns_by_name: Any) -> Any:
    return _serialization.deserialize_feature_column(config, custom_objects, columns_by_name)


def initializer_config(initializer: Any) -> Any:
    return _serialization._serialize_keras_object(initializer) if hasattr(initializer, "get_config") else initializer


def initializer_from_config(config: Any, custom_objects: Any) -> Any:
    if callable(config):
        return config
    known = {name: value for name, value in vars(_init_ops).items() if isinstance(value, type)}
    return _serialization._deserialize_keras_object(config, module_objects=known, custom_objects=custom_objects)
