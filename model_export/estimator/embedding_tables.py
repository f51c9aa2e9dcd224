"""The tables of an estimator's EmbeddingConfigSpec: their variables, lookups and activations.

On a TPU the tables are not even variables of the model, so they are hidden from model_fn's own optimizer. While
model_fn runs, each table's variable is recognised when a column creates it, and is removed from the collection of
trainable variables, so that an optimizer's minimize() does not see it. Afterwards the variable is trainable again, for
warm starts and for the gradients that model_export.training.table_optimizers needs.

Source: tensorflow_estimator/python/estimator/tpu/_tpu_estimator_embedding.py, split_inputs, at 2.15.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from model_export.columns import to_spec
from model_export.columns.to_spec import feature_names, safe_name
from model_export.spec.embedding_config_spec import EmbeddingConfigSpec
from model_export.spec.features import FeatureSpec, ModelSpec, TableSpec
from model_export.spec.table_config import FeatureConfig, TableConfig
from model_export.tensorflow_setup import tf
from model_export.training.table_optimizers import TrainedTable, mark_part, name_of, parts_of

ANCHOR = "embedding_tables_anchor"


def embedding_columns(spec: EmbeddingConfigSpec) -> list[Any]:
    return [column for column in spec.feature_columns or () if hasattr(column, "categorical_column")]


def table_key(column: Any) -> str:
    own_name = getattr(column, "get_embedding_var_name", None)
    return safe_name(column.name if own_name is None else own_name(), "table")


def is_shared(column: Any) -> bool:
    return hasattr(column, "shared_embedding_column_creator") or hasattr(column, "shared_embedding_collection_name")


class TableRecorder:
    """Recorder of a spec's tables: finds their variables in the current graph. Concurrency: one caller at a time.

    Args:
      spec: None means that there are no tables.
      keeps_from_optimizer: whether tables are hidden from the trainable variables while recording.
      parts: the number of variables into which each table is split; a table of fewer rows gets one for each row.
      is_shared: whether several processes train the tables, each from a session of its own.
    """

    def __init__(
        self, spec: EmbeddingConfigSpec | None, *, keeps_from_optimizer: bool, parts: int = 1, is_shared: bool = False
    ) -> None:
        self._spec, self._parts, self._is_shared = spec, parts, is_shared
        self._keeps = keeps_from_optimizer and spec is not None
        self._columns = {} if spec is None else {table_key(column): column for column in embedding_columns(spec)}
        self._found: dict[str, list[Any]] = {}
        self._configured: str | None = None
        self._anchor: Any = None
        self._anchor_value: Any = None

    @contextmanager
    def recording(self) -> Iterator[None]:
        if self._keeps:
            self._anchor = _anchor()
            # Read the anchor, the number on which every lookup depends, here: lookups run on the device of their table,
            # where the anchor's variable can not be read.
            self._anchor_value = self._anchor.read_value()
        with tf.compat.v1.variable_creator_scope(self._create):
            yield
        if self._keeps:
            self._give_back()

    def create(self, key: str, create: Callable[[], Any]) -> Any:
        self._configured = key
        try:
            return create()
        finally:
            self._configured = None

    def variables(self) -> Mapping[str, Any]:
        """Returns the variable that model_fn created for each table, by table; a PartitionedVariable if it has parts.

        Raises:
          ValueError: model_fn did not use a table's columns, or used them in several layers, each with its own
          variable.
        """
        missing = sorted(set(self._columns) - set(self._found))
        if missing:
            raise ValueError(
                f"embedding_config_spec has tables that model_fn did not create: {missing}; pass their feature "
                "columns to a layer such as tf.keras.layers.DenseFeatures"
            )
        for key, variables in self._found.items():
            if len(variables) > 1:
                raise ValueError(
                    f"model_fn created the table {key!r} more than once, as {[name_of(v) for v in variables]}; use its "
                    "feature columns in one layer, or shared_embedding_columns"
                )
        return {key: variables[0] for key, variables in self._found.items()}

    def trained_tables(self) -> list[TrainedTable]:
        """Returns every table, by name, with its variable and optimizer; each part of a split table is an own entry."""
        return [
            self._trained(key, part)
            for key, variable in sorted(self.variables().items())
            for part in parts_of(variable)
        ]

    def _trained(self, key: str, variable: Any) -> TrainedTable:
        assert self._spec is not None  # callers check this
        if self._spec.table_to_config_dict:
            config = self._spec.table_to_config_dict[key]
            return TrainedTable.of_config(self._spec, config, variable, is_shared=self._is_shared)
        parameters = self._spec.optimization_parameters
        assert parameters is not None  # EmbeddingConfigSpec checks this
        rate = getattr(self._columns[key], "get_learning_rate_fn", lambda: None)()
        return TrainedTable(variable, parameters, learning_rate_fn=rate, is_shared=self._is_shared)

    def _create(self, next_creator: Callable[..., Any], **arguments: Any) -> Any:
        name = tf.compat.v1.get_default_graph().unique_name(arguments["name"] or "Variable", mark_as_used=False)
        key = self._configured
        if key is None:
            key = next((key for key, column in self._columns.items() if _is_table_of(name, column)), None)
        if key is None:
            return next_creator(**arguments)
        parts = min(self._parts, _shape(arguments)[0])
        variable = next_creator(**arguments) if parts == 1 else split_variable(next_creator, arguments, parts)
        self._found.setdefault(key, []).append(variable)
        for part in parts_of(variable):
            self._prepare(part)
        return variable

    def _prepare(self, variable: Any) -> None:
        if not self._keeps:
            return
        _remove(tf.compat.v1.GraphKeys.TRAINABLE_VARIABLES, lambda other: other is variable)
        # A TensorFlow optimizer refuses to minimize if the tables, which are hidden from it, are the only variables. So
        # every lookup also depends on one number, the anchor, whose gradient is zero; TPUEstimator had dummy variables
        # for the same reason.
        read = variable.sparse_read
        variable.sparse_read = lambda *args, **named: _tied(read(*args, **named), self._anchor_value)

    def _give_back(self) -> None:
        v1 = tf.compat.v1
        keys = v1.GraphKeys
        _remove(keys.TRAINABLE_VARIABLES, lambda variable: variable is self._anchor)
        # model_fn's optimizer makes slot variables for the anchor, which is no part of the model. As local variables,
        # these slots do not get into checkpoints.
        slots = _remove(keys.GLOBAL_VARIABLES, lambda variable: variable.op.name.startswith(f"{ANCHOR}/"))
        for slot in slots:
            v1.add_to_collection(keys.LOCAL_VARIABLES, slot)
        for variables in self._found.values():
            for variable in variables:
                for part in parts_of(variable):
                    v1.add_to_collection(keys.TRAINABLE_VARIABLES, part)
                    del part.sparse_read


@tf.custom_gradient  # type: ignore[untyped-decorator]
def _tied(vectors: Any, anchor: Any) -> Any:
    return tf.identity(vectors), lambda gradient: (gradient, tf.zeros_like(anchor))


def _anchor() -> Any:
    v1 = tf.compat.v1
    collections = [v1.GraphKeys.LOCAL_VARIABLES, v1.GraphKeys.TRAINABLE_VARIABLES]
    return v1.Variable(0.0, name=ANCHOR, collections=collections, use_resource=True, dtype=tf.float32)


def _remove(collection: str, chosen: Callable[[Any], bool]) -> list[Any]:
    variables = tf.compat.v1.get_collection_ref(collection)
    removed = [variable for variable in variables if chosen(variable)]
    variables[:] = [variable for variable in variables if not chosen(variable)]
    return removed


def _is_table_of(variable: str, column: Any) -> bool:
    if is_shared(column):
        names = [column.get_embedding_var_name()]
    else:
        # A Keras layer uses a column's name as a scope unchanged; v1's input_layer first converts it to a valid scope
        # name.
        scopes = (column.name, re.sub(r"[^A-Za-z0-9_.\-]", "_", column.name))
        names = [f"{scope}/embedding_weights" for scope in scopes]
    return any(variable == name or variable.endswith(f"/{name}") for name in names)


# Classes of initializers that draw each number independently: each part of a table can draw its own rows.
_DRAWN = ("TruncatedNormal", "RandomNormal", "RandomUniform", "Zeros", "Ones")
# The distance between the seeds of neighbouring parts of a table: parts with the same seed would start with the same
# rows.
_SEED_STEP = 1009


def split_variable(create: Callable[..., Any], arguments: dict[str, Any], parts: int) -> Any:
    """Creates the parts of a [V, D] variable, and returns them as one PartitionedVariable; parts is in [1, V].

    The parts have consecutive rows, as tf.nn.embedding_lookup expects with partition_strategy "div".

    Args:
      create: creator of one variable, as tf.compat.v1.variable_creator_scope passes it.
      arguments: the creator's arguments for the whole variable.
    """
    from tensorflow.python.ops.variables import PartitionedVariable

    name, shape = arguments["name"], _shape(arguments)
    full_name = tf.compat.v1.get_default_graph().unique_name(name, mark_as_used=False)
    variables, first = [], 0
    for number in range(parts):
        rows = shape[0] // parts + (number < shape[0] % parts)
        initial = functools.partial(_initial_rows, arguments["initial_value"], shape, first, rows, number)
        changed = {"name": f"{name}/part_{number}", "initial_value": initial, "shape": tf.TensorShape([rows, shape[1]])}
        variable = create(**{**arguments, **changed})
        mark_part(variable, full_name, shape, first)
        variables.append(variable)
        first += rows
    return PartitionedVariable(full_name, shape, variables[0].dtype.base_dtype, variables, [parts, 1])


def _shape(arguments: dict[str, Any]) -> list[int]:
    # Returns the shape of a variable from the arguments that TensorFlow gives to a variable creator.
    shape = arguments.get("shape")
    if shape is None or tf.TensorShape(shape).rank is None:
        initial = arguments["initial_value"]
        keywords = getattr(initial, "keywords", {})
        shape = keywords["shape"] if "shape" in keywords else initial.args[0]
    return list(map(int, tf.TensorShape(shape).as_list()))


def _initial_rows(initial: Any, shape: list[int], first: int, rows: int, number: int) -> Any:
    draw: Any = getattr(initial, "func", None)
    if type(draw).__name__ in _DRAWN:
        settings = draw.get_config()
        if settings.get("seed") is not None:
            draw = type(draw).from_config({**settings, "seed": settings["seed"] + number * _SEED_STEP})
        return draw([rows, shape[1]], dtype=initial.keywords.get("dtype"))
    return (initial() if callable(initial) else initial)[first : first + rows]


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
    """Returns a feature's ids, sparse or (only for a table without combiner) dense, and its weights or None."""
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


