"""embedding_column and shared_embedding_columns, as in tf.compat.v1.tpu.experimental, but for any machine."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from model_export.columns import checks
from model_export.columns.shared_column import SharedTable, TPUSharedEmbeddingColumn
from model_export.columns.single_column import TPUEmbeddingColumn
from model_export.tensorflow_setup import tf


def embedding_column(
    categorical_column: Any,
    dimension: int,
    combiner: str = "mean",
    initializer: Callable[..., Any] | None = None,
    max_sequence_length: int = 0,
    learning_rate_fn: Callable[..., Any] | None = None,
    embedding_lookup_device: str | None = None,
    tensor_core_shape: Sequence[int | None] | None = None,
    use_safe_embedding_lookup: bool = True,
) -> TPUEmbeddingColumn:
    """Makes a dense column, [B, D] or for sequences [B, L, D], of a categorical column, with a table of its own.

    Works wherever TensorFlow's own column works: DenseFeatures (both), SequenceFeatures, input_layer; the table is the
    variable `<layer>/<column>_embedding/embedding_weights`, [V, D] float32.

    Args:
      categorical_column: made by categorical_column_with_identity, weighted_categorical_column,
        categorical_column_with_vocabulary_file or _list, or sequence_categorical_column_with_identity,
        _vocabulary_file or _list.
      dimension: D.
      combiner: "mean", "sqrtn" or "sum" of a row's vectors; None is "mean".
      initializer: makes the table; None: truncated normal, mean 0, standard deviation 1/sqrt(dimension).
      max_sequence_length: L of a sequence column: shorter sequences end in zeros, longer ones are cut. 0 for others.
      learning_rate_fn: global step -> learning rate of the table; the same function means the same rate.
      embedding_lookup_device: "tpu_tensor_core" computes the padded lookup of tensor_core_shape on any machine; "cpu",
          "tpu_embedding_core" and None compute TensorFlow's CPU lookup, in training too. Inside a TPU context
        TensorFlow decides: None and "tpu_embedding_core" are the embedding cores (None is the host when serving), and
        "cpu" is the host when serving and an error in training.
      tensor_core_shape: [B or None or -1, K]: K ids per row are looked up, further columns are cut.
      use_safe_embedding_lookup: leaves out ids below 0 and, unless the combiner is "sum", weights of 0 or less (the
        padded lookup counts those). False: an id below 0 is an error, every weight counts. A sequence is always safe.

    Raises:
      TypeError: the argument is no categorical column, or a hashed, bucketized or crossed one, weighted or not.
      ValueError: another argument is invalid; the text is TensorFlow's if TensorFlow refuses it too.

    Source: TensorFlow 2.21, python/tpu/feature_column_v2.py.
    """
    checks.check_categorical_column(categorical_column, "embedding_column")
    dimension = checks.checked_dimension(dimension)
    checks.check_shape_size(tensor_core_shape)
    checks.check_initializer(initializer, categorical_column.name)
    checks.check_device(embedding_lookup_device, tensor_core_shape, [categorical_column])
    checks.check_max_sequence_length(max_sequence_length, categorical_column)
    checks.check_learning_rate_fn(learning_rate_fn, categorical_column.name)
    return TPUEmbeddingColumn(
        categorical_column,
        dimension=dimension,
        combiner=checks.checked_combiner(combiner, embedding_lookup_device),
        initializer=initializer or _default_initializer(dimension),
        max_sequence_length=max_sequence_length,
        learning_rate_fn=learning_rate_fn,
        use_safe_embedding_lookup=use_safe_embedding_lookup,
        embedding_lookup_device=embedding_lookup_device or None,
        tensor_core_shape=checks.checked_shape(tensor_core_shape),
    )


def shared_embedding_columns(
    categorical_columns: Iterable[Any],
    dimension: int,
    combiner: str = "mean",
    initializer: Callable[..., Any] | None = None,
    shared_embedding_collection_name: str | None = None,
    max_sequence_lengths: Sequence[int] | None = None,
    learning_rate_fn: Callable[..., Any] | None = None,
    embedding_lookup_device: str | None = None,
    tensor_core_shape: Sequence[int | None] | None = None,
    use_safe_embedding_lookup: bool = True,
) -> list[TPUSharedEmbeddingColumn]:
    """Makes one embedding column for each categorical column, in the given order; all of them read one table.

    The table is the variable of the collection's name, [V, D] float32, outside any layer's scope.

    Args:
      categorical_columns: as in embedding_column; at least one, and all with the same number of buckets.
      shared_embedding_collection_name: name of the table; None: the sorted names of the columns joined by _, and
        `_shared_embedding`.
      max_sequence_lengths: max_sequence_length of each column; None or empty: 0 for all.
      The others are those of embedding_column, the same for all columns.

    Raises:
      TypeError, ValueError: as embedding_column; also if there is no column, or lengths or numbers of buckets differ.

    Source: TensorFlow 2.21, python/tpu/feature_column_v2.py.
    """
    columns = list(categorical_columns)
    if not columns:
        raise ValueError("categorical_columns must hold at least one categorical column. Got none.")
    for column in columns:
        checks.check_categorical_column(column, " shared_embedding_columns")
    lengths = list(max_sequence_lengths or [0] * len(columns))
    if len(lengths) != len(columns):
        raise ValueError(
            "max_sequence_lengths and categorical_columns must be of the same length. "
            f"len(max_sequence_lengths)={len(lengths)} len(categorical_columns)={len(columns)}."
        )
    dimension = checks.checked_dimension(dimension)
    checks.check_shape_size(tensor_core_shape)
    checks.check_initializer(initializer, None)
    by_name = sorted(columns, key=lambda column: str(column.name))
    buckets = checks.check_same_buckets(by_name)
    name = shared_embedding_collection_name or "_".join(column.name for column in by_name) + "_shared_embedding"
    checks.check_device(embedding_lookup_device, tensor_core_shape, by_name)
    for column, length in zip(columns, lengths, strict=True):
        checks.check_max_sequence_length(length, column)
    checks.check_learning_rate_fn(learning_rate_fn, name)
    initializer = initializer or _default_initializer(dimension)
    table = SharedTable(name, buckets, dimension, initializer)
    return [
        TPUSharedEmbeddingColumn(
            column,
            shared_embedding_column_creator=table,
            combiner=checks.checked_combiner(combiner, embedding_lookup_device),
            initializer=initializer,
            shared_embedding_collection_name=name,
            max_sequence_length=length,
            learning_rate_fn=learning_rate_fn,
            use_safe_embedding_lookup=use_safe_embedding_lookup,
            embedding_lookup_device=embedding_lookup_device or None,
            tensor_core_shape=checks.checked_shape(tensor_core_shape),
        )
        for column, length in zip(columns, lengths, strict=True)
    ]


def _default_initializer(dimension: int) -> Any:
    return tf.compat.v1.truncated_normal_initializer(mean=0.0, stddev=1 / math.sqrt(dimension))
