"""Declares the values that a tensor may hold for a set of keys, and the part of a graph that computes from keys."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from model_export.adoption.forms import FORMS
from service.graph.flat_graph import FlatGraph, node_of
from service.types import Array

# The decimal texts that AsString writes.
DECIMAL = re.compile(rb"0|-?[1-9][0-9]*")
LIMITS = {
    dtype: (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))
    for dtype in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
}


class NotRead(Exception):
    """Raised where a description ends; the message names the op and says what is not known about it."""


class NotHere(NotRead):
    """Raised for a tensor that is no lookup, though all ops before it are known: one that follows may be a lookup."""


class Split(Exception):
    """Raised if the keys of an interval are not treated alike; `at` is the first key of the second half."""

    def __init__(self, at: int) -> None:
        super().__init__(at)
        self.at = at


@dataclass(frozen=True, slots=True)
class Shifted:
    """The key itself plus a number: an integer key for integers, the key's text for strings (then `by` is 0)."""

    by: int = 0


@dataclass(frozen=True, slots=True)
class Fixed:
    """The same value for all keys: a number, a truth value or a string."""

    value: Any


@dataclass(frozen=True, slots=True)
class Text:
    """The decimal text of an integer key."""


@dataclass(frozen=True, slots=True)
class Hashed:
    """`first` plus the remainder of the key's fingerprint (of its text) divided by `buckets`."""

    buckets: int
    first: int = 0


@dataclass(frozen=True, slots=True)
class Within:
    """An integer between low and high, both included, of which no more is known; `op` computes it."""

    low: int
    high: int
    op: str


Known = Shifted | Fixed | Text | Hashed | Within
# The keys of one case: first and last integer; None: all strings but the special ones.
Interval = tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class Piece:
    """An interval of keys that a graph treats alike, and the value of each examined tensor for them."""

    keys: Interval
    values: tuple[Known, ...]


@dataclass(slots=True)
class KeyGraph:
    """The part of one graph that depends on a feature's key.

    source: the placeholder's tensor that is fed the keys. dtype: "int64", "int32" or "string".
    constant: returns the value of a tensor that depends on no input.
    table: returns the keys and values of the lookup table whose handle is the given tensor.
    part_numbers: nodes that cast numbers of parts of a table.
    """

    flat: FlatGraph
    source: str
    dtype: str
    is_constant: Callable[[str], bool]
    constant: Callable[[str], Array]
    table: Callable[[str], tuple[Array, Array]]
    part_numbers: frozenset[str] = frozenset()
    _tables: dict[str, tuple[Array, Array]] = field(default_factory=dict)

    def parts(self, tensor: str) -> Iterator[str]:
        """Yields the tensors between a tensor and the keys, the tensor first, each once; constants are left out."""
        seen, todo = {tensor}, [tensor]
        while todo:
            name = todo.pop()
            yield name
            if name != self.source:
                for given in self.data(name):
                    if given not in seen and not self.is_constant(given):
                        seen.add(given)
                        todo.append(given)

    def data(self, name: str) -> list[str]:
        """Returns the tensors from whose elements a tensor's elements are taken or computed."""
        node = self.flat.nodes[node_of(name)]
        form, inputs = FORMS[node.op], self.flat.data_inputs(node.name)
        if form.rule == "mapped" and node.op != "LookupTableFindV2":
            return inputs
        return form.data_of(inputs)

    def lookup_table(self, find: str) -> tuple[Array, Array]:
        handle = self.flat.data_inputs(node_of(find))[0]
        if handle not in self._tables:
            self._tables[handle] = self.table(handle)
        return self._tables[handle]


def attribute(node: Any, name: str) -> Any:
    """Returns the AttrValue of a node's attribute, or the op's default, which a saved graph leaves out."""
    from tensorflow.python.framework import op_def_registry

    if name in node.attr:
        return node.attr[name]
    return next(declared.default_value for declared in op_def_registry.get(node.op).attr if declared.name == name)


def found_in(keys: Array, values: Array, wanted: Array, missing: Array) -> Array:
    """Returns the value of each wanted key in a lookup table, and `missing` for keys that the table lacks."""
    row_of = dict(zip(keys.reshape(-1).tolist(), values.reshape(-1).tolist(), strict=True))
    others = np.broadcast_to(missing, wanted.shape).reshape(-1).tolist()
    found = [row_of.get(key, other) for key, other in zip(wanted.reshape(-1).tolist(), others, strict=True)]
    return np.array(found, values.dtype).reshape(wanted.shape)
