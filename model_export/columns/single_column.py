"""The class of columns that `embedding_column` makes: each column has one categorical column and its own table."""

from __future__ import annotations

import copy
from typing import Any

from model_export.columns import tensorflow_columns
from model_export.columns.device_lookup import DeviceLookup, learning_rate_from_config


@tensorflow_columns.register
class TPUEmbeddingColumn(DeviceLookup, tensorflow_columns.TpuDeviceColumn):  # type: ignore[misc]
    """TensorFlow's TPU embedding column, extended to look up outside a TPU too; embedding_column makes it.

    Inside a TPU context TensorFlow's own methods run, except the tensor-core lookup when serving: it pads the ids that
    the categorical column gives.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Makes a column without TensorFlow's __new__, which would set device and shape on the class of all columns."""
        of_tensorflow = {
            key: kwargs[key] for key in kwargs if key not in ("embedding_lookup_device", "tensor_core_shape")
        }
        return tensorflow_columns.TpuEmbeddingColumn.__new__(cls, *args, **of_tensorflow)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._set_device(kwargs.pop("embedding_lookup_device"), kwargs.pop("tensor_core_shape"))
        tensorflow_columns.TpuEmbeddingColumn.__init__(self, *args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return type(self)(
            *(copy.deepcopy(argument, memo) for argument in self.__getnewargs__()),
            embedding_lookup_device=self.embedding_lookup_device,
            tensor_core_shape=self.tensor_core_shape,
        )

    def create_state(self, state_manager: Any) -> None:
        """Creates the table's variable `embedding_weights`, unless a TPU trains the table on its embedding cores."""
        # In a TPU graph for serving, the TPU's host looks up a column that has no lookup device. TensorFlow's
        # create_state for TPUs makes no variable for such a column, so create_state of plain columns is called.
        is_hosts = self.embedding_lookup_device is None and tensorflow_columns.is_tpu_inference()
        if is_hosts or not tensorflow_columns.is_on_tpu():
            tensorflow_columns.EmbeddingColumn.create_state(self, state_manager)
        else:
            self._of_tensorflow.create_state(self, state_manager)

    def get_dense_tensor(self, transformation_cache: Any, state_manager: Any) -> Any:
        """Returns the combined embeddings of the column's ids, [B, D] float32; a row without ids gives zeros."""
        if not tensorflow_columns.is_on_tpu():
            return tensorflow_columns.EmbeddingColumn.get_dense_tensor(self, transformation_cache, state_manager)
        if self._is_padded and tensorflow_columns.is_tpu_inference():
            table = state_manager.get_variable(self, name="embedding_weights")
            return self._tpu_serving_lookup(transformation_cache, state_manager, table)
        return self._of_tensorflow.get_dense_tensor(self, transformation_cache, state_manager)

    def get_sequence_dense_tensor(self, transformation_cache: Any, state_manager: Any) -> Any:
        """Returns a sequence's embeddings, [B, L, D] float32, padded with zeros or cut to L, and [B] int64 lengths."""
        tpu = tensorflow_columns.TpuEmbeddingColumn
        return self._cut_lengths(tpu.get_sequence_dense_tensor(self, transformation_cache, state_manager))

    def _get_dense_tensor(self, inputs: Any, weight_collections: Any = None, trainable: Any = None) -> Any:
        # tf.compat.v1.feature_column.input_layer() calls a column's method _get_dense_tensor().
        owner = tensorflow_columns.EmbeddingColumn
        if tensorflow_columns.is_on_tpu():
            owner = self._of_tensorflow
        return owner._get_dense_tensor(self, inputs, weight_collections, trainable)

    def _get_sequence_dense_tensor(self, inputs: Any, weight_collections: Any = None, trainable: Any = None) -> Any:
        tpu = tensorflow_columns.TpuEmbeddingColumn
        return self._cut_lengths(tpu._get_sequence_dense_tensor(self, inputs, weight_collections, trainable))

    def _get_dense_tensor_internal_helper(self, sparse_tensors: Any, embedding_weights: Any) -> Any:
        # TensorFlow's column class calls _get_dense_tensor_internal_helper() for every lookup, except a lookup on the
        # embedding cores.
        return self._lookup(sparse_tensors, embedding_weights)

    @property
    def _of_tensorflow(self) -> Any:
        # Inside a TPU context this column uses the methods of one of two TensorFlow classes: the class of columns with
        # a lookup device, or the class of columns without.
        is_plain = self.embedding_lookup_device is None
        return tensorflow_columns.TpuEmbeddingColumn if is_plain else tensorflow_columns.TpuDeviceColumn

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of embedding_column; TensorFlow's own get_config leaves out five of them."""
        return {
            "categorical_column": tensorflow_columns.column_config(self.categorical_column),
            "dimension": self.dimension,
            "combiner": self.combiner,
            "initializer": tensorflow_columns.initializer_config(self.initializer),
            **self._device_config(),
        }

    @classmethod
    def from_config(cls, config: Any, custom_objects: Any = None, columns_by_name: Any = None) -> Any:
        """Makes the column from get_config's dict, in which functions may be names of custom_objects."""
        shape = config["tensor_core_shape"]
        return cls(
            tensorflow_columns.column_from_config(config["categorical_column"], custom_objects, columns_by_name),
            dimension=config["dimension"],
            combiner=config["combiner"],
            initializer=tensorflow_columns.initializer_from_config(config["initializer"], custom_objects),
            max_sequence_length=config["max_sequence_length"],
            learning_rate_fn=learning_rate_from_config(config["learning_rate_fn"], custom_objects),
            use_safe_embedding_lookup=config["use_safe_embedding_lookup"],
            embedding_lookup_device=config["embedding_lookup_device"],
            tensor_core_shape=None if shape is None else tuple(shape),
        )
