"""A lookup signature laid out for requests that name a certain set of inputs, and for answers of a certain size."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from service.codecs.predict_proto import encode_model_spec
from service.codecs.tensor_proto import tensor_head
from service.codecs.wire import tag, varint
from service.core.types import Array, SignatureSpec
from service.direct import gather
from service.direct.memory import address_of, unwritten_bytes
from service.direct.scan import MAX_INPUTS, SIZE
from service.lookup.plan import COMBINERS, POLICIES, FeaturePlan, SignaturePlan

_FLOAT, _INT32, _INT64 = 1, 3, 9
_NUMBERS = {"int32": _INT32, "int64": _INT64}
_FLOAT_VAL, _TENSOR_CONTENT = 5, 4
# More sizes of answers than this are not remembered, lest a client fills the memory by asking for all of them.
_MAX_SHAPES = 256
_SCRATCH_INTS = 1 << 16


@dataclass(frozen=True, slots=True)
class Shape:
    """An answer of so many rows, but for its floats.

    template: what it consists of beside them.
    pieces: [F + 1, gather.PIECE_COLUMNS] int64, where that goes, and where floats begin.
    """

    size: int
    template: bytes
    pieces: Array


@dataclass(frozen=True, slots=True)
class Layout:
    """What the inputs of a request mean, by their order.

    plan: [F, gather.COLUMNS] int64.
    row_inputs: of each feature, the input that counts rows and how many entries it has more than there are rows.
    outputs: of each feature, its name and the shape of one row.
    """

    plan: Array
    row_inputs: tuple[tuple[int, int], ...]
    outputs: tuple[tuple[str, tuple[int, ...]], ...]
    shapes: dict[tuple[int, bool], Shape] = field(default_factory=dict)

    def shape(self, rows: int, tail: bytes, *, as_content: bool) -> Shape:
        """Returns the answer of so many rows."""
        shape = self.shapes.get((rows, as_content))
        if shape is None:
            if len(self.shapes) >= _MAX_SHAPES:
                self.shapes.clear()
            shape = self.shapes[rows, as_content] = self._lay_out_answer(rows, tail, as_content=as_content)
        return shape

    def _lay_out_answer(self, rows: int, tail: bytes, *, as_content: bool) -> Shape:
        template, size = bytearray(), 0
        pieces = np.zeros((len(self.outputs) + 1, gather.PIECE_COLUMNS), np.int64)
        values = _TENSOR_CONTENT if as_content else _FLOAT_VAL
        for row, (name, row_shape) in zip(pieces, self.outputs, strict=False):
            num_bytes = 4 * rows * math.prod(row_shape)
            tensor = tensor_head(_FLOAT, (rows, *row_shape)) + _head(values, num_bytes)
            entry = _field(1, name.encode()) + _head(2, len(tensor) + num_bytes) + tensor
            # outputs = 1 is a map: each entry is a message {key = 1, value = 2}.
            piece = _head(1, len(entry) + num_bytes) + entry
            row[:] = len(template), len(piece), size, size + len(piece)
            template += piece
            size += len(piece) + num_bytes
        pieces[-1, :3] = len(template), len(tail), size
        return Shape(size + len(tail), bytes(template + tail), pieces)


class _Scratch(threading.local):
    def __init__(self) -> None:
        self.ints = np.empty(_SCRATCH_INTS, np.int64)


_scratch = _Scratch()


class PlainRequest(NamedTuple):
    """A PredictRequest as direct.scan reads it.

    data: its bytes.
    found: [1 + MAX_INPUTS, COLUMNS] int64, what scan found in them.
    names: of its inputs, in their order.
    as_content: floats are to travel in tensor_content, else in float_val.
    """

    data: bytes
    found: Array
    names: tuple[bytes, ...]
    as_content: bool


class DirectSignature:
    """Answers requests for one signature of one model version in bytes. Concurrency: any thread."""

    def __init__(self, spec: SignatureSpec, plan: SignaturePlan, model: str, version: int) -> None:
        self._spec = spec
        self._plan = plan
        # By output, in the order of answers.
        self._features = {name: plan.features[name] for name in spec.outputs}
        limits = [feature.max_rows for feature in plan.features.values() if feature.max_rows is not None]
        self._max_rows = min(limits, default=None)
        self._tail = _field(2, encode_model_spec(model, version, spec.name))
        self._layouts: dict[tuple[bytes, ...], Layout | None] = {}

    def answer(self, request: PlainRequest, max_bytes: int) -> tuple[bytes, int] | None:
        """Returns a serialized PredictResponse and its rows; see core.servable.Shortcut."""
        data, found, names, as_content = request
        layout = self._layout(names)
        if layout is None:
            return None
        rows = -1
        for position, extra in layout.row_inputs:
            size = int(found[position, SIZE]) - extra
            if rows not in (-1, size):
                return None
            rows = size
        if rows <= 0 or rows * self._spec.row_bytes > max_bytes or (self._max_rows or rows) < rows:
            return None
        shape = layout.shape(rows, self._tail, as_content=as_content)
        answer, address = unwritten_bytes(shape.size)
        scratch = _scratch.ints if len(data) <= _SCRATCH_INTS else np.empty(len(data), np.int64)
        done = gather.answer(
            address_of(data),
            found,
            layout.plan,
            scratch,
            address,
            address_of(shape.template),
            shape.pieces,
            rows,
            self._plan.counts_of_thread(),
        )
        return (answer, rows) if done == gather.DONE else None

    def _layout(self, names: tuple[bytes, ...]) -> Layout | None:
        try:
            return self._layouts[names]
        except KeyError:
            layout = self._lay_out(names)
            if len(self._layouts) < _MAX_SHAPES:
                self._layouts[names] = layout
            return layout

    def _lay_out(self, names: tuple[bytes, ...]) -> Layout | None:
        positions = {name.decode("utf-8", "replace"): 1 + i for i, name in enumerate(names)}
        if len(positions) != len(names) or not self._spec.required <= positions.keys():
            return None
        used: set[str] = set()
        plan, row_inputs, outputs = [], [], []
        for output, feature in self._features.items():
            lookup = feature.feature
            inputs = [name for name in (lookup.ids, lookup.row_splits, lookup.weights) if name in positions]
            if not inputs:
                continue
            if lookup.ids not in positions or (lookup.row_splits or lookup.ids) not in positions:
                return None
            if self._spec.inputs[lookup.ids].takes_keys:
                # Its integers are keys of a vocabulary, not rows.
                return None
            used.update(name for name in inputs if name is not None)
            plan.append(plan_row(feature, self._spec, positions))
            row_inputs.append((positions[lookup.row_splits], 1) if lookup.row_splits else (positions[lookup.ids], 0))
            dim = feature.table.weights.shape[1]
            length = lookup.max_sequence_length
            outputs.append((output, (dim,) if length is None else (length, dim)))
        if not 0 < len(plan) <= MAX_INPUTS or used != positions.keys():
            return None
        return Layout(np.array(plan, np.int64), tuple(row_inputs), tuple(outputs))


def plan_row(feature: FeaturePlan, spec: SignatureSpec, positions: Mapping[str, int]) -> list[int]:
    """Returns [gather.COLUMNS] of a feature whose inputs are at these positions of what was found in a request."""
    lookup, weights = feature.feature, feature.table.weights
    row = [-1] * gather.COLUMNS
    row[gather.IDS_INPUT] = positions[lookup.ids]
    row[gather.IDS_DTYPE] = _NUMBERS.get(spec.inputs[lookup.ids].dtype, -1)
    if lookup.row_splits is not None:
        row[gather.SPLITS_INPUT] = positions[lookup.row_splits]
        row[gather.SPLITS_DTYPE] = _NUMBERS[spec.inputs[lookup.row_splits].dtype]
    if lookup.weights is not None and lookup.weights in positions:
        row[gather.WEIGHTS_INPUT] = positions[lookup.weights]
    row[gather.TABLE_AT] = weights.ctypes.data
    row[gather.VOCABULARY_SIZE], row[gather.DIM] = weights.shape
    row[gather.POLICY] = POLICIES[lookup.on_bad_id]
    row[gather.DEFAULT_ROW] = lookup.default_row
    row[gather.COMBINER] = COMBINERS[lookup.combiner or "sum"]
    row[gather.AT_LEAST_ONE] = lookup.mean_divisor == "at_least_one"
    row[gather.POSITIVE_ONLY] = lookup.on_nonpositive_weight == "drop"
    row[gather.MAX_IDS] = lookup.max_ids_per_row or 0
    row[gather.IS_TRUNCATED] = lookup.on_too_many_ids == "truncate"
    row[gather.LENGTH] = lookup.max_sequence_length or 0
    row[gather.POSITION] = feature.position
    return row


def _head(number: int, length: int) -> bytes:
    return tag(number, 2) + varint(length)


def _field(number: int, data: bytes) -> bytes:
    return _head(number, len(data)) + data
