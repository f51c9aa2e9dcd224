"""A predict that looks up whole features: their vectors written where the rest of its graph reads them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np

from service.codecs.response_encoder import ResponseEncoder
from service.core.errors import ServiceError
from service.core.types import Array, SignatureSpec
from service.direct import gather
from service.direct.memory import address_of
from service.direct.run_times import RunTimes
from service.direct.signature import Layout, Layouts, PlainRequest
from service.direct.thread_state import PACK_JOB, Round, ThreadState
from service.lookup.plan import FeaturePlan

# More sizes of requests than this are not remembered, lest a client fills the memory.
_MAX_PLACES = 256
_NOTHING = b""

# TensorFlow copies what does not begin at a multiple of 64 bytes.
_ALIGNED_FLOATS = 16

# The vectors of each feature, [B, D] or [B, L, D] float32 in the order of DirectTower's features, to the outputs.
RunDense = Callable[[Sequence[Array]], Mapping[str, Array]]


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the vectors of so many rows go: how many floats there are, and of each feature its first one and shape.

    pieces: as direct.gather takes them, with nothing but floats.
    """

    num_floats: int
    parts: tuple[tuple[int, int, tuple[int, ...]], ...]
    pieces: Array
    pieces_at: int


# A predict that is begun: how many bytes its lookup writes, their floats and where each feature's are, its rows,
# whether floats are to travel in tensor_content, whose lookup it is, its round and its number there.
BegunTower = tuple[int, Array, _Place, int, bool, ThreadState, Round, int]


class DirectTower:
    """Answers requests for one predict signature of one model version. Concurrency: any thread.

    Args:
      features: all that the signature looks up, each under a name of its own.
      run_dense: the rest of the signature's graph; raises ServiceError.
    """

    def __init__(
        self,
        spec: SignatureSpec,
        features: Mapping[str, FeaturePlan],
        run_dense: RunDense,
        *,
        model: str,
        version: int,
    ) -> None:
        self._spec = spec
        self._run_dense = run_dense
        self._run_times = RunTimes()
        self._encoder = ResponseEncoder(model, version, spec.name)
        self._layouts = Layouts(spec, features, needs_all=True)
        self._places: dict[int, _Place] = {}
        # What a predict reads is not counted: nobody looks here. Each feature stands first in a plan of its own.
        self._counts = np.zeros((1 + max(feature.position for feature in features.values()), 2), np.int64)
        self._counts_at = self._counts.ctypes.data

    def answer(self, request: PlainRequest, max_bytes: int, max_s: float) -> tuple[bytes, int] | None:
        """Returns a serialized PredictResponse and its rows; see core.shortcuts.Shortcut."""
        begun = self.begin(request, max_bytes, max_s)
        return None if begun is None else self.finish(begun)

    def begin(self, request: PlainRequest, max_bytes: int, max_s: float) -> BegunTower | None:
        """Makes room for the vectors; see core.shortcuts.StagedShortcut."""
        data, skeleton, state, as_content = request
        layout = self._layouts.of(skeleton)
        if layout is None:
            return None
        rows = state.found[layout.rows_at] - layout.rows_extra
        if rows <= 0 or rows * self._spec.row_bytes > max_bytes or self._run_times.expected_s(rows) > max_s:
            return None
        place = self._places.get(rows) or self._new_place(layout, rows)
        floats, floats_at = _aligned_floats(place.num_floats)
        scratch, scratch_at = state.scratch(len(data))
        PACK_JOB(
            state.jobs,
            state.job_at,
            address_of(data),
            state.found_at,
            layout.plan_at,
            layout.num_features,
            scratch_at,
            floats_at,
            address_of(_NOTHING),
            place.pieces_at,
            rows,
            self._counts_at,
        )
        of_round, number = state.look_up_later((data, floats, layout, place, scratch))
        return floats.nbytes, floats, place, rows, as_content, state, of_round, number

    def finish(self, begun: BegunTower) -> tuple[bytes, int] | None:
        """Runs the rest of the graph; see core.shortcuts.StagedShortcut."""
        _, floats, place, rows, as_content, state, are_done, number = begun
        if not are_done:
            state.look_up()
        if not are_done[number]:
            return None
        started_s = perf_counter()
        try:
            outputs = self._run_dense([floats[begin:end].reshape(shape) for begin, end, shape in place.parts])
        except ServiceError:
            # The general path says it in its own words, and counts it.
            return None
        self._run_times.learn(rows, perf_counter() - started_s)
        return self._encoder.encode(outputs, as_content=as_content), rows

    def _new_place(self, layout: Layout, rows: int) -> _Place:
        pieces = np.zeros((len(layout.outputs) + 1, gather.PIECE_COLUMNS), np.int64)
        parts, begin = [], 0
        for row, (_, shape) in zip(pieces, layout.outputs, strict=False):
            end = begin + rows * math.prod(shape)
            row[gather.FLOATS_TO] = 4 * begin
            parts.append((begin, end, (rows, *shape)))
            begin = end + -end % _ALIGNED_FLOATS
        place = _Place(begin, tuple(parts), pieces, pieces.ctypes.data)
        if len(self._places) < _MAX_PLACES:
            self._places[rows] = place
        return place


def _aligned_floats(size: int) -> tuple[Array, int]:
    """Returns float32 of any content, and their address."""
    room: Array = np.empty(size + _ALIGNED_FLOATS - 1, np.float32)
    address: int = room.ctypes.data
    skipped = -(address // 4) % _ALIGNED_FLOATS
    return room[skipped : skipped + size], address + 4 * skipped