DEFAULT_MAX_IDS_PER_ROW = 32


def lookup_spec(spec: EmbeddingConfigSpec, *, max_ids_per_row: int = DEFAULT_MAX_IDS_PER_ROW) -> ModelSpec:
    """Returns an EmbeddingConfigSpec as a ModelSpec, whose lookups treat bad ids and weights as training does.

    Args:
      max_ids_per_row: largest number of ids in a row, for features that do not set it themselves.

    Raises:
      TypeError, ValueError: a column or name can not be described in a manifest (model_export.columns.to_spec).
    """
    if spec.feature_columns:
        return to_spec.model_spec(embedding_columns(spec), max_ids_per_row=max_ids_per_row)
    tables, features = spec.table_to_config_dict, spec.feature_to_config_dict
    assert tables and features  # EmbeddingConfigSpec checks this
    return ModelSpec(
        tuple(_table(name, table) for name, table in tables.items()),
        tuple(_feature(name, config, tables[config.table_id], max_ids_per_row) for name, config in features.items()),
    )


def looked_up_ids(spec: EmbeddingConfigSpec, features: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the row numbers that each feature looks up for one batch, by the feature names of lookup_spec().

    A value is a SparseTensor, or a dense tensor if each example has one id.
    """
    if spec.feature_columns:
        from tensorflow.python.feature_column.feature_column_v2 import FeatureTransformationCache

        columns = feature_names(embedding_columns(spec))
        return {
            name: column.categorical_column.get_sparse_tensors(FeatureTransformationCache(features), None).id_tensor
            for name, column in columns.items()
        }
    tables, configs = spec.table_to_config_dict, spec.feature_to_config_dict
    assert tables and configs  # EmbeddingConfigSpec checks this
    return {
        safe_name(name, "feature"): feature_ids(name, config, tables[config.table_id], features)[0]
        for name, config in configs.items()
    }


def weight_keys(spec: EmbeddingConfigSpec) -> dict[str, str]:
    if spec.feature_columns:
        columns = feature_names(embedding_columns(spec)).items()
        keys = {name: getattr(column.categorical_column, "weight_feature_key", None) for name, column in columns}
    else:
        configs = (spec.feature_to_config_dict or {}).items()
        keys = {safe_name(name, "feature"): config.weight_key for name, config in configs}
    return {name: key for name, key in keys.items() if key}


def _table(name: str, table: TableConfig) -> TableSpec:
    stddev = getattr(table.initializer, "stddev", table.initial_stddev)
    return TableSpec(safe_name(name, "table"), table.vocabulary_size, table.dimension, table.combiner or "mean", stddev)


def _feature(name: str, config: FeatureConfig, table: TableConfig, max_ids_per_row: int) -> FeatureSpec:
    length = config.max_sequence_length
    name, table_name = safe_name(name, "feature"), safe_name(config.table_id, "table")
    if table.combiner is None and not length:
        return FeatureSpec(name, table_name)
    if length:
        return FeatureSpec(name, table_name, is_ragged=True, max_sequence_length=length)
    return FeatureSpec(
        name,
        table_name,
        is_ragged=True,
        max_ids_per_row=max_ids_per_row,
        combiner=table.combiner,
        on_bad_id="drop_negative",
        on_nonpositive_weight="keep" if table.combiner == "sum" else "drop",
    )


def ids_and_splits(ids: Any) -> tuple[Any, Any]:
    if not isinstance(ids, tf.compat.v1.SparseTensorValue):
        return ids.reshape(-1), None
    lengths = np.bincount(ids.indices[:, 0], minlength=ids.dense_shape[0])
    return ids.values, np.concatenate([[0], np.cumsum(lengths)])
