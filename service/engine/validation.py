"""Names dtypes as TensorFlow's error texts do."""

from __future__ import annotations

_GRAPH_DTYPE_NAMES = {"float16": "half", "float32": "float", "float64": "double"}


def graph_dtype_name(dtype: str) -> str:
    """Returns the name that TensorFlow's error texts use for a dtype.

    >>> graph_dtype_name("float32"), graph_dtype_name("int64")
    ('float', 'int64')
    """
    return _GRAPH_DTYPE_NAMES.get(dtype, dtype)
