"""Finds tensors that only join or reshape looked-up rows: a run can be fed these tensors in place of the lookups.

A tensor has a value here if each of its rows consists of the bytes of some sources' rows, one behind the other.
Flatten, Squeeze and Reshape keep those bytes; so do concatenations and stacks along the first axis behind the batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple

from service.graph.flat_graph import FlatGraph, constant_of, node_of


class JoinedRows(NamedTuple):
    """The content of a fed tensor: the looked-up rows of one lookup, or of several lookups side by side.

    parts: the sources in their order.
    shape: shape of one row; None where it differs from request to request, which only a tensor of one source allows.
    """

    parts: tuple[str, ...]
    shape: tuple[int, ...] | None


def joined_rows(
    flat: FlatGraph,
    ends: Iterable[str],
    sources: Mapping[str, tuple[int, ...] | None],
    outputs: Collection[str],
    *,
    given: frozenset[str] = frozenset(),
    follow: Callable[[str], bool] = bool,
) -> dict[str, JoinedRows]:
    """Returns the fewest tensors that can be fed in place of all lookups; the rows of each lookup are in one of them.

    Args:
      ends: the tensors, and the nodes as "^name", that a session runs.
      sources: tensor -> shape of one of its rows; None if the shape differs between requests.
      outputs: tensors that are fetched; a fetched tensor can not be fed.
    """
    ends = list(ends)
    barred = {*outputs, *given}
    while True:
        values = _Values(flat, sources, barred)
        found = _first_met(flat, ends, values, given, follow)
        blocks = {value.parts for value in found.values()}
        # A tensor that joins the rows of several lookups is not fed if another fed tensor holds rows of one of these
        # lookups: the rows of each lookup are then fed alone, and the graph joins them.
        overlapping = {
            tensor
            for tensor, value in found.items()
            if len(value.parts) > 1 and any(set(value.parts) & set(other) for other in blocks - {value.parts})
        }
        if not overlapping:
            return found
        barred |= overlapping


def _first_met(
    flat: FlatGraph, ends: Iterable[str], values: _Values, given: frozenset[str], follow: Callable[[str], bool]
) -> dict[str, JoinedRows]:
    # The search starts at `ends`, the tensors that the session computes, and goes towards the graph's inputs, but not
    # past a tensor that only joins looked-up rows.
    found: dict[str, JoinedRows] = {}
    seen: set[str] = set()
    todo = list(ends)
    while todo:
        reference = todo.pop()
        if reference in seen or reference in given or (reference.startswith("^") and not follow(reference)):
            continue
        seen.add(reference)
        value = None if reference.startswith("^") else values.of(reference)
        if value is None:
            todo.extend(flat.nodes[node_of(reference)].input)
        else:
            found[reference] = value
    return found


class _Values:
    # _Values finds the lookups whose rows a tensor holds side by side (its JoinedRows), and caches the result for each
    # tensor.

    def __init__(self, flat: FlatGraph, sources: Mapping[str, tuple[int, ...] | None], barred: Collection[str]) -> None:
        self._flat = flat
        self._sources = sources
        self._barred = barred
        self._known: dict[str, JoinedRows | None] = {}

    def of(self, tensor: str) -> JoinedRows | None:
        if tensor in self._sources:
            return JoinedRows((tensor,), self._sources[tensor])
        if tensor not in self._known:
            # None is cached before the tensor's inputs are examined: a tensor in a loop of the graph depends on itself,
            # and the recursion ends at this None.
            self._known[tensor] = None
            found = None if tensor in self._barred else self._worked_out(tensor)
            self._known[tensor] = None if found is None or len(set(found.parts)) < len(found.parts) else found
        return self._known[tensor]

    def _worked_out(self, tensor: str) -> JoinedRows | None:
        node = self._flat.nodes[node_of(tensor)]
        work_out = _OPS.get(node.op)
        if work_out is None or any(i.startswith("^") for i in node.input):
            return None
        return work_out(self, node, self._flat.data_inputs(node.name))

    def shaped(self, tensors: Iterable[str]) -> list[tuple[tuple[str, ...], tuple[int, ...]]] | None:
        """Returns, for each tensor, the sources whose rows the tensor joins, and the shape of its rows.

        Returns None if one of the tensors does not hold joined rows.
        """
        found = []
        for tensor in tensors:
            value = self.of(tensor)
            if value is None or value.shape is None:
                return None
            found.append((value.parts, value.shape))
        return found

    def numbers(self, tensor: str) -> list[int] | None:
        node = self._flat.nodes[node_of(tensor)]
        if node.op != "Const":
            return None
        return [int(number) for number in constant_of(node).reshape(-1)]

    def sizes(self, tensor: str, parts: tuple[str, ...]) -> list[int] | None:
        """Returns the target sizes of a Reshape without its first size, the batch size.

        Returns None if the first size is not the batch size of the given sources, or another size is no constant.
        """
        numbers = self.numbers(tensor)
        if numbers is not None:
            return numbers[1:] if numbers[:1] == [-1] and min(numbers[1:], default=0) > 0 else None
        node = self._flat.nodes[node_of(tensor)]
        if node.op != "Pack":
            return None
        first, *others = self._flat.data_inputs(node.name)
        if not self._is_batch(first, parts) and self.numbers(first) != [-1]:
            return None
        behind = [self.numbers(other) for other in others]
        sizes = [number for numbers in behind for number in numbers or ()]
        # If a Reshape's batch size is computed, one of its other sizes may be -1: _reshaped() replaces the -1 by the
        # size that the width of a row leaves.
        return sizes if len(sizes) == len(others) else None

    def _is_batch(self, tensor: str, parts: tuple[str, ...]) -> bool:
        # A Reshape's batch size must come from tf.shape(x)[0] of a tensor x that joins rows of the same lookups: other
        # lookups may have another number of rows.
        flat = self._flat
        node = flat.nodes[node_of(tensor)]
        if node.op != "StridedSlice" or not node.attr["shrink_axis_mask"].i & 1:
            return False
        shape, begin = flat.data_inputs(node.name)[:2]
        if self.numbers(begin) != [0] or flat.nodes[node_of(shape)].op != "Shape":
            return False
        value = self.of(flat.data_inputs(node_of(shape))[0])
        return value is not None and value.shape is not None and value.parts == parts


def _same(values: _Values, node: Any, inputs: list[str]) -> JoinedRows | None:
    return values.of(inputs[0])


def _reshaped(values: _Values, node: Any, inputs: list[str]) -> JoinedRows | None:
    value = values.of(inputs[0])
    if value is None or value.shape is None or (sizes := values.sizes(inputs[1], value.parts)) is None:
        return None
    width = math.prod(value.shape)
    if sizes.count(-1) == 1:
        known = -math.prod(sizes)
        sizes = [width // max(known, 1) if size == -1 else size for size in sizes]
    return JoinedRows(value.parts, tuple(sizes)) if math.prod(sizes) == width and min(sizes, default=1) > 0 else None


def _squeezed(values: _Values, node: Any, inputs: list[str]) -> JoinedRows | None:
    value = values.of(inputs[0])
    if value is None or value.shape is None:
        return None
    rank = 1 + len(value.shape)
    dropped = {axis % rank for axis in node.attr["squeeze_dims"].list.i}
    # A Squeeze without axes, or of the first axis, is refused: it would remove the batch axis of a batch with one row.
    if not dropped or 0 in dropped or any(value.shape[axis - 1] != 1 for axis in dropped):
        return None
    return JoinedRows(value.parts, tuple(s for axis, s in enumerate(value.shape, 1) if axis not in dropped))


def _expanded(values: _Values, node: Any, inputs: list[str]) -> JoinedRows | None:
    value, axis = values.of(inputs[0]), values.numbers(inputs[1])
    if value is None or value.shape is None or axis is None or len(axis) != 1:
        return None
    place = axis[0] % (2 + len(value.shape)) - 1
    return None if place < 0 else JoinedRows(value.parts, (*value.shape[:place], 1, *value.shape[place:]))


def _concatenated(values: _Values, node: Any, inputs: list[str]) -> JoinedRows | None:
    found, axis = values.shaped(inputs[:-1]), values.numbers(inputs[-1])
    if not found or axis is None or len(axis) != 1:
        return None
    rank = 1 + len(found[0][1])
    place = axis[0] % rank - 1
    if not _lie_side_by_side([shape for _, shape in found], place):
        return None
    rests = {(*shape[:place], *shape[place + 1 :]) for _, shape in found}
    if len(rests) != 1:
        return None
    size = sum(shape[place] for _, shape in found)
    first = found[0][1]
    return JoinedRows(_all_parts(found), (*first[:place], size, *first[place + 1 :]))


def _stacked(values: _Values, node: Any, inputs: list[str]) -> JoinedRows | None:
    found = values.shaped(inputs)
    if not found:
        return None
    shapes = [shape for _, shape in found]
    place = node.attr["axis"].i % (2 + len(shapes[0])) - 1
    if len(set(shapes)) != 1 or not _lie_side_by_side(shapes, place):
        return None
    return JoinedRows(_all_parts(found), (*shapes[0][:place], len(shapes), *shapes[0][place:]))


def _lie_side_by_side(shapes: Collection[tuple[int, ...]], place: int) -> bool:
    # Looked-up rows lie side by side in a joined tensor only if all sizes between the batch axis and the joined axis
    # are 1. Along the batch axis they would lie below each other, and behind a larger axis they would alternate.
    return place >= 0 and all(len(shape) >= place and math.prod(shape[:place]) == 1 for shape in shapes)


def _all_parts(found: Iterable[tuple[tuple[str, ...], tuple[int, ...]]]) -> tuple[str, ...]:
    return tuple(part for parts, _ in found for part in parts)


_OPS: Mapping[str, Callable[[_Values, Any, list[str]], JoinedRows | None]] = {
    "Identity": _same,
    "Reshape": _reshaped,
    "Squeeze": _squeezed,
    "ExpandDims": _expanded,
    "ConcatV2": _concatenated,
    "Pack": _stacked,
}
