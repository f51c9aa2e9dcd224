"""Computes which row of a table a graph reads for each key: the graph's ops, exactly, for all keys at once.

Integer keys are treated in intervals. Within an interval a tensor is the key plus a number, a fixed value, a hash of
the key, or a number within known bounds. Where an op decides differently for two keys of an interval (a comparison, a
clip, a cast that wraps), the interval is split there, so that no key is skipped. String keys are treated as two cases:
the special keys (the vocabulary's, those that the graph compares with, and the empty string), which are computed one by
one with TensorFlow's own kernels, and all other keys, of which only the hash can matter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from model_export.adoption.key_graph import (
    DECIMAL,
    FORMS,
    LIMITS,
    Fixed,
    Hashed,
    Interval,
    KeyGraph,
    Known,
    NotRead,
    Piece,
    Shifted,
    Split,
    Text,
    Within,
    attribute,
    found_in,
)
from model_export.tensorflow_setup import tf
from service.graph.flat_graph import node_of
from service.types import Array

# Steps of a FloorDiv, FloorMod or Cast within one interval up to which the interval is split at each step.
_MOST_STEPS = 64


class Evaluation:
    """The values of tensors for the keys of one interval. Each rule is an op's meaning as TensorFlow documents it."""

    def __init__(self, graph: KeyGraph, keys: Interval) -> None:
        self._graph, self._keys = graph, keys
        self._known: dict[str, Known] = {}

    def of(self, tensor: str) -> Known:
        """Returns a tensor's value for the interval's keys; raises NotRead or _Split."""
        if tensor not in self._known:
            self._known[tensor] = self._value(tensor)
        return self._known[tensor]

    def fixed(self, tensor: str) -> int:
        """Returns the number that a tensor holds for all keys of the interval; splits an interval that has several."""
        low, high = self._range(self.of(tensor))
        if low == high:
            return low
        raise Split(self._middle())

    def truth_of(self, tensor: str) -> Fixed:
        """Returns whether a condition holds for all keys of the interval; a number that is not 0 holds."""
        return Fixed(not self._equal(self.of(tensor), Fixed(0)))

    def is_within(self, value: Known, size: int) -> bool:
        """Says whether a number lies in [0, size) for all keys of the interval, or for none; otherwise splits it."""
        return not self.is_below(value, 0) and self.is_below(value, size)

    def is_below(self, value: Known, bound: int) -> bool:
        """Says whether a number is less than a bound for all keys of the interval, or for none; otherwise splits it."""
        low, high = self._range(value)
        if high < bound:
            return True
        if low >= bound:
            return False
        if isinstance(value, Shifted):
            raise Split(bound - value.by)
        raise Split(self._middle())

    def _value(self, tensor: str) -> Known:
        graph = self._graph
        if tensor == graph.source:
            return Shifted()
        if graph.is_constant(tensor):
            value = graph.constant(tensor)
            if value.size != 1:
                raise NotRead(f"a constant of {value.size} numbers takes part in the arithmetic of ids")
            return Fixed(value.reshape(()).item() if value.dtype != object else value.reshape(-1)[0])
        node = graph.flat.nodes[node_of(tensor)]
        form = FORMS[node.op]
        if form.rule in ("same", "arranged", "moved", "distinct", "filled", "sparse", "parted"):
            return self.of(graph.data(tensor)[0])
        if form.rule == "constant":
            return Fixed(1 if node.op == "OnesLike" else 0)
        rule = _RULES.get(node.op)
        if rule is None:
            raise NotRead(f"{node.op} has no known meaning for ids")
        return rule(self, node, graph.flat.data_inputs(node.name))

    def _range(self, value: Known) -> tuple[int, int]:
        if isinstance(value, Fixed) and isinstance(value.value, (bool, int)):
            return int(value.value), int(value.value)
        if isinstance(value, Within):
            return value.low, value.high
        if isinstance(value, Hashed):
            return value.first, value.first + value.buckets - 1
        if isinstance(value, Shifted) and self._keys is not None:
            return self._keys[0] + value.by, self._keys[1] + value.by
        raise NotRead("a text is used as a number")

    def _middle(self) -> int:
        if self._keys is None or self._keys[0] == self._keys[1]:
            raise NotRead("a hash of the key is compared with a number")
        return (self._keys[0] + self._keys[1] + 1) // 2

    def _fitted(self, value: Known, dtype: str, op: str) -> Known:
        """Returns a number as an integer type holds it: one outside of the type's limits wraps around."""
        if dtype not in LIMITS:
            raise NotRead(f"{op} makes {dtype} of ids")
        (low, high), (least, most) = self._range(value), LIMITS[dtype]
        span = most - least + 1
        first, last = (low - least) // span, (high - least) // span
        if first == last:
            return value if first == 0 else self.shifted(value, -first * span)
        if isinstance(value, Shifted) and last - first <= 2:
            raise Split(least + (first + 1) * span - value.by)
        raise NotRead(
            f"{op} to {dtype} drops the upper bits of ids: id {least + span * (first + 1 or 1)} reads as {least}"
        )

    def shifted(self, value: Known, by: int) -> Known:
        if isinstance(value, Shifted):
            return Shifted(value.by + by)
        if isinstance(value, Hashed):
            return Hashed(value.buckets, value.first + by)
        if isinstance(value, Fixed):
            return Fixed(int(value.value) + by)
        assert isinstance(value, Within)
        low, high = value.low, value.high
        return Within(low + by, high + by, value.op)

    # The rules. Each takes a node and the names of its inputs.

    def _cast(self, node: Any, inputs: list[str]) -> Known:
        value, dtype = self.of(inputs[0]), tf.as_dtype(node.attr["DstT"].type).name
        if dtype == "bool":
            return self._compared("NotEqual", value, Fixed(0))
        if tf.as_dtype(node.attr["SrcT"].type).name not in (*LIMITS, "bool"):
            raise NotRead(f"ids are computed by Cast from {tf.as_dtype(node.attr['SrcT'].type).name}")
        if node.name in self._graph.part_numbers:
            # TensorFlow casts the number of a part to int32. Ids so large that this number wraps are refused here; the
            # graph reads an arbitrary row for them.
            return value
        return self._fitted(value, dtype, "Cast")

    def _add(self, node: Any, inputs: list[str]) -> Known:
        sign = -1 if node.op == "Sub" else 1
        a, b = self.of(inputs[0]), self.of(inputs[1])
        if not isinstance(b, Fixed) and sign == 1:
            a, b = b, a
        if not isinstance(b, Fixed):
            raise NotRead(f"{node.op} combines two numbers that both depend on the id")
        self._range(a)
        return self._fitted(self.shifted(a, sign * int(b.value)), tf.as_dtype(node.attr["T"].type).name, node.op)

    def _multiply(self, node: Any, inputs: list[str]) -> Known:
        values = [self.of(given) for given in inputs]
        for one, other in (values, values[::-1]):
            if isinstance(one, Fixed) and one.value in (0, 1):
                return other if one.value == 1 else Fixed(0)
        raise NotRead("Mul multiplies ids")

    def _divide(self, node: Any, inputs: list[str]) -> Known:
        value, by = self.of(inputs[0]), self._divisor(node, inputs)
        (low, high) = self._range(value)
        if low // by == high // by:
            return Fixed(low // by)
        self._step(value, low, high, by)
        return Within(low // by, high // by, node.op)

    def _remainder(self, node: Any, inputs: list[str]) -> Known:
        value, by = self.of(inputs[0]), self._divisor(node, inputs)
        low, high = self._range(value)
        if isinstance(value, Hashed) and low == 0 and value.buckets <= by:
            return value
        if low // by == high // by:
            return self.shifted(value, -(low // by) * by)
        self._step(value, low, high, by)
        return Within(0, by - 1, node.op)

    def _divisor(self, node: Any, inputs: list[str]) -> int:
        by = self.of(inputs[1])
        if not isinstance(by, Fixed) or int(by.value) <= 0:
            raise NotRead(f"{node.op} divides ids by a number that is not positive")
        return int(by.value)

    def _step(self, value: Known, low: int, high: int, by: int) -> None:
        if isinstance(value, Shifted) and high // by - low // by <= _MOST_STEPS:
            raise Split((low // by + 1) * by - value.by)

    def _extreme(self, node: Any, inputs: list[str]) -> Known:
        is_largest = node.op == "Maximum"
        a, b = self.of(inputs[0]), self.of(inputs[1])
        if isinstance(a, Shifted) and isinstance(b, Shifted):
            return a if (a.by >= b.by) == is_largest else b
        (a_low, a_high), (b_low, b_high) = self._range(a), self._range(b)
        if a_low >= b_high:
            return a if is_largest else b
        if b_low >= a_high:
            return b if is_largest else a
        for one, other in ((a, b), (b, a)):
            if isinstance(one, Shifted) and isinstance(other, Fixed):
                raise Split(int(other.value) - one.by + (0 if self._range(one)[0] < int(other.value) else 1))
        pick = max if is_largest else min
        return Within(pick(a_low, b_low), pick(a_high, b_high), node.op)

    def _compare(self, node: Any, inputs: list[str]) -> Known:
        return self._compared(node.op, self.of(inputs[0]), self.of(inputs[1]))

    def _compared(self, op: str, a: Known, b: Known) -> Known:
        if op in ("Greater", "GreaterEqual"):
            return self._compared({"Greater": "Less", "GreaterEqual": "LessEqual"}[op], b, a)
        if op == "NotEqual":
            return Fixed(not self._equal(a, b))
        if op == "Equal":
            return Fixed(self._equal(a, b))
        return Fixed(self._less(a, b, or_equal=op == "LessEqual"))

    def _less(self, a: Known, b: Known, *, or_equal: bool) -> bool:
        if isinstance(a, Shifted) and isinstance(b, Shifted):
            return a.by <= b.by if or_equal else a.by < b.by
        if isinstance(b, Fixed):
            return self.is_below(a, int(b.value) + or_equal)
        if isinstance(a, Fixed):
            return not self.is_below(b, int(a.value) + (not or_equal))
        (a_low, a_high), (b_low, b_high) = self._range(a), self._range(b)
        if a_high < b_low or (or_equal and a_high == b_low):
            return True
        if a_low > b_high or (not or_equal and a_low == b_high):
            return False
        raise Split(self._middle())

    def _equal(self, a: Known, b: Known) -> bool:
        if isinstance(a, Fixed) and isinstance(b, Fixed):
            return bool(a.value == b.value)
        if isinstance(a, Fixed):
            a, b = b, a
        if isinstance(a, Shifted) and isinstance(b, Shifted):
            return a.by == b.by
        if not isinstance(b, Fixed):
            raise NotRead("two numbers that both depend on the id are compared")
        if isinstance(a, Text):
            if not DECIMAL.fullmatch(b.value):
                return False
            return self._equal(Shifted(), Fixed(int(b.value)))
        if self._keys is None and isinstance(a, Shifted):
            # All strings that the graph compares keys with are special keys, which this case leaves out.
            return False
        low, high = self._range(a)
        wanted = int(b.value)
        if not low <= wanted <= high:
            return False
        if low == high:
            return True
        if isinstance(a, Shifted):
            at = wanted - a.by
            raise Split(at if at > low - a.by else at + 1)
        raise Split(self._middle())

    def _logical(self, node: Any, inputs: list[str]) -> Known:
        first = self._truth(inputs[0])
        if node.op == "LogicalNot":
            return Fixed(not first)
        # The second input is asked only if the first does not decide, so that no interval is split in vain.
        return Fixed(first if first == (node.op == "LogicalOr") else self._truth(inputs[1]))

    def _truth(self, tensor: str) -> bool:
        value = self.of(tensor)
        if not isinstance(value, Fixed) or not isinstance(value.value, bool):
            raise NotRead("a condition on ids is not known")
        return value.value

    def _choose(self, node: Any, inputs: list[str]) -> Known:
        return self.of(inputs[1] if self._truth(inputs[0]) else inputs[2])

    def _text(self, node: Any, inputs: list[str]) -> Known:
        value = self.of(inputs[0])
        plain = (attribute(node, "width").i, attribute(node, "fill").s) == (-1, b"")
        if value != Shifted() or not plain or not tf.as_dtype(node.attr["T"].type).is_integer:
            raise NotRead("AsString writes something else than the key")
        return Text()

    def _hashed(self, node: Any, inputs: list[str]) -> Known:
        value = self.of(inputs[0])
        if isinstance(value, Text) or (self._keys is None and value == Shifted()):
            return Hashed(int(node.attr["num_buckets"].i))
        if isinstance(value, Fixed):
            return Fixed(int(tf.strings.to_hash_bucket_fast([value.value], int(node.attr["num_buckets"].i))[0]))
        raise NotRead("StringToHashBucketFast hashes something else than the key")

    def _find(self, node: Any, inputs: list[str]) -> Known:
        value, missing = self.of(inputs[1]), self.of(inputs[2])
        keys, values = self._graph.lookup_table(f"{node.name}:0")
        if isinstance(value, Fixed):
            if not isinstance(missing, Fixed):
                raise NotRead("a vocabulary's default depends on the key")
            return Fixed(found_in(keys, values, np.array(value.value, keys.dtype), np.array(missing.value)).item())
        if value not in (Shifted(), Text()):
            raise NotRead("a vocabulary is asked for something else than the key")
        return missing  # the vocabulary's own keys are special keys, which this case leaves out


_RULES: Mapping[str, Callable[[Evaluation, Any, list[str]], Known]] = {
    "Cast": Evaluation._cast,
    **dict.fromkeys(("Add", "AddV2", "Sub"), Evaluation._add),
    "Mul": Evaluation._multiply,
    "FloorDiv": Evaluation._divide,
    "FloorMod": Evaluation._remainder,
    **dict.fromkeys(("Maximum", "Minimum"), Evaluation._extreme),
    **dict.fromkeys(("Less", "LessEqual", "Greater", "GreaterEqual", "Equal", "NotEqual"), Evaluation._compare),
    **dict.fromkeys(("LogicalAnd", "LogicalOr", "LogicalNot"), Evaluation._logical),
    **dict.fromkeys(("Select", "SelectV2"), Evaluation._choose),
    "AsString": Evaluation._text,
    "StringToHashBucketFast": Evaluation._hashed,
    "LookupTableFindV2": Evaluation._find,
}


# Intervals of integer keys that are looked at before a description is given up: a graph that needs more maps ids to
# rows in a way that no description has.
_MOST_PIECES = 4000


@dataclass(slots=True)
class KeyFunction(KeyGraph):
    """The functions by which the tensors of one graph depend on a feature's key."""

    def special_keys(self, tensors: Sequence[str]) -> Array:
        """Returns the keys that the tensors may treat apart: vocabularies' keys, and what keys are compared with.

        For integer keys only those of vocabularies are returned: intervals end at all others.
        """
        found: list[Any] = [b""] if self.dtype == "string" else []
        for name in {part for tensor in tensors for part in self.parts(tensor)} - {self.source}:
            node = self.flat.nodes[node_of(name)]
            if node.op == "LookupTableFindV2":
                found += map(self._as_key, self.lookup_table(name)[0].reshape(-1).tolist())
            elif self.dtype == "string" and node.op in ("Equal", "NotEqual"):
                for given in self.flat.data_inputs(node.name):
                    if self.is_constant(given):
                        found += self.constant(given).reshape(-1).tolist()
        texts = sorted({key for key in found if isinstance(key, bytes if self.dtype == "string" else int)})
        return np.array([*texts, None], object)[:-1] if self.dtype == "string" else np.array(texts, np.int64)

    def _as_key(self, key: Any) -> Any:
        # A vocabulary of strings may be asked for the decimal text of an integer, which has no other form.
        is_text = self.dtype != "string" and isinstance(key, bytes) and DECIMAL.fullmatch(key)
        return int(key) if is_text and LIMITS[self.dtype][0] <= int(key) <= LIMITS[self.dtype][1] else key

    def pieces(self, look: Callable[[Evaluation], tuple[Known, ...]], starts: Sequence[int] = ()) -> list[Piece]:
        """Returns the values that `look` finds for all keys but the special ones, in intervals that are treated alike.

        Args:
          look: asks an Evaluation for values of tensors, and on which side of a bound they lie.
          starts: integers before which an interval ends in any case.

        Raises:
          NotRead: an op has no exact meaning here.
        """
        if self.dtype == "string":
            return [Piece(None, look(Evaluation(self, None)))]
        (least, most) = LIMITS[self.dtype]
        ends = sorted({least, *(start for start in starts if least < start <= most)})
        todo = [(low, high) for low, high in zip(ends, [*(end - 1 for end in ends[1:]), most], strict=True)]
        found: list[Piece] = []
        while todo:
            low, high = todo.pop()
            try:
                found.append(Piece((low, high), look(Evaluation(self, (low, high)))))
            except Split as split:
                if not low < split.at <= high:
                    raise NotRead("ids are mapped to rows in a way that is not known") from split
                todo += [(split.at, high), (low, split.at - 1)]
            if len(found) + len(todo) > _MOST_PIECES:
                raise NotRead(f"ids are mapped to rows in more than {_MOST_PIECES} steps")
        return found

    def at(self, tensor: str, keys: Array) -> Array:
        """Returns the values of a tensor for given keys, [N] each, computed with TensorFlow's kernels."""
        known: dict[str, Any] = {self.source: keys}

        def value(name: str) -> Any:
            if name not in known:
                if self.is_constant(name):
                    known[name] = self.constant(name).reshape(())
                else:
                    known[name] = self._computed(name, keys.size, value)
            return known[name]

        return np.broadcast_to(np.asarray(value(tensor)), keys.shape)

    def _computed(self, name: str, count: int, value: Callable[[str], Any]) -> Any:
        node, form = self.flat.nodes[node_of(name)], FORMS[self.flat.nodes[node_of(name)].op]
        if form.rule in ("same", "arranged", "moved", "distinct", "filled", "sparse", "parted"):
            return value(self.data(name)[0])
        if form.rule == "constant":
            return np.full(count, 1 if node.op == "OnesLike" else 0, np.asarray(value(self.data(name)[0])).dtype)
        if node.op == "LookupTableFindV2":
            inputs = self.flat.data_inputs(node.name)
            return found_in(*self.lookup_table(name), np.asarray(value(inputs[1])), np.asarray(value(inputs[2])))
        return _run_op(node, [value(given) for given in self.flat.data_inputs(node.name)]).numpy()


def _run_op(node: Any, inputs: list[Any]) -> Any:
    """Runs one op of a graph by itself, with the node's own attributes."""
    from tensorflow.python.eager import context, execute
    from tensorflow.python.framework import op_def_registry

    attributes: list[Any] = []
    for declared in op_def_registry.get(node.op).attr:
        value = attribute(node, declared.name)
        attributes += [declared.name, getattr(value, value.WhichOneof("value"))]
    given = [
        tf.constant(i.tolist(), tf.string) if i.dtype == object else tf.constant(i) for i in map(np.asarray, inputs)
    ]
    (found,) = execute.execute(node.op, 1, given, tuple(attributes), context.context())
    return found
