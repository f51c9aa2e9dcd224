"""A lookup signature laid out for requests that name a certain set of inputs, and for answers of a certain size."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from service.codecs.framed_answer import Cut, Envelope, Framed
from service.codecs.predict_proto import encode_model_spec
from service.codecs.tensor_proto import tensor_head
from service.codecs.wire import tag, varint
from service.core.shortcuts import Limits
from service.core.types import Array, SignatureSpec
from service.direct import gather
from service.direct.answer_shape import AnswerShape, FramedShapeWriter, Parts, ShapeWriter
from service.direct.memory import BYTES_AT, unwritten_bytes
from service.direct.plan_rows import PlannedFeatures, plan_features
from service.direct.scan import COLUMNS, FLOAT, SIZE, fields_of
from service.direct.thread_state import PACK_JOB, Round, ThreadState
from service.lookup.plan import FeaturePlan, SignaturePlan

_FLOAT_VAL, _TENSOR_CONTENT = 5, 4
# More than this is not remembered, lest a client fills the memory by asking for all sizes of answers.
_MAX_SHAPES = 1024
_MAX_PARTS = 1 << 15
_MAX_LAYOUTS = 256


# So many rows, in tensor_content or not, framed or not.
ShapeKey = tuple[int, bool, Envelope | None]


class Shapes(dict[ShapeKey, AnswerShape]):
    """The shapes of a layout's answers that were asked for. Concurrency: any thread."""

    __slots__ = ("_num_parts",)

    def __init__(self) -> None:
        self._num_parts = 0

    def keep(self, key: ShapeKey, shape: AnswerShape) -> None:
        """Keeps a shape, and forgets others where there are too many."""
        if len(self) >= _MAX_SHAPES or self._num_parts >= _MAX_PARTS:
            self.clear()
            self._num_parts = 0
        self[key] = shape
        self._num_parts += shape.num_parts


@dataclass(frozen=True, slots=True)
class Layout:
    """What the inputs of a request mean, by their order.

    plan: [F, gather.COLUMNS] int64.
    outputs: of each feature, its name and the shape of one row.
    answers: of each output of the answer, its name, the shape of one row, and the features side by side in it.
    plan_at, num_features: the plan's address, and F.
    row_bytes: of one row of all features.
    rows_at, rows_extra: where in what scan found the size of an input stands that counts rows, and how many entries it
      has more than there are rows.
    """

    plan: Array
    outputs: tuple[tuple[str, tuple[int, ...]], ...]
    row_bytes: int
    answers: tuple[tuple[str, tuple[int, ...], Parts], ...] = ()
    shapes: Shapes = field(default_factory=Shapes)
    plan_at: int = field(init=False)
    num_features: int = field(init=False)
    rows_at: int = field(init=False)
    rows_extra: int = field(init=False)

    def __post_init__(self) -> None:
        first = self.plan[0].tolist()
        is_ragged = first[gather.SPLITS_INPUT] >= 0
        counting = first[gather.SPLITS_INPUT if is_ragged else gather.IDS_INPUT]
        object.__setattr__(self, "plan_at", self.plan.ctypes.data)
        object.__setattr__(self, "num_features", len(self.plan))
        object.__setattr__(self, "rows_at", counting * COLUMNS + SIZE)
        object.__setattr__(self, "rows_extra", int(is_ragged))

    def lay_out(self, rows: int, tail: bytes, *, as_content: bool, envelope: Envelope | None) -> AnswerShape:
        """Lays the answer of so many rows out, and keeps that in shapes.

        Args:
          tail: behind its tensors.
          as_content: floats are in tensor_content, else in float_val.
          envelope: what stands around the answer in frames; None: it is a message and no frames, as it is anyway
            where a row is larger than a frame.
        """
        shape = self._written_down(rows, tail, as_content=as_content, envelope=envelope)
        self.shapes.keep((rows, as_content, envelope), shape)
        return shape

    def _written_down(self, rows: int, tail: bytes, *, as_content: bool, envelope: Envelope | None) -> AnswerShape:
        values = _TENSOR_CONTENT if as_content else _FLOAT_VAL
        heads, widths, size = [], [], len(tail)
        for name, row_shape, _ in self.answers:
            widths.append(math.prod(row_shape))
            num_bytes = 4 * rows * widths[-1]
            tensor = tensor_head(FLOAT, (rows, *row_shape)) + _head(values, num_bytes)
            entry = _field(1, name.encode()) + _head(2, len(tensor) + num_bytes) + tensor
            # outputs = 1 is a map: each entry is a message {key = 1, value = 2}.
            heads.append(_head(1, len(entry) + num_bytes) + entry)
            size += len(heads[-1]) + num_bytes
        is_framed = envelope is not None and all(map(FramedShapeWriter.takes, widths))
        writer = FramedShapeWriter(envelope, size) if envelope is not None and is_framed else ShapeWriter()
        for head, (_, _, parts) in zip(heads, self.answers, strict=True):
            writer.text(head)
            writer.joined(parts, rows)
        writer.text(tail)
        return writer.shape()


