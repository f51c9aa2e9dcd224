"""A lookup signature laid out for JSON bodies that name a certain set of inputs, and for the text of its answers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import orjson

from service.core.shortcuts import Limits
from service.core.types import Array, SignatureSpec
from service.direct import float_text, gather, json_text
from service.direct.answer_shape import AnswerShape, ShapeWriter
from service.direct.json_scan import FEATURES, INSTANCES
from service.direct.plan_rows import PlannedFeatures, plan_features
from service.direct.scan import COLUMNS, INT64, SIZE
from service.direct.scratch import Buffer, Scratch, buffer_of
from service.direct.thread_state import ThreadState
from service.lookup.plan import SignaturePlan

# More sets of inputs, or numbers of rows, are not remembered, lest a client fills the memory by asking for all of them.
_MAX_LAYOUTS = 256
# Brackets and commas around a vector, and around the vectors of a row.
_AROUND = 4
# A member of the object of ids: its name, and whether its rows are lists.
Member = tuple[bytes, bool]

# Of an answer: counts, floats and then text, for three buffers take three times as long to find.
_memory = Scratch("u1")


class BodyShape(NamedTuple):
    """What requests of one kind have in common.

    form: FEATURES, INPUTS or INSTANCES.
    members: of the object of ids, in their order.
    """

    form: int
    signature_name: str
    members: tuple[Member, ...]


class JsonRequest(NamedTuple):
    """A body as direct.json_scan reads it.

    state, ints: where what scan found is.
    rows: of each member, 0 where they differ.
    is_wide: an integer does not fit int32.
    key: what requests of one kind have in common, shape: what that is.
    """

    state: ThreadState
    ints: Buffer
    rows: int
    is_wide: bool
    key: bytes
    shape: BodyShape


@dataclass(frozen=True, slots=True)
class Layout:
    """What a body's members mean, by their order, and what its answer looks like.

    is_narrow: an id must fit int32.
    has_parts: row splits come by themselves, so that members do not tell how many rows there are.
    texts, texts_at: all text of an answer, and its address.
    parts: [F + MORE_PARTS, json_text.PART_COLUMNS] int64, but for where floats are.
    row_floats: of each feature, in one row.
    row_chars: what one row takes at most.
    by_rows: parts, and all floats as direct.gather writes them, by the number of rows.
    """

    features: PlannedFeatures
    plan_at: int
    num_features: int
    is_narrow: bool
    has_parts: bool
    is_by_row: bool
    texts: Array
    texts_at: int
    parts: Array
    row_floats: tuple[int, ...]
    row_chars: int
    by_rows: dict[int, tuple[Buffer, AnswerShape]] = field(default_factory=dict)

    def of(self, rows: int) -> tuple[Buffer, AnswerShape]:
        """Returns what by_rows says of a number of rows."""
        known = self.by_rows.get(rows)
        if known is not None:
            return known
        if len(self.by_rows) >= _MAX_LAYOUTS:
            self.by_rows.clear()
        parts = self.parts.copy()
        writer = ShapeWriter()
        for f, count in enumerate(self.row_floats):
            parts[f, json_text.FLOATS_AT] = writer.size
            writer.floats(f, rows, count)
        self.by_rows[rows] = (buffer_of(parts), writer.shape())
        return self.by_rows[rows]


class JsonSignature:
    """Answers requests for one signature of one model version in JSON. Concurrency: any thread.

    Args:
      plan: each output holds one feature alone.
    """

    def __init__(self, spec: SignatureSpec, plan: SignaturePlan) -> None:
        self._spec = spec
        self._plan = plan
        # By output, in the order of answers.
        self._features = {name: plan.plain_outputs[name] for name in spec.outputs}
        self._max_rows = plan.max_rows
        self._layouts: dict[bytes, Layout | None] = {}
        # By thread: where it counts.
        self._counts_at: dict[int, int] = {}
        self._num_counts = 2 * len(plan.features)

    def answer(self, request: JsonRequest, limits: Limits) -> tuple[bytes, int] | None:
        """Returns a body and its rows; see core.servable.Shortcut."""
        state, ints, rows, is_wide, key, shape = request
        try:
            layout = self._layouts[key]
        except KeyError:
            layout = self._lay_out(shape)
            if len(self._layouts) < _MAX_LAYOUTS:
                self._layouts[key] = layout
        if layout is None or (layout.is_narrow and is_wide):
            return None
        if layout.has_parts:
            rows = layout.features.rows(state.found[SIZE::COLUMNS])
        max_bytes, max_answer_bytes, _ = limits
        if rows <= 0 or rows * self._spec.row_bytes > max_bytes or (self._max_rows or rows) < rows:
            return None
        if rows * layout.features.row_bytes > max_answer_bytes:
            return None
        parts, floats = layout.of(rows)
        num_chars = rows * layout.row_chars + layout.texts.shape[0] + float_text.SLACK
        floats_from = 8 * self._num_counts
        text_from = floats_from + floats.size
        memory = _memory.of(text_from + num_chars)
        counts_at = memory.address
        scratch, scratch_at = state.scratch(ints.array.shape[0])
        length = json_text.answer(
            ints.address,
            state.found_at,
            layout.plan_at,
            layout.num_features,
            scratch_at,
            counts_at + floats_from,
            floats.address,
            parts.address,
            layout.texts_at,
            rows,
            counts_at + text_from,
            layout.is_by_row,
            counts_at,
            self._counts_at.get(state.thread) or self._new_counts(state.thread),
            self._num_counts,
        )
        return (memory.bytes(text_from, length), rows) if length >= 0 else None

    def _new_counts(self, thread: int) -> int:
        address = self._counts_at[thread] = self._plan.counts_of_thread().ctypes.data
        return address

    def _lay_out(self, shape: BodyShape) -> Layout | None:
        form, members = shape.form, shape.members
        positions = _positions(self._spec, form, members)
        features = None if positions is None else plan_features(self._spec, self._features, positions)
        if positions is None or features is None:
            return None
        # Every integer of a body is read into 64 bits.
        features.plan[:, [gather.IDS_DTYPE, gather.SPLITS_DTYPE]] = INT64
        texts, parts, is_by_row = _texts(features, form)
        shapes = [row for _, row in features.outputs]
        chars = [math.prod(row) * float_text.MAX_CHARS + (math.prod(row[:-1]) + 1) * _AROUND for row in shapes]
        characters = np.frombuffer(texts, np.uint8)
        return Layout(
            features=features,
            plan_at=features.plan.ctypes.data,
            num_features=features.plan.shape[0],
            is_narrow=any(self._spec.inputs[name].dtype != "int64" for name in positions),
            has_parts=any(extra and position % 2 for position, extra in features.row_inputs),
            is_by_row=is_by_row,
            texts=characters,
            texts_at=characters.ctypes.data,
            parts=parts,
            row_floats=tuple(math.prod(row) for row in shapes),
            row_chars=sum(chars) + (len(texts) if is_by_row else 0),
        )


def _positions(spec: SignatureSpec, form: int, members: tuple[Member, ...]) -> Mapping[str, int] | None:
    """Returns where a scan describes each input; None where the general path must say what a member means."""
    positions: dict[str, int] = {}
    parts = {part for names in spec.ragged_names for part in names[1:]}
    for member, (raw, is_ragged) in enumerate(members):
        name, row = raw.decode(), 1 + 2 * member
        if not is_ragged:
            tensor = spec.inputs.get(name)
            if tensor is None or tensor.dtype not in ("int64", "int32"):
                return None
            if name in parts and form in (FEATURES, INSTANCES):
                return None
            sent = {name: row}
        elif (names := spec.ragged.get(name)) is not None:
            sent = {names.values: row, names.row_splits: row + 1}
        else:
            return None
        if not positions.keys().isdisjoint(sent):
            return None
        positions |= sent
    return positions


def _texts(features: PlannedFeatures, form: int) -> tuple[bytes, Array, bool]:
    """Returns all text of an answer beside its floats, what of it goes where, and whether rows stand together."""
    names = [orjson.dumps(name) + b":" for name, _ in features.outputs]
    is_bare = len(names) == 1 and form != FEATURES
    is_by_row = form == INSTANCES and not is_bare
    key = {FEATURES: b'{"embeddings":', INSTANCES: b'{"predictions":'}.get(form, b'{"outputs":')
    if is_bare:
        texts = [b"", key, b"", b"}"]
    else:
        before = [b"{" + names[0] if is_by_row else names[0], *(b"," + name for name in names[1:])]
        texts = [*before, *((key + b"[", b"}", b"]}") if is_by_row else (key + b"{", b"", b"}}"))]
    parts = np.zeros((len(names) + json_text.MORE_PARTS, json_text.PART_COLUMNS), np.int64)
    at = 0
    for part, text in zip(parts, texts, strict=True):
        part[json_text.TEXT_AT], part[json_text.TEXT_LENGTH] = at, len(text)
        at += len(text)
    for part, (_, shape) in zip(parts, features.outputs, strict=False):
        part[json_text.DIM] = shape[-1]
        part[json_text.VECTORS] = shape[0] if len(shape) > 1 else 0
    return b"".join(texts), parts, is_by_row
