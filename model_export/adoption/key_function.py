"""Works out which row a graph reads for each key, from the graph's own arithmetic: exactly, for all keys at once.

Integer keys are treated in intervals. Within an interval a tensor is the key plus a number, a fixed value, a hash of
the key, or a number within known bounds. Where an op decides differently for two keys of an interval (a comparison, a
clip, a cast that wraps), the interval is split there, so that no key is skipped. String keys are treated as two cases:
the special keys (the vocabulary's, those that the graph compares with, and the empty string), which are computed one by
one with TensorFlow's own kernels, and all other keys, of which only the hash can matter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from model_export.adoption.forms import FORMS
from model_export.adoption.key_evaluation import Evaluation
from model_export.adoption.key_graph import DECIMAL, LIMITS, KeyGraph, Known, NotRead, Piece, Split, attribute, found_in
from model_export.tensorflow_setup import tf
from service.graph.flat_graph import node_of
from service.types import Array

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
