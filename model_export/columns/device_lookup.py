"""The lookups of embedding columns on each device, for single ids, sequences and the tensor core.

TensorFlow has this lookup in TPU graphs only, and for raw ids. Here it runs on a CPU too, and for the ids that the
categorical column gives: with default value, vocabulary and out-of-vocabulary buckets applied before the padding.

Differences from TensorFlow's lookup, named as the policies of service.artifact.manifest.LookupFeature:
  on_bad_id "drop_negative": with use_safe_embedding_lookup, an id below 0 (a word outside the vocabulary) is left out.
TensorFlow reads row 0 instead on a TPU and fails on a CPU. Without use_safe_embedding_lookup both fail on a CPU.
On a CPU int64 ids stay int64; TensorFlow's wrap to int32. The same as in TensorFlow: on_too_many_ids "truncate" by
column index (an id in column K or later is cut, even if earlier columns are empty), mean_divisor "at_least_one", and
weights of 0 or less count.

Source: TensorFlow 2.21, python/tpu/feature_column_v2.py, pad_sparse_embedding_lookup_indices and
sparse_embedding_aggregate_slice.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from model_export.columns import tensorflow_columns
from model_export.columns.checks import TENSOR_CORE
from model_export.tensorflow_setup import tf


def cut(sequences: Any, length: int) -> Any:
    """Cuts sequences of ids, or of their weights, to L steps.

    Args:
      sequences: SparseTensor [B, T, M]: M ids at each of T steps.
      length: L.

    Returns:
      SparseTensor [B, L, M], even if T is less than L: a lookup of it gives [B, L, D], with zeros for a step without
      ids.
    """
    rows, _, width = tf.unstack(sequences.dense_shape, num=3)
    kept = tf.sparse.slice(sequences, [0, 0, 0], tf.stack([rows, tf.constant(length, tf.int64), width]))
    return tf.SparseTensor(kept.indices, kept.values, tf.stack([rows, tf.constant(length, tf.int64), width]))


def padded(ids: Any, weights: Any, width: int, *, drops_negative: bool) -> tuple[Any, Any]:
    """Cuts and pads rows of ids to K columns.

    Args:
      ids: SparseTensor [B, any] int64.
      weights: SparseTensor of floats at the same places; None: 1 everywhere.
      width: K.
      drops_negative: whether an id below 0 gets the mask 0.

    Returns:
      values: [B, K] int64, rows of the table; 0 for padding.
      mask: [B, K] float32, the weight of each id; 0 for padding.
    """
    shape = ids.dense_shape
    factors = tf.ones_like(ids.values, tf.float32) if weights is None else tf.cast(weights.values, tf.float32)
    if drops_negative:
        factors = tf.where(ids.values < 0, 0.0, factors)
    # With drops_negative, a negative id reads row 0 without effect, because the mask gives it the weight 0.
    mask = _dense(tf.SparseTensor(ids.indices, factors, shape), width)
    values = tf.maximum(ids.values, 0) if drops_negative else ids.values
    return _dense(tf.SparseTensor(ids.indices, values, shape), width), mask


def combined(table: Any, values: Any, mask: Any, combiner: str) -> Any:
    """Gathers the vectors of padded ids and combines the vectors of each row.

    Args:
      table: [V, D] float32 variable or tensor.
      values, mask: [B, K], from padded().
      combiner: "sum": sum(m v). "mean": sum(m v) / max(sum(m), 1).

    Returns:
      [B, D] float32; zeros for an empty row, unless row 0 of the table holds an Inf or NaN, which padding reads.

    Raises:
      ValueError: the combiner is neither "sum" nor "mean".
    """
    if combiner not in ("sum", "mean"):
        raise ValueError("Dense TPU Embedding does not support combiner other than sum and mean.")
    vectors = tf.nn.embedding_lookup(table, values)
    factors = tf.expand_dims(mask, -1)
    total = tf.reduce_sum(vectors * factors, axis=1)
    return total if combiner == "sum" else total / tf.maximum(tf.reduce_sum(factors, axis=1), 1.0)


def for_tpu(values: Any) -> Any:
    """Converts ids to int32, the dtype by which a TPU gathers; clips an id beyond int32, so that it does not wrap."""
    return tf.cast(tf.clip_by_value(values, tf.int32.min, tf.int32.max), tf.int32)


def _dense(sparse: Any, width: int) -> Any:
    rows = sparse.dense_shape[0]
    cut = tf.sparse.slice(sparse, [0, 0], [rows, width])
    return tf.scatter_nd(cut.indices, cut.values, [rows, width])


_asks_cpu: ContextVar[bool] = ContextVar("asks_cpu", default=False)


@contextmanager
def cpu_lookups() -> Iterator[None]:
    """Makes columns of device tpu_tensor_core use TensorFlow's CPU lookup in graphs that the `with` block builds.

    The {serve} graph of a TPUEstimator is built this way: no padding, no cut at K, a mean divided by the sum of
    weights.

    Concurrency: holds for the thread, or task, that enters it.
    """
    token = _asks_cpu.set(True)
    try:
        yield
    finally:
        _asks_cpu.reset(token)


_BY_NAME = {
    None: None,
    "cpu": tensorflow_columns.EmbeddingDevice.CPU,
    "tpu_tensor_core": tensorflow_columns.EmbeddingDevice.TPU_TENSOR_CORE,
    "tpu_embedding_core": tensorflow_columns.EmbeddingDevice.TPU_EMBEDDING_CORE,
}


_OF_DEVICE = ("embedding_lookup_device", "tensor_core_shape")


class DeviceLookup:
    """Mixin for TensorFlow's column classes: keeps the column's lookup device and shape, and looks up its ids.

    Outside a TPU: device tpu_tensor_core computes the tensor-core lookup; cpu, tpu_embedding_core and None compute
    TensorFlow's CPU lookup, in training as in serving. Inside a TPU context TensorFlow's own methods run, except the
    tensor-core lookup when serving: it pads the ids that the categorical column gives.

    _plain, _with_device: TensorFlow's classes of such columns without and with a lookup device.
    """

    categorical_column: Any
    combiner: str
    use_safe_embedding_lookup: bool
    _plain: Any
    _with_device: Any

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Makes a column without TensorFlow's __new__, which would set device and shape on the class of all columns."""
        return cls._plain.__new__(cls, *args, **{key: kwargs[key] for key in kwargs if key not in _OF_DEVICE})

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # TensorFlow's own column methods read _embedding_lookup_device and _tensor_core_shape, but only inside a TPU
        # context.
        self._device_name: str | None = kwargs.pop("embedding_lookup_device")
        self._tensor_core_shape: tuple[int | None, int] | None = kwargs.pop("tensor_core_shape")
        self._embedding_lookup_device = _BY_NAME[self._device_name]
        self._plain.__init__(self, *args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        arguments = self.__getnewargs__()  # type: ignore[attr-defined]
        return type(self)(
            *(copy.deepcopy(argument, memo) for argument in arguments),
            embedding_lookup_device=self.embedding_lookup_device,
            tensor_core_shape=self.tensor_core_shape,
        )

    @property
    def embedding_lookup_device(self) -> str | None:
        return self._device_name

    @property
    def tensor_core_shape(self) -> tuple[int | None, int] | None:
        """The shape [B or None, K] of the column's padded lookup; None if the user gave no shape."""
        return self._tensor_core_shape

    @property
    def learning_rate_fn(self) -> Callable[..., Any] | None:
        function: Callable[..., Any] | None = self.get_learning_rate_fn()  # type: ignore[attr-defined]
        return function

    @property
    def max_sequence_length(self) -> int:
        length: int = self.get_max_sequence_length()  # type: ignore[attr-defined]
        return length

    @property
    def _is_padded(self) -> bool:
        return self._device_name == TENSOR_CORE

    @property
    def _of_tensorflow(self) -> Any:
        return self._plain if self._device_name is None else self._with_device

    def get_sequence_dense_tensor(self, transformation_cache: Any, state_manager: Any) -> Any:
        """Returns embeddings of sequences, [B, L, D] float32, padded with zeros or cut to L, and [B] int64 lengths."""
        return self._cut_lengths(self._plain.get_sequence_dense_tensor(self, transformation_cache, state_manager))

    def _lookup(self, pair: Any, table: Any) -> Any:
        # The categorical column has applied its vocabulary and default value to the ids of `pair` (ids and weights).
        ids, weights = pair.id_tensor, pair.weight_tensor
        if self._is_padded and not _asks_cpu.get():
            return combined(table, *self._padded(ids, weights), self.combiner)
        length = self.max_sequence_length
        if length:
            ids = cut(ids, length)
            weights = None if weights is None else cut(weights, length)
        rank = tf.compat.dimension_value(ids.dense_shape.shape[0])
        if self.use_safe_embedding_lookup or rank is None or rank > 2:
            return tf.nn.safe_embedding_lookup_sparse(table, ids, weights, combiner=self.combiner)
        return _with_all_rows(tf.nn.embedding_lookup_sparse(table, ids, weights, combiner=self.combiner), ids)

    def _padded(self, ids: Any, weights: Any) -> tuple[Any, Any]:
        # check_device() has refused tensor-core columns without a tensor_core_shape, so the shape is set here.
        assert self._tensor_core_shape is not None
        return padded(ids, weights, self._tensor_core_shape[1], drops_negative=self.use_safe_embedding_lookup)

    def _tpu_serving_lookup(self, transformation_cache: Any, state_manager: Any, table: Any) -> Any:
        # When TensorFlow serves on a TPU, the host pads the ids, and the tensor core gathers and combines the rows.
        # TensorFlow pads the raw feature; this method pads the ids that the categorical column made of it.
        def on_host() -> Any:
            pair = self.categorical_column.get_sparse_tensors(transformation_cache, state_manager)
            values, mask = self._padded(pair.id_tensor, pair.weight_tensor)
            return for_tpu(values), mask

        values, mask = tensorflow_columns.on_host(on_host)
        return combined(table, values, mask, self.combiner)

    def _cut_lengths(self, pair: Any) -> Any:
        lengths = pair.sequence_length
        return pair._replace(sequence_length=tf.minimum(lengths, tf.cast(self.max_sequence_length, lengths.dtype)))

    def _config(self) -> dict[str, Any]:
        # learning_rate_fn stays a function object, because columns with the same function share a learning rate;
        # Keras's JSON encoder writes the function's name.
        return {
            "categorical_column": tensorflow_columns.column_config(self.categorical_column),
            "combiner": self.combiner,
            "initializer": tensorflow_columns.initializer_config(self.get_initializer()),  # type: ignore[attr-defined]
            "max_sequence_length": self.max_sequence_length,
            "learning_rate_fn": self.learning_rate_fn,
            "embedding_lookup_device": self._device_name,
            "tensor_core_shape": self._tensor_core_shape,
            "use_safe_embedding_lookup": self.use_safe_embedding_lookup,
        }


def arguments_of(config: Any, custom_objects: Any, columns_by_name: Any) -> dict[str, Any]:
    """Returns the arguments that both kinds of column have in common, from a column's configuration.

    Raises:
      ValueError: learning_rate_fn is a name that custom_objects lack.
    """
    rate, shape = config["learning_rate_fn"], config["tensor_core_shape"]
    if isinstance(rate, str) and rate not in (custom_objects or {}):
        raise ValueError(f"learning_rate_fn {rate!r} is not among custom_objects")
    categorical = tensorflow_columns.column_from_config(config["categorical_column"], custom_objects, columns_by_name)
    kept = ("combiner", "max_sequence_length", "embedding_lookup_device", "use_safe_embedding_lookup")
    return {
        "categorical_column": categorical,
        "initializer": tensorflow_columns.initializer_from_config(config["initializer"], custom_objects),
        "learning_rate_fn": custom_objects[rate] if isinstance(rate, str) else rate,
        "tensor_core_shape": None if shape is None else tuple(shape),
        **{name: config[name] for name in kept},
    }


def _with_all_rows(vectors: Any, ids: Any) -> Any:
    # TensorFlow's unsafe lookup returns no vectors for empty rows at the end of a batch, but every column of a layer
    # must give B rows.
    missing = tf.cast(ids.dense_shape[0], tf.int32) - tf.shape(vectors)[0]
    return tf.pad(vectors, [[0, missing], [0, 0]])
