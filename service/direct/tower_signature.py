"""A predict that looks up whole features: their vectors written where the rest of its graph reads them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter

import numpy as np

from service.codecs.response_encoder import ResponseEncoder
from service.core.errors import ServiceError
from service.core.shortcuts import Limits
from service.core.types import Array, SignatureSpec
from service.direct.answer_shape import AnswerShape, ShapeWriter
from service.direct.memory import address_of
from service.direct.rooms import Room, Shapes, starts
from service.direct.run_times import RunTimes
from service.direct.signature import Layout, Layouts, PlainRequest
from service.direct.thread_state import PACK_JOB, Round, ThreadState
from service.lookup.plan import FeaturePlan

# More sizes of requests than this are not remembered, lest a client fills the memory.
_MAX_PLACES = 256

# Vectors, [B, D] or [B, L, D] float32 as DirectTower's groups have them, to the outputs.
RunDense = Callable[[Sequence[Array]], Mapping[str, Array]]


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the vectors of so many rows go.

    num_bytes: of all of them.
    shapes: of the arrays that are fed.
    shape: as direct.gather takes it, with nothing but floats.
    """

    num_bytes: int
    shapes: Shapes
    shape: AnswerShape


# The outputs of a graph, once it has run.
Outputs = list[Mapping[str, Array]]

# A predict that is begun: how many bytes its lookup writes, where its outputs will be, its rows, whether floats are to
# travel in tensor_content, whose lookup it is, its round, and its room.
BegunTower = tuple[int, Outputs, int, bool, ThreadState, Round, Shapes, Room]


class DirectTower:
    """Answers requests for one predict signature of one model version. Concurrency: any thread.

    Args:
      features: all that the signature looks up, each under a name of its own.
      groups: of each array that is fed, the features whose vectors it has side by side.
      run_dense: the rest of the signature's graph; raises ServiceError.
    """

    def __init__(
        self,
        spec: SignatureSpec,
        features: Mapping[str, FeaturePlan],
        groups: Sequence[Sequence[str]],
        run_dense: RunDense,
        *,
        model: str,
        version: int,
    ) -> None:
        self._spec = spec
        self._groups = groups
        self._run_dense = run_dense
        self._run_times = RunTimes()
        self._encoder = ResponseEncoder(model, version, spec.name)
        self._layouts = Layouts(spec, features, needs_all=True)
        self._places: dict[int, _Place] = {}
        # What a predict reads is not counted: nobody looks here. Each feature stands first in a plan of its own.
        self._counts = np.zeros((1 + max(feature.position for feature in features.values()), 2), np.int64)
        self._counts_at = self._counts.ctypes.data

    def answer(self, request: PlainRequest, limits: Limits) -> tuple[bytes, int] | None:
        """Returns a serialized PredictResponse and its rows; see core.shortcuts.Shortcut."""
        begun = self.begin(request, limits)
        return None if begun is None else self.finish(begun)

    def begin(self, request: PlainRequest, limits: Limits) -> BegunTower | None:
        """Makes room for the vectors; see core.shortcuts.StagedShortcut."""
        data, skeleton, state, as_content, _, _ = request
        layout = self._layouts.of(skeleton)
        if layout is None:
            return None
        rows = state.found[layout.rows_at] - layout.rows_extra
        max_bytes, max_answer_bytes, max_s = limits
        if rows <= 0 or rows * self._spec.row_bytes > min(max_bytes, max_answer_bytes):
            return None
        if self._run_times.expected_s(rows) > max_s:
            return None
        place = self._places.get(rows) or self._new_place(layout, rows)
        room = state.rooms.take(place.shapes)
        scratch, scratch_at = state.scratch(len(data))
        PACK_JOB(
            state.jobs,
            state.job_at,
            address_of(data),
            state.found_at,
            layout.plan_at,
            layout.num_features,
            scratch_at,
            room[1],
            place.shape.address,
            rows,
            0,
            self._counts_at,
        )
        outputs: Outputs = []
        kept = data, room, layout, place, scratch
        of_round, _ = state.look_up_later(kept, partial(self._run, room[0], rows, outputs))
        return place.num_bytes, outputs, rows, as_content, state, of_round, place.shapes, room

    def finish(self, begun: BegunTower) -> tuple[bytes, int] | None:
        """Has the rest of the graph run, with those of the same round; see core.shortcuts.StagedShortcut."""
        _, outputs, rows, as_content, state, are_done, shapes, room = begun
        if not are_done:
            state.look_up()
        if not outputs:
            return None
        answer = self._encoder.encode(outputs[0], as_content=as_content)
        # Not before: an output may be what was fed.
        state.rooms.give_back(shapes, room)
        return answer, rows

    def _run(self, vectors: Sequence[Array], rows: int, outputs: Outputs) -> None:
        started_s = perf_counter()
        try:
            outputs.append(self._run_dense(vectors))
        except ServiceError:
            # The general path says it in its own words, and counts it.
            return
        self._run_times.learn(rows, perf_counter() - started_s)

    def _new_place(self, layout: Layout, rows: int) -> _Place:
        of_feature = dict(layout.outputs)
        shapes = tuple(_side_by_side(rows, [of_feature[name] for name in group]) for group in self._groups)
        begins, num_bytes = starts(shapes)
        # Of each feature, where its first row goes, and how many floats there are from one to the next.
        places = {}
        for group, begin, shape in zip(self._groups, begins, shapes, strict=True):
            for name in group:
                places[name] = begin, math.prod(shape[1:])
                begin += 4 * math.prod(of_feature[name])
        writer = ShapeWriter()
        for feature, (name, _) in enumerate(layout.outputs):
            writer.place(feature, rows, *places[name])
        place = _Place(num_bytes, shapes, writer.shape())
        if len(self._places) < _MAX_PLACES:
            self._places[rows] = place
        return place


def _side_by_side(rows: int, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    if len(shapes) == 1:
        return (rows, *shapes[0])
    return rows, sum(map(math.prod, shapes))
