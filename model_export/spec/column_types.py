"""Recognizes embedding columns by the names of their classes, without importing TensorFlow."""

from __future__ import annotations

from typing import Any

_TENSORFLOW = "tensorflow.python."
_V1, _V2 = "feature_column.feature_column", "feature_column.feature_column_v2"
_TPU_V1, _TPU_V2 = "tpu.feature_column", "tpu.feature_column_v2"

_CLASSES = (
    (_V1, "_NumericColumn"),
    (_V2, "NumericColumn"),
    (_TPU_V1, "_TPUEmbeddingColumn"),
    (_TPU_V1, "_TPUSharedEmbeddingColumn"),
    (_TPU_V2, "_TPUEmbeddingColumnV2"),
    (_TPU_V2, "_TPUSharedEmbeddingColumnV2"),
    (_V1, "_EmbeddingColumn"),
    (_V2, "EmbeddingColumn"),
    (_V1, "_SharedEmbeddingColumn"),
)
SUPPORTED_COLUMNS = tuple(_TENSORFLOW + ".".join(names) for names in _CLASSES)
"""Column classes that an EmbeddingConfigSpec accepts; this package's columns are subclasses of them."""


def is_supported_column(column: Any) -> bool:
    """Says whether EmbeddingConfigSpec accepts a column: only embedding columns and numeric columns."""
    return any(f"{base.__module__}.{base.__name__}" in SUPPORTED_COLUMNS for base in type(column).__mro__)


def uses_tensor_core(column: Any) -> bool:
    """Says whether a column was built with embedding_lookup_device="tpu_tensor_core"."""
    device = getattr(column, "embedding_lookup_device", None) or getattr(column, "_embedding_lookup_device", None)
    # TensorFlow stores a column's lookup device as an enum; its members have the names of the devices in upper case.
    return str(getattr(device, "name", device)).lower() == "tpu_tensor_core"
