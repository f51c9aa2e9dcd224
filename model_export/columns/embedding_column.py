"""embedding_column and shared_embedding_columns, as in tf.compat.v1.tpu.experimental, but for any machine."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from model_export.columns import checks, tensorflow_columns
from model_export.columns.device_lookup import DeviceLookup, arguments_of
from model_export.tensorflow_setup import tf


@tensorflow_columns.register
class TPUEmbeddingColumn(DeviceLookup, tensorflow_columns.TpuDeviceColumn):  # type: ignore[misc]
    """TensorFlow's TPU embedding column, extended to look up outside a TPU too; embedding_column makes it."""

    _plain, _with_device = tensorflow_columns.TpuEmbeddingColumn, tensorflow_columns.TpuDeviceColumn

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

    def _get_dense_tensor(self, inputs: Any, weight_collections: Any = None, trainable: Any = None) -> Any:
        # tf.compat.v1.feature_column.input_layer() calls a column's method _get_dense_tensor().
        owner = self._of_tensorflow if tensorflow_columns.is_on_tpu() else tensorflow_columns.EmbeddingColumn
        return owner._get_dense_tensor(self, inputs, weight_collections, trainable)

    def _get_sequence_dense_tensor(self, inputs: Any, weight_collections: Any = None, trainable: Any = None) -> Any:
        return self._cut_lengths(self._plain._get_sequence_dense_tensor(self, inputs, weight_collections, trainable))

    def _get_dense_tensor_internal_helper(self, sparse_tensors: Any, embedding_weights: Any) -> Any:
        # TensorFlow's column class calls _get_dense_tensor_internal_helper() for every lookup, except a lookup on the
        # embedding cores.
        return self._lookup(sparse_tensors, embedding_weights)

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of embedding_column; TensorFlow's own get_config leaves out five of them."""
        return {**self._config(), "dimension": self.dimension}

    @classmethod
    def from_config(cls, config: Any, custom_objects: Any = None, columns_by_name: Any = None) -> Any:
        """Makes the column from get_config's dict, in which functions may be names of custom_objects."""
        return cls(dimension=config["dimension"], **arguments_of(config, custom_objects, columns_by_name))


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
    """TensorFlow's shared TPU column, extended to look up outside a TPU too; shared_embedding_columns makes it."""

    _plain, _with_device = tensorflow_columns.TpuSharedColumn, tensorflow_columns.TpuSharedDeviceColumn

    def __getnewargs__(self) -> tuple[Any, ...]:
        # The __getnewargs__ of TensorFlow's shared column leaves out the last argument, use_safe_embedding_lookup.
        return (*super().__getnewargs__(), self.use_safe_embedding_lookup)

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
        return self._of_tensorflow._get_dense_tensor_internal(self, transformation_cache, state_manager)

    def _sparse_lookup(self, transformation_cache: Any, state_manager: Any) -> Any:
        pair = self.categorical_column.get_sparse_tensors(transformation_cache, state_manager)
        return self._lookup(pair, self.shared_embedding_column_creator.embedding_weights)

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments that shared_embedding_columns got; TensorFlow's shared column has no get_config."""
        return {
            **self._config(),
            "dimension": self.shared_embedding_column_creator.dimension,
            "shared_embedding_collection_name": self.shared_embedding_collection_name,
        }

    @classmethod
    def from_config(cls, config: Any, custom_objects: Any = None, columns_by_name: Any = None) -> Any:
        """Makes the column from get_config's dict, in which functions may be names of custom_objects.

        The column shares its table with a column of the same collection in columns_by_name; else it gets a new table.
        """
        arguments = arguments_of(config, custom_objects, columns_by_name)
        name, buckets = config["shared_embedding_collection_name"], arguments["categorical_column"].num_buckets
        tables = (
            sibling.shared_embedding_column_creator
            for sibling in (columns_by_name or {}).values()
            if isinstance(sibling, cls) and sibling.shared_embedding_collection_name == name
        )
        table = next(tables, None) or SharedTable(name, buckets, config["dimension"], arguments["initializer"])
        return cls(shared_embedding_column_creator=table, shared_embedding_collection_name=name, **arguments)


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
