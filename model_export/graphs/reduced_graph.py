"""Reads tables stored in fewer bits in a TensorFlow graph: gathers stored numbers, then converts them to float32."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from model_export.graphs.reduced_table import ReducedTable
from model_export.tensorflow_setup import tf
from service.types import packed_dim, saved_dtype


@dataclass(frozen=True, slots=True)
class GraphTable:
    """A table of float16, bfloat16, int8 or int4 in the graph of a lookup.

    numbers: [V, D] variable, of int4 [V, ceil(D / 2)] uint8.
    scales: [V, 1] float32 variable of an int8 or int4 table.
    packed_dim: D of an int4 table.
    """

    numbers: Any
    scales: Any = None
    packed_dim: int | None = None

    def gather(self, ids: Any) -> Any:
        rows = tf.gather(self.numbers, ids)
        vectors = tf.cast(rows if self.packed_dim is None else _unpacked(rows, self.packed_dim), tf.float32)
        return vectors if self.scales is None else vectors * tf.gather(self.scales, ids)


def numbers_of(table: ReducedTable) -> Any:
    """Converts a table's stored numbers to a tensor of the table's dtype; numpy holds bfloat16 as 16-bit integers."""
    numbers = tf.constant(table.numbers)
    return tf.bitcast(numbers, tf.bfloat16) if table.dtype == "bfloat16" else numbers


class _Variables:
    _reduced: Mapping[str, ReducedTable]
    tables: dict[str, Any]
    scales: dict[str, Any]

    def for_lookups(self, tables: Mapping[str, Any]) -> dict[str, Any]:
        own = {}
        for name, table in self._reduced.items():
            packed = packed_dim(table.dtype, table.embedding_dim)
            own[name] = GraphTable(self.tables[name], self.scales.get(name), packed)
        return {**tables, **own}


class ReducedVariables(_Variables):
    """Variables of tables stored in fewer bits, for a tf.Module that will be saved. Concurrency: one caller at a time.

    tables, scales: the caller makes them attributes of the module, under these names.
    """

    def __init__(self, reduced: Mapping[str, ReducedTable]) -> None:
        self._reduced = reduced
        # The reduced tables' variables are on the CPU, because saving would copy variables of a GPU or TPU to the CPU.
        with tf.device("CPU"):
            self.tables = {
                name: tf.Variable(numbers_of(table), trainable=False, name=name) for name, table in reduced.items()
            }
            self.scales = {
                name: tf.Variable(table.scales, trainable=False, name=f"{name}_scale")
                for name, table in reduced.items()
                if table.scales is not None
            }

    def scale_keys(self) -> dict[str, str]:
        return {name: f"scales/{name}/.ATTRIBUTES/VARIABLE_VALUE" for name in self.scales}


class ReducedGraphVariables(_Variables):
    """Variables of tables stored in fewer bits, added to the current v1 graph. Concurrency: one caller at a time."""

    def __init__(self, reduced: Mapping[str, ReducedTable]) -> None:
        self._reduced = reduced
        self.tables = {
            name: unwritten_variable(
                f"reduced/{name}/numbers", tf.as_dtype(saved_dtype(table.dtype)), table.numbers.shape
            )
            for name, table in reduced.items()
        }
        self.scales = {
            name: unwritten_variable(f"reduced/{name}/scales", tf.float32, table.scales.shape)
            for name, table in reduced.items()
            if table.scales is not None
        }

    def fill(self, session: Any) -> None:
        """Writes reduced tables' numbers into session variables: as constants they could exceed a GraphDef's size."""
        for name, table in self._reduced.items():
            _write(session, self.tables[name], table.numbers)
            if table.scales is not None:
                _write(session, self.scales[name], table.scales)

    def table_keys(self) -> dict[str, str]:
        return {name: variable.op.name for name, variable in self.tables.items()}

    def scale_keys(self) -> dict[str, str]:
        return {name: variable.op.name for name, variable in self.scales.items()}


def _unpacked(octets: Any, embedding_dim: int) -> Any:
    # Unpacks int4 numbers: converts [..., ceil(D / 2)] uint8 to [..., D] int32 from -8 to 7. The low half of a byte is
    # the first of two columns. A half is read as a number below 16; numbers from 8 on are negative: subtract 16.
    halves = tf.stack([tf.bitwise.bitwise_and(octets, 15), tf.bitwise.right_shift(octets, 4)], axis=-1)
    numbers = tf.bitwise.bitwise_xor(tf.cast(halves, tf.int32), 8) - 8
    columns = tf.concat([tf.shape(octets)[:-1], [2 * octets.shape[-1]]], axis=0)
    return tf.reshape(numbers, columns)[..., :embedding_dim]


def unwritten_variable(name: str, dtype: Any, shape: Any) -> Any:
    """Adds a variable to the current v1 graph that uses no memory: its initializer is never run."""
    return tf.compat.v1.Variable(
        lambda: tf.zeros(shape, dtype), trainable=False, name=name, dtype=dtype, use_resource=True
    )


def _write(session: Any, variable: Any, numbers: Any) -> None:
    fed = tf.compat.v1.placeholder(numbers.dtype, numbers.shape)
    value = tf.bitcast(fed, variable.dtype.base_dtype) if fed.dtype != variable.dtype.base_dtype else fed
    session.run(variable.assign(value), {fed: numbers})