class Layouts:
    """The layouts of a signature by the skeleton of a request, made when first asked for. Concurrency: any thread.

    Args:
      features: by name.
      outputs: in the order of answers, the features side by side in each; none where nobody asks for answers.
      needs_all: whether a request must hold every feature.
    """

    def __init__(
        self,
        spec: SignatureSpec,
        features: Mapping[str, FeaturePlan],
        outputs: Mapping[str, Sequence[str]] | None = None,
        *,
        needs_all: bool = False,
    ) -> None:
        self._spec = spec
        self._features = features
        self._outputs = outputs
        self._needs_all = needs_all
        self._made: dict[bytes, Layout | None] = {}

    def of(self, skeleton: bytes) -> Layout | None:
        """Returns what such a request means; None where it takes the general path."""
        try:
            return self._made[skeleton]
        except KeyError:
            layout = self._make(fields_of(skeleton)[1:])
            if len(self._made) < _MAX_LAYOUTS:
                self._made[skeleton] = layout
            return layout

    def _make(self, names: list[bytes]) -> Layout | None:
        positions = {name.decode("utf-8", "replace"): 1 + i for i, name in enumerate(names)}
        if len(positions) != len(names):
            return None
        planned = plan_features(self._spec, self._features, positions)
        if planned is None or (self._needs_all and len(planned.outputs) != len(self._features)):
            return None
        answers = () if self._outputs is None else _answers(planned, self._outputs)
        return None if answers is None else Layout(planned.plan, planned.outputs, planned.row_bytes, answers)


def _answers(
    planned: PlannedFeatures, outputs: Mapping[str, Sequence[str]]
) -> tuple[tuple[str, tuple[int, ...], Parts], ...] | None:
    """Returns what each output holds whose features were all sent; None where a feature is not in just one of them."""
    rows = {name: (row, shape) for row, (name, shape) in enumerate(planned.outputs)}
    found = []
    used: list[str] = []
    for output, names in outputs.items():
        if not rows.keys() >= set(names):
            continue
        parts = [(rows[name][0], math.prod(rows[name][1])) for name in names]
        shape = rows[names[0]][1] if len(parts) == 1 else (sum(width for _, width in parts),)
        if len(parts) > 1 and any(len(rows[name][1]) > 1 for name in names):
            return None
        used += names
        found.append((output, shape, parts))
    return tuple(found) if sorted(used) == sorted(rows) else None


# What a PredictRequest is once scan has read it: its bytes, their skeleton, the thread's state, which holds what was
# found, whether floats are to travel in tensor_content or in float_val, and what stands around the answer's frames and
# their stream, or None and 0 for a message. A plain tuple, for each request makes one.
PlainRequest = tuple[bytes, bytes, ThreadState, bool, Envelope | None, int]


# A lookup that is begun: how many bytes it writes, which they are, where they are cut, the answer's rows, whose lookup
# it is, its round and its number there.
BegunLookup = tuple[int, bytes, Cut | None, int, ThreadState, Round, int]


class DirectSignature:
    """Answers requests for one signature of one model version in bytes. Concurrency: any thread."""

    def __init__(self, spec: SignatureSpec, plan: SignaturePlan, model: str, version: int) -> None:
        self._spec = spec
        self._plan = plan
        outputs = {name: plan.outputs[name].parts for name in spec.outputs}
        self._max_rows = plan.max_rows
        self._tail = _field(2, encode_model_spec(model, version, spec.name))
        self._layouts = Layouts(spec, plan.features, outputs)
        # By thread: where it counts.
        self._counts_at: dict[int, int] = {}

    def answer(self, request: PlainRequest, limits: Limits) -> tuple[bytes | Framed, int] | None:
        """Returns a serialized PredictResponse, or its frames, and its rows; see core.shortcuts.Shortcut."""
        begun = self.begin(request, limits)
        return None if begun is None else self.finish(begun)

    def begin(self, request: PlainRequest, limits: Limits) -> BegunLookup | None:
        """Reads how large the answer is; see core.shortcuts.StagedShortcut."""
        data, skeleton, state, as_content, envelope, stream_id = request
        layout = self._layouts.of(skeleton)
        if layout is None:
            return None
        rows = state.found[layout.rows_at] - layout.rows_extra
        max_bytes, max_answer_bytes, _ = limits
        if rows <= 0 or rows * self._spec.row_bytes > max_bytes or (self._max_rows or rows) < rows:
            return None
        if rows * layout.row_bytes > max_answer_bytes:
            return None
        shape = layout.shapes.get((rows, as_content, envelope))
        if shape is None:
            shape = layout.lay_out(rows, self._tail, as_content=as_content, envelope=envelope)
        answer = unwritten_bytes(shape.size)
        scratch, scratch_at = state.scratch(len(data))
        PACK_JOB(
            state.jobs,
            state.job_at,
            id(data) + BYTES_AT,
            state.found_at,
            layout.plan_at,
            layout.num_features,
            scratch_at,
            id(answer) + BYTES_AT,
            shape.address,
            rows,
            stream_id,
            self._counts_at.get(state.thread) or self._new_counts(state.thread),
        )
        of_round, number = state.look_up_later((data, answer, layout, shape, scratch))
        return shape.size, answer, shape.cut, rows, state, of_round, number

    def finish(self, begun: BegunLookup) -> tuple[bytes | Framed, int] | None:
        """Returns what answer does; see core.shortcuts.StagedShortcut."""
        _, answer, cut, rows, state, are_done, number = begun
        if not are_done:
            state.look_up()
        if not are_done[number]:
            return None
        return answer if cut is None else (answer, cut), rows

    def _new_counts(self, thread: int) -> int:
        address = self._counts_at[thread] = self._plan.counts_of_thread().ctypes.data
        return address


def _head(number: int, length: int) -> bytes:
    return tag(number, 2) + varint(length)


def _field(number: int, data: bytes) -> bytes:
    return _head(number, len(data)) + data
