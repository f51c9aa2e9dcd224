"""The class of columns that `shared_embedding_columns` makes: several categorical columns read one table."""

from __future__ import annotations

import copy
import re
from typing import Any

from model_export.columns import tensorflow_columns
from model_export.columns.device_lookup import DeviceLookup, learning_rate_from_config
from model_export.tensorflow_setup import tf


class SharedTable:
    """The table of shared columns, named after their collection: one variable per v1 graph, and one outside of graphs.

    It replaces TensorFlow's SharedEmbeddingColumnCreator, which still makes the variables of v1 graphs. The creator is
    trackable: a layer would wrap it together with the shared columns, and then could not be saved.
    """

    def __init__(self, name: str, num_buckets: int, dimension: int, initializer: Any) -> None:
        # TensorFlow's lookup on a TPU's embedding cores reads the attribute `_name` of a shared table.
        self._name = name
        self.num_buckets = num_buckets
        self.dimension = dimension
        self._initializer = initializer
        self._outside_graphs: Any = None
        self._in_graphs = tensorflow_columns.SharedTable(
            dimension=dimension,
            initializer=initializer,
            ckpt_to_load_from=None,
            tensor_name_in_ckpt=None,
            num_buckets=num_buckets,
            trainable=None,
            name=name,
        )

    @property
    def embedding_weights(self) -> Any:
        """The table's [V, D] float32 variable: one for each v1 graph, and one for code outside of graphs."""
        with tf.init_scope():
            if tf.executing_eagerly():
                return self._eager_weights()
        return self._in_graphs.embedding_weights

    def _eager_weights(self) -> Any:
        # get_variable is not used here: within a tf.function it keeps each variable by name forever, so a second model
        # with a table of the same name would fail. A variable made outside of the function belongs to this object
        # alone.
        if self._outside_graphs is None:
            with tf.compat.v1.name_scope(""):
                numbers = self._initializer((self.num_buckets, self.dimension), tf.float32)
                self._outside_graphs = tf.Variable(numbers, name=self._name)
        return self._outside_graphs

    def __deepcopy__(self, memo: dict[int, Any]) -> SharedTable:
        # deepcopy copies an object once, so columns that are copied together still share their table. The copied table
        # has no variables yet.
        return SharedTable(self._name, self.num_buckets, self.dimension, copy.deepcopy(self._initializer, memo))


