"""Trains embedding tables in a v1 graph as a TPU does: by each table's own optimizer, not by the model's.

Gradients come from tf.gradients over the table variables. Rows that are not in the batch keep their values, in the
table and in its slots, except with Adam and lazy_adam=False. Slots have the names of a TPU's checkpoint.

Order of work in each step: multiplier, sum over the occurrences of an id, clipping_limit, clip_gradient, weight decay,
optimizer, clip_weight.

A table may lie in several variables of consecutive rows, one for each parameter server. A checkpoint holds these parts
under the name of the whole table, so it can be read into one variable, too.

Source: get_default_slot_variable_names in tensorflow/python/tpu/tpu_embedding.py at v2.15.1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from model_export.spec.embedding_config_spec import EmbeddingConfigSpec
from model_export.spec.optimization_parameters import (
    AdagradParameters,
    AdamParameters,
    FtrlParameters,
    MomentumParameters,
    OptimizationParameters,
)
from model_export.spec.table_config import TableConfig
from model_export.tensorflow_setup import tf
from model_export.training.table_updates import RowGradient, apply_gradient


def mark_part(variable: Any, full_name: str, full_shape: Sequence[int], first: int) -> None:
    """Makes savers store a variable as the rows from `first` on of a larger variable."""
    info = tf.Variable.SaveSliceInfo(full_name, list(full_shape), [first, 0], variable.shape.as_list())
    variable._set_save_slice_info(info)


def part_of(variable: Any) -> Any:
    return variable._get_save_slice_info()


def parts_of(variable: Any) -> list[Any]:
    return list(variable) if hasattr(variable, "_get_variable_list") else [variable]


def name_of(variable: Any) -> str:
    """Returns the name of a variable in a checkpoint; its parts have this name there, too."""
    first = parts_of(variable)[0]
    info = part_of(first)
    name: str = first.op.name if info is None else info.full_name
    return name


def create_slots(table: str, variable: Any, parameters: OptimizationParameters) -> tuple[Any, ...]:
    """Adds a table's slots to the current graph, as global variables of the table's shape that are not trainable.

    Adagrad has accumulator; Adam m and v; FTRL accumulator and linear; Momentum momenta; SGD none.
    The slots of a part of a table are parts of the table's slots, on the same device as the part.

    Raises:
      ValueError: the graph has a variable of that name.
    """
    return tuple(_slot(table, variable, suffix, initial) for suffix, initial in _slots(parameters))


def _slot(table: str, variable: Any, suffix: str, initial: float) -> Any:
    v1, part = tf.compat.v1, part_of(variable)
    if part is not None:
        table = part.full_name
    name = f"{table}/{suffix}"
    # A slot variable is created in the root scope, so that its name does not depend on the caller's scope.
    root = v1.variable_scope(v1.VariableScope(reuse=False, name=""), auxiliary_name_scope=False)
    with root, v1.name_scope(None), tf.device(variable.device):
        slot = v1.get_variable(
            name if part is None else f"{name}/{variable.op.name.rpartition('/')[2]}",
            shape=variable.shape,
            dtype=variable.dtype.base_dtype,
            initializer=v1.constant_initializer(initial),
            trainable=False,
            use_resource=True,
        )
    if part is not None:
        mark_part(slot, name, part.full_shape, part.var_offset[0])
    return slot


def _slots(parameters: OptimizationParameters) -> tuple[tuple[str, float], ...]:
    match parameters:
        case AdagradParameters():
            return (("Adagrad", parameters.initial_accumulator),)
        case AdamParameters():
            return (("Adam/m", 0.0), ("Adam/v", 0.0))
        case FtrlParameters():
            return (("Ftrl", parameters.initial_accumulator_value), ("Ftrl_1", parameters.initial_linear_value))
        case MomentumParameters():
            return (("Momentum", 0.0),)
        case _:
            return ()


@dataclass(frozen=True, slots=True)
class TrainedTable:
    """An embedding table's variable, and the optimizer that trains it.

    Args:
      variable: [V, D] float, a resource variable of the current graph.
      learning_rate: replaces the learning rate of the parameters; None: use that.
      learning_rate_fn: global step -> learning rate, which replaces both; tables with the same function share one
          tensor.
      is_shared: several processes update the variable, each from a session of its own.
    """

    variable: Any
    parameters: OptimizationParameters
    learning_rate: float | None = None
    learning_rate_fn: Callable[[Any], Any] | None = None
    is_shared: bool = False

    @staticmethod
    def of_config(
        spec: EmbeddingConfigSpec, config: TableConfig, variable: Any, *, is_shared: bool = False
    ) -> TrainedTable:
        parameters = spec.parameters_of(config)
        return TrainedTable(variable, parameters, config.learning_rate, config.learning_rate_fn, is_shared)


@dataclass(frozen=True, slots=True)
class TableTraining:
    """The TensorFlow operations with which a training loop updates embedding tables.

    train: one step of all tables; it does not increment the global step.
    flush: applies pending gradients of pipelined training; run it before a checkpoint and at the end. Without pending
        gradients it does nothing.
    slots: name of a table's variable -> its slot variables, in the order of create_slots.
    learning_rates: name of a table's variable -> its learning rate in this step, a scalar float32 tensor.
    """

    train: Any
    flush: Any
    slots: Mapping[str, tuple[Any, ...]]
    learning_rates: Mapping[str, Any]


def train_tables(
    spec: EmbeddingConfigSpec, tables: Sequence[TrainedTable], gradients: Sequence[Any], global_step: Any
) -> TableTraining:
    """Adds slots and an update operation for every table to the current graph.

    Args:
      spec: has clipping_limit, experimental_gradient_multiplier_fn and pipeline_execution_with_tensor_core.
      gradients: gradient of the loss by each table, in order: IndexedSlices, a [V, D] tensor, or None for a table on
        which the loss does not depend; its rows stay.
      global_step: scalar, the argument of learning_rate_fn and of the multiplier function.

    Raises:
      ValueError: the numbers of gradients and tables differ, or an FTRL accumulator is 0 without
      allow_zero_accumulator.
    """
    if len(gradients) != len(tables):
        raise ValueError(f"{len(gradients)} gradients for {len(tables)} tables")
    for table in tables:
        _check_accumulator(table)
    rates = _learning_rates(tables, global_step)
    multiplier = None
    if spec.experimental_gradient_multiplier_fn is not None:
        multiplier = tf.cast(spec.experimental_gradient_multiplier_fn(global_step), tf.float32)

    slots: dict[str, tuple[Any, ...]] = {}
    updates, flushes = [], []
    for table, gradient, rate in zip(tables, gradients, rates, strict=True):
        name = table.variable.op.name
        slots[name] = create_slots(name, table.variable, table.parameters)
        if gradient is None:
            continue

        def update(
            gradient: RowGradient, rate: Any, *, table: TrainedTable = table, state: tuple[Any, ...] = slots[name]
        ) -> Any:
            def apply() -> Any:
                return apply_gradient(table.parameters, table.variable, state, gradient, rate, spec.clipping_limit)

            # The update runs on the device that has the table's rows, so that only the gradient is sent to that device.
            with tf.device(table.variable.device):
                return _one_at_a_time(table.variable.op.name, apply) if table.is_shared else apply()

        rows = RowGradient.of(gradient, table.variable).scaled(multiplier)
        if spec.pipeline_execution_with_tensor_core:
            pending = PendingGradient(name, table.variable)
            updates.append(pending.exchange(rows, rate, update))
            flushes.append(pending.flush(update))
        else:
            updates.append(update(rows, rate))
    named_rates = {table.variable.op.name: rate for table, rate in zip(tables, rates, strict=True)}
    return TableTraining(tf.group(*updates), tf.group(*flushes), slots, named_rates)


def _one_at_a_time(name: str, apply: Callable[[], Any]) -> Any:
    # Two worker processes must not make an optimizer's step on a table at the same time, because one of the steps would
    # be lost if both change the same rows: a step reads rows, computes new values, and writes them.
    def run() -> Any:
        with tf.control_dependencies([apply()]):
            return tf.constant(True)

    done = tf.CriticalSection(shared_name=f"{name}/update").execute(run)
    # Clear the collection in which CriticalSection records its executions. TensorFlow can not store the records in a
    # MetaGraph, and logs a warning for each record.
    tf.compat.v1.get_default_graph().clear_collection("critical_section_executions")
    return done


def _check_accumulator(table: TrainedTable) -> None:
    parameters = table.parameters
    if (
        isinstance(parameters, FtrlParameters)
        and parameters.initial_accumulator_value == 0
        and not parameters.allow_zero_accumulator
    ):
        # Without allow_zero_accumulator, the square root of 0 is NaN on a TPU, so the model would train on a CPU only.
        raise ValueError(
            f"table {table.variable.op.name}: FtrlParameters has initial_accumulator_value 0, which needs "
            "allow_zero_accumulator=True"
        )


def _learning_rates(tables: Sequence[TrainedTable], global_step: Any) -> list[Any]:
    dynamic: dict[Callable[[Any], Any], Any] = {}
    rates = []
    for table in tables:
        function = table.learning_rate_fn
        if function is not None:
            if function not in dynamic:
                dynamic[function] = tf.cast(function(global_step), tf.float32)
            rates.append(dynamic[function])
        else:
            fixed = table.parameters.learning_rate if table.learning_rate is None else table.learning_rate
            rates.append(tf.constant(fixed, tf.float32))
    return rates


Update = Callable[[RowGradient, Any], Any]


class PendingGradient:
    """The pending gradient of one table, and the learning rate of the step in which it was computed.

    A gradient is delayed by one step, as on a TPU that looks up the next batch while it trains on the present one. The
    pending gradient lies in local variables, so checkpoints have the same names with and without it.

    Args:
      name: name of the table's variable.
      variable: the [V, D] table.
    """

    def __init__(self, name: str, variable: Any) -> None:
        width, dtype = variable.shape[1], variable.dtype.base_dtype
        self._rows = _local(f"{name}/pending/rows", tf.zeros([0], tf.int64), [None])
        self._values = _local(f"{name}/pending/values", tf.zeros([0, width], dtype), [None, width])
        self._rate = _local(f"{name}/pending/rate", tf.zeros([], tf.float32), [])
        self._is_held = _local(f"{name}/pending/is_held", tf.constant(False), [])

    def exchange(self, gradient: RowGradient, rate: Any, update: Update) -> Any:
        # Compute this step's gradient before the previous step's gradient is applied, so that this step's lookups read
        # the table without it.
        with tf.control_dependencies([gradient.rows, gradient.values, rate]):
            applied = self._apply(update)
        with tf.control_dependencies([applied]):
            return tf.group(
                self._rows.assign(gradient.rows, read_value=False),
                self._values.assign(gradient.values, read_value=False),
                self._rate.assign(rate, read_value=False),
                self._is_held.assign(True, read_value=False),
            )

    def flush(self, update: Update) -> Any:
        with tf.control_dependencies([self._apply(update)]):
            return tf.group(self._is_held.assign(False, read_value=False))

    def _apply(self, update: Update) -> Any:
        def apply() -> Any:
            held = RowGradient(self._rows.read_value(), self._values.read_value())
            with tf.control_dependencies([update(held, self._rate.read_value())]):
                return tf.constant(True)

        return tf.cond(self._is_held.read_value(), apply, lambda: tf.constant(False))


def _local(name: str, initial: Any, shape: list[int | None]) -> Any:
    v1 = tf.compat.v1
    with v1.name_scope(None):
        return v1.Variable(
            initial,
            trainable=False,
            collections=[v1.GraphKeys.LOCAL_VARIABLES],
            name=name,
            shape=tf.TensorShape(shape),
            use_resource=True,
        )
