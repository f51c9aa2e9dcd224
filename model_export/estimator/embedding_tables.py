"""Hides embedding tables from model_fn's own optimizer. On a TPU the tables are not even variables of the model.

While model_fn runs, each table's variable is recognised when a column creates it, and is removed from the collection of
trainable variables, so that an optimizer's minimize() does not see it. Afterwards the variable is trainable again, for
warm starts and for the gradients that model_export.training.table_optimizers needs.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from model_export.columns.names import safe_name
from model_export.spec.embedding_config_spec import EmbeddingConfigSpec
from model_export.tensorflow_setup import tf
from model_export.training.table_optimizers import TrainedTable
from model_export.training.table_parts import mark_part, name_of, parts_of

ANCHOR = "embedding_tables_anchor"


def embedding_columns(spec: EmbeddingConfigSpec) -> list[Any]:
    return [column for column in spec.feature_columns or () if hasattr(column, "categorical_column")]


def table_key(column: Any) -> str:
    """Returns the name of a column's table in the model's ModelSpec; columns that share a table have the same name."""
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
        """Records the one variable that `create` creates, as a table of table_to_config_dict; returns the variable."""
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
        """Returns every table, by name, with its variable and optimizer; each part of a split table is an own entry.

        Raises:
          ValueError: as variables().
        """
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
        rate = _learning_rate_fn(self._columns[key])
        return TrainedTable(variable, parameters, learning_rate_fn=rate, is_shared=self._is_shared)

    def _create(self, next_creator: Callable[..., Any], **arguments: Any) -> Any:
        name = tf.compat.v1.get_default_graph().unique_name(arguments["name"] or "Variable", mark_as_used=False)
        key = self._configured
        if key is None:
            key = next((key for key, column in self._columns.items() if _is_table_of(name, column)), None)
        if key is None:
            return next_creator(**arguments)
        parts = min(self._parts, number_of_rows(arguments))
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


def _learning_rate_fn(column: Any) -> Callable[[Any], Any] | None:
    getter = getattr(column, "get_learning_rate_fn", None)
    return None if getter is None else getter()


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


def number_of_rows(arguments: dict[str, Any]) -> int:
    """Returns V of a [V, D] variable from the arguments that TensorFlow gives to a variable creator."""
    return _shape(arguments)[0]


def _shape(arguments: dict[str, Any]) -> list[int]:
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