@tensorflow_columns.register
class TPUSharedEmbeddingColumn(DeviceLookup, tensorflow_columns.TpuSharedDeviceColumn):  # type: ignore[misc]
    """TensorFlow's shared TPU column, extended to look up outside a TPU too; shared_embedding_columns makes it.

    Inside a TPU context TensorFlow's own methods run, except the tensor-core lookup when serving: it pads the ids that
    the categorical column gives.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Makes a column without TensorFlow's __new__, which would set device and shape on the class of all columns."""
        of_tensorflow = {
            key: kwargs[key] for key in kwargs if key not in ("embedding_lookup_device", "tensor_core_shape")
        }
        return tensorflow_columns.TpuSharedColumn.__new__(cls, *args, **of_tensorflow)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._set_device(kwargs.pop("embedding_lookup_device"), kwargs.pop("tensor_core_shape"))
        tensorflow_columns.TpuSharedColumn.__init__(self, *args, **kwargs)

    def __getnewargs__(self) -> tuple[Any, ...]:
        # The __getnewargs__ of TensorFlow's shared column leaves out the last argument, use_safe_embedding_lookup.
        return (*super().__getnewargs__(), self.use_safe_embedding_lookup)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return type(self)(
            *(copy.deepcopy(argument, memo) for argument in self.__getnewargs__()),
            embedding_lookup_device=self.embedding_lookup_device,
            tensor_core_shape=self.tensor_core_shape,
        )

    @property
    def shared_embedding_collection_name(self) -> str:
        name: str = self._shared_embedding_collection_name
        return name

    def create_state(self, state_manager: Any) -> None:
        """Makes the table an attribute of the Keras layer, which then trains it; does nothing in v1 and TPU graphs."""
        with tf.init_scope():
            if not tf.executing_eagerly() or tensorflow_columns.is_on_tpu():
                return
        layer = getattr(state_manager, "_layer", None)
        if layer is not None:
            # Keras tracks each variable that is an attribute of the layer. Columns that share a table all set the same
            # attribute, so Keras counts the table once.
            name = re.sub(r"\W", "_", self.shared_embedding_collection_name)
            setattr(layer, f"shared_table_{name}", self.shared_embedding_column_creator.embedding_weights)

    def get_dense_tensor(self, transformation_cache: Any, state_manager: Any) -> Any:
        """Returns the combined embeddings of the column's ids, [B, D] float32; a row without ids gives zeros."""
        # TensorFlow's get_dense_tensor checks that this column is no sequence, then calls _get_dense_tensor_internal.
        return tensorflow_columns.SharedEmbeddingColumn.get_dense_tensor(self, transformation_cache, state_manager)

    def get_sequence_dense_tensor(self, transformation_cache: Any, state_manager: Any) -> Any:
        """Returns embeddings of sequences, [B, L, D] float32, padded with zeros or cut to L, and [B] int64 lengths."""
        tpu = tensorflow_columns.TpuSharedColumn
        return self._cut_lengths(tpu.get_sequence_dense_tensor(self, transformation_cache, state_manager))

    def _get_dense_tensor_internal(self, transformation_cache: Any, state_manager: Any) -> Any:
        table = self.shared_embedding_column_creator
        if not tensorflow_columns.is_on_tpu():
            return self._sparse_lookup(transformation_cache, state_manager)
        if tensorflow_columns.is_tpu_inference():
            if self._is_padded:
                return self._tpu_serving_lookup(transformation_cache, state_manager, table.embedding_weights)
            # A column of the device tpu_embedding_core goes on to TensorFlow's own method, which refuses it with an
            # error.
            if self.embedding_lookup_device != "tpu_embedding_core":
                return tensorflow_columns.on_host(lambda: self._sparse_lookup(transformation_cache, state_manager))
        is_plain = self.embedding_lookup_device is None
        owner = tensorflow_columns.TpuSharedColumn if is_plain else tensorflow_columns.TpuSharedDeviceColumn
        return owner._get_dense_tensor_internal(self, transformation_cache, state_manager)

    def _sparse_lookup(self, transformation_cache: Any, state_manager: Any) -> Any:
        pair = self.categorical_column.get_sparse_tensors(transformation_cache, state_manager)
        return self._lookup(pair, self.shared_embedding_column_creator.embedding_weights)

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments that shared_embedding_columns got; TensorFlow's shared column has no get_config."""
        return {
            "categorical_column": tensorflow_columns.column_config(self.categorical_column),
            "dimension": self.shared_embedding_column_creator.dimension,
            "combiner": self.combiner,
            "initializer": tensorflow_columns.initializer_config(self.get_initializer()),
            "shared_embedding_collection_name": self.shared_embedding_collection_name,
            **self._device_config(),
        }

    @classmethod
    def from_config(cls, config: Any, custom_objects: Any = None, columns_by_name: Any = None) -> Any:
        """Makes the column from get_config's dict, in which functions may be names of custom_objects.

        The column shares its table with a column of the same collection in columns_by_name; else it gets a new table.
        """
        column = tensorflow_columns.column_from_config(config["categorical_column"], custom_objects, columns_by_name)
        name, shape = config["shared_embedding_collection_name"], config["tensor_core_shape"]
        initializer = tensorflow_columns.initializer_from_config(config["initializer"], custom_objects)
        tables = (
            sibling.shared_embedding_column_creator
            for sibling in (columns_by_name or {}).values()
            if isinstance(sibling, cls) and sibling.shared_embedding_collection_name == name
        )
        table = next(tables, None) or SharedTable(name, column.num_buckets, config["dimension"], initializer)
        return cls(
            column,
            shared_embedding_column_creator=table,
            combiner=config["combiner"],
            initializer=initializer,
            shared_embedding_collection_name=name,
            max_sequence_length=config["max_sequence_length"],
            learning_rate_fn=learning_rate_from_config(config["learning_rate_fn"], custom_objects),
            use_safe_embedding_lookup=config["use_safe_embedding_lookup"],
            embedding_lookup_device=config["embedding_lookup_device"],
            tensor_core_shape=None if shape is None else tuple(shape),
        )
