"""Checks the arguments of both functions that make embedding columns, with TensorFlow's error texts where it has any.

Source: the messages are those of TensorFlow 2.21, python/tpu/feature_column_v2.py and feature_column.py, which old code
and its tests may match on. Arguments that TensorFlow forgets to check, or checks only when it builds the
lookup, are refused here at once.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, get_args

from model_export.columns import tensorflow_columns
from service.artifact.manifest import Combiner

DEVICES = ["cpu", "tpu_tensor_core", "tpu_embedding_core"]
TENSOR_CORE = "tpu_tensor_core"


def check_categorical_column(column: Any, function: str) -> None:
    """Refuses an argument that is no categorical column, and hashed, bucketized and crossed columns.

    Args:
      function: "embedding_column" or " shared_embedding_columns" (TensorFlow's text has that blank).

    Raises:
      TypeError: the column is not of a supported kind.
    """
    if not isinstance(column, tensorflow_columns.CategoricalColumn):
        raise TypeError(f"categorical_column for tpu {function} must be type CategoricalColumn, got {type(column)}.")
    if isinstance(innermost(column), tensorflow_columns.RefusedColumns):
        raise TypeError(f"categorical_column for tpu  embedding_column was denylisted type {type(innermost(column))}")


def innermost(column: Any) -> Any:
    """Returns the innermost categorical column, which makes the ids; weighted and sequence columns wrap it."""
    while isinstance(column, (tensorflow_columns.WeightedColumn, tensorflow_columns.SequenceColumn)):
        column = column.categorical_column
    return column


def checked_dimension(dimension: Any) -> int:
    try:
        number = operator.index(dimension)
    except TypeError:
        number = 0
    if isinstance(dimension, bool) or number < 1:
        raise ValueError(f"Invalid dimension {dimension}.")
    return number


def check_shape_size(shape: Any) -> None:
    if shape and len(shape) != 2:
        raise ValueError(f"tensor_core_shape must be size 2. Got {shape}.")


def check_initializer(initializer: Any, column: str | None) -> None:
    """Raises ValueError for an initializer that can not be called; None is allowed. The error names the column, if
    given.
    """
    if initializer is not None and not callable(initializer):
        which = "" if column is None else f"Embedding of column_name: {column}"
        raise ValueError(f"initializer must be callable if specified. {which}")


def check_device(device: Any, shape: Any, columns: Sequence[Any]) -> None:
    if device and device not in DEVICES:
        raise ValueError(f"If set, embedding_lookup_device must be in {DEVICES}")
    if device != TENSOR_CORE:
        return
    if not shape:
        raise ValueError("Using embedding_lookup_device=tpu_tensor_core requires tensor_core_shape to be set.")
    if any(isinstance(column, tensorflow_columns.SequenceColumn) for column in columns):
        raise ValueError("embedding_lookup_device=tpu_tensor_core currently does not support sequence columns.")


def check_max_sequence_length(length: Any, column: Any) -> None:
    is_sequence = isinstance(column, tensorflow_columns.SequenceColumn)
    try:
        number = operator.index(length)
    except TypeError as error:
        raise ValueError(
            f"max_sequence_length must be an integer. Got max_sequence_length={length} for column {column.name}."
        ) from error
    if is_sequence and number < 1:
        raise ValueError(
            f"max_sequence_length must be greater than 0 for sequence columns. Got max_sequence_length={length} for "
            f"sequence column {column.name}."
        )
    if not is_sequence and number != 0:
        raise ValueError(f"Non zero max_seq_length={length} specified for non sequence column {column.name}.")


def checked_combiner(combiner: Any, device: Any) -> Combiner:
    """Returns the combiner, "mean" if it is None; raises ValueError for an unknown one, or one the device lacks."""
    if combiner is None:
        return "mean"
    if combiner not in get_args(Combiner):
        raise ValueError(f"combiner must be one of 'mean', 'sqrtn' or 'sum', got {combiner}")
    if device == TENSOR_CORE and combiner == "sqrtn":
        raise ValueError("Dense TPU Embedding does not support combiner other than sum and mean.")
    name: Combiner = combiner
    return name


def check_learning_rate_fn(function: Callable[..., Any] | None, column: str) -> None:
    if function is not None and not callable(function):
        raise ValueError(f"learning_rate_fn must be callable if specified. Embedding of column_name: {column}")


def checked_shape(shape: Any) -> tuple[int | None, int] | None:
    """Returns a tensor_core_shape as (rows, ids per row), or None if not given; rows is None if their number is
    dynamic.

    Raises:
      ValueError: the rows are not None, -1 or a positive integer, or the ids per row not a positive integer.
    """
    if not shape:
        return None
    rows, width = shape
    try:
        rows = None if rows is None or operator.index(rows) == -1 else operator.index(rows)
        width = operator.index(width)
        is_good = width > 0 and (rows is None or rows > 0)
    except TypeError:
        is_good = False
    if not is_good:
        raise ValueError(f"tensor_core_shape must be [rows or None, ids per row]. Got {shape}.")
    return rows, width


def check_same_buckets(sorted_columns: Sequence[Any]) -> int:
    """Returns the num_buckets that all categorical columns have in common; raises ValueError if they differ in it."""
    first = sorted_columns[0]
    for column in sorted_columns[1:]:
        if column.num_buckets != first.num_buckets:
            raise ValueError(
                "To use shared_embedding_column, all categorical_columns must have the same number of buckets. Given "
                f"column: {first} with buckets: {first.num_buckets} does  not match column: {column} with buckets: "
                f"{column.num_buckets}"
            )
    buckets: int = first.num_buckets
    return buckets
