"""A lookup signature laid out for the Open Inference Protocol's binary tensors, read and written in place."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import orjson

from service.codecs.oip_models import SIGNATURE_PARAMETER
from service.core.shortcuts import Limits
from service.core.types import SignatureSpec
from service.direct import gather
from service.direct.answer_shape import AnswerShape, ShapeWriter
from service.direct.memory import address_of, unwritten_bytes
from service.direct.plan_rows import PlannedFeatures, plan_features
from service.direct.thread_state import ThreadState
from service.lookup.plan import SignaturePlan

# More sets of inputs and outputs, or numbers of rows, are not remembered.
_MAX_LAYOUTS = 256
_MAX_NAMES = 1 << 12


class BinaryRequest(NamedTuple):
    """An inference request whose tensors are all binary, both ways.

    data: the body; state: what was found in it, the inputs from row 1 on.
    sizes: SIZE of each row of what was found.
    names: of the inputs, in their order; outputs: those asked for, none means all.
    id: None where the client sent none.
    """

    data: bytes
    state: ThreadState
    sizes: tuple[int, ...]
    names: tuple[str, ...]
    outputs: tuple[str, ...]
    id: str | None


class BinaryAnswer(NamedTuple):
    """A body that is JSON first, and how much of it is JSON."""

    body: bytes
    header_length: int


@dataclass(frozen=True, slots=True)
class Layout:
    """What a request's inputs mean, by their order.

    by_rows: by the number of rows, the JSON of an answer without an id, and the answer.
    """

    features: PlannedFeatures
    plan_at: int
    by_rows: dict[int, tuple[bytes, AnswerShape]] = field(default_factory=dict)


class BinarySignature:
    """Answers requests for one signature of one model version in binary tensors. Concurrency: any thread.

    Args:
      plan: each output holds one feature alone.
    """

    def __init__(self, spec: SignatureSpec, plan: SignaturePlan, model: str, version: int) -> None:
        self._spec = spec
        self._plan = plan
        self._features = plan.plain_outputs
        self._max_rows = plan.max_rows
        # In the order in which codecs.oip_json writes them.
        self._head = orjson.dumps({"model_name": model, "model_version": str(version)})[:-1]
        self._layouts: dict[tuple[tuple[str, ...], tuple[str, ...]], Layout | None] = {}
        # By thread: where it counts.
        self._counts_at: dict[int, int] = {}

    def answer(self, request: BinaryRequest, limits: Limits) -> tuple[BinaryAnswer, int] | None:
        """Returns a body and its rows; see core.servable.Shortcut."""
        data, state, sizes, names, outputs, request_id = request
        layout = self._layout(names, outputs)
        if layout is None:
            return None
        rows = layout.features.rows(sizes)
        max_bytes, max_answer_bytes, _ = limits
        if rows <= 0 or rows * self._spec.row_bytes > max_bytes or (self._max_rows or rows) < rows:
            return None
        if rows * layout.features.row_bytes > max_answer_bytes:
            return None
        json, shape = self._of(layout, rows)
        # An id makes the JSON longer. It stands before the floats too, and is written over what has none.
        named = json if request_id is None else self._named(json, request_id)
        more = len(named) - len(json)
        body = unwritten_bytes(more + shape.size)
        address = address_of(body)
        scratch, scratch_at = state.scratch(len(data))
        done = gather.answer(
            address_of(data),
            state.found_at,
            layout.plan_at,
            layout.features.plan.shape[0],
            scratch_at,
            address + more,
            shape.address,
            rows,
            0,
            self._counts_at.get(state.thread) or self._new_counts(state.thread),
        )
        if done != gather.DONE:
            return None
        if more:
            ctypes.memmove(address, named, len(named))
        return BinaryAnswer(body, len(named)), rows

    def _named(self, json: bytes, request_id: str) -> bytes:
        return self._head + b',"id":' + orjson.dumps(request_id) + json[len(self._head) :]

    def _new_counts(self, thread: int) -> int:
        address = self._counts_at[thread] = self._plan.counts_of_thread().ctypes.data
        return address

    def _layout(self, names: tuple[str, ...], outputs: tuple[str, ...]) -> Layout | None:
        try:
            return self._layouts[names, outputs]
        except KeyError:
            layout = self._lay_out(names, outputs)
            if len(self._layouts) < _MAX_LAYOUTS and sum(map(len, names + outputs)) <= _MAX_NAMES:
                self._layouts[names, outputs] = layout
            return layout

    def _lay_out(self, names: tuple[str, ...], outputs: tuple[str, ...]) -> Layout | None:
        wanted = outputs or tuple(self._spec.outputs)
        if len(set(wanted)) != len(wanted) or not self._spec.outputs.keys() >= set(wanted):
            return None
        positions: Mapping[str, int] = {name: 1 + i for i, name in enumerate(names)}
        features = plan_features(self._spec, {name: self._features[name] for name in wanted}, positions)
        return None if features is None else Layout(features, features.plan.ctypes.data)

    def _of(self, layout: Layout, rows: int) -> tuple[bytes, AnswerShape]:
        known = layout.by_rows.get(rows)
        if known is not None:
            return known
        if len(layout.by_rows) >= _MAX_LAYOUTS:
            layout.by_rows.clear()
        described = [
            {
                "name": name,
                "datatype": "FP32",
                "shape": [rows, *shape],
                "parameters": {"binary_data_size": 4 * rows * math.prod(shape)},
            }
            for name, shape in layout.features.outputs
        ]
        tail = orjson.dumps({"parameters": {SIGNATURE_PARAMETER: self._spec.name}, "outputs": described})
        json = self._head + b"," + tail[1:]
        writer = ShapeWriter()
        writer.text(json)
        for feature, (_, shape) in enumerate(layout.features.outputs):
            writer.floats(feature, rows, math.prod(shape))
        layout.by_rows[rows] = (json, writer.shape())
        return layout.by_rows[rows]
