"""PredictRequest to PredictResponse for plain lookups; None for everything else."""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident

from service.codecs.framed_answer import Envelope, Framed
from service.codecs.predict_proto import parse_message, read_model_spec
from service.codecs.wire import varint
from service.core.engine import Engine
from service.core.errors import ServiceError
from service.core.shortcuts import Begun, Shortcut
from service.core.types import ModelRef
from service.direct.memory import BYTES_AT
from service.direct.scan import fields_of, scan
from service.direct.signature import DirectSignature
from service.direct.thread_state import ThreadStates
from service.lookup.backend import OpenedLookups

# Which shortcuts of a servable take what is read here.
WIRE_FORMAT = "PredictRequest"
# More of them are not remembered, lest a client fills the memory.
_MAX_SKELETONS = 1024


def shortcuts(lookups: OpenedLookups, model: str, version: int) -> dict[tuple[str, str], Shortcut]:
    """Returns the shortcuts of a version's lookup signatures, as Servable has them."""
    return {
        (WIRE_FORMAT, name): DirectSignature(lookups.signatures[name], lookups.backend.plan(name), model, version)
        for name in lookups.lookup_names
    }


class DirectPredict:
    """Predict for plain lookups: (request's bytes, deadline, how to answer) to the response's bytes, or None.

    Concurrency: any thread.
    """

    def __init__(self, engine: Engine, api: str) -> None:
        self._begin = engine.directly.begin
        self._clock = engine.clock
        # Returns what __call__ does of a request that the same thread has begun, or that in frames. To be called once.
        self.finish: Callable[[Begun], bytes | Framed | None] = engine.directly.finish
        self._api = api
        self._states = ThreadStates()
        # What skeletons mean: few clients send many.
        self._targets: dict[bytes, tuple[ModelRef, str] | None] = {}

    def __call__(
        self, data: bytes, deadline_s: float | None, *, as_content: bool, may_wait: bool = True
    ) -> bytes | None:
        """Returns the response; None where the general path must answer, refuse and count the request.

        Args:
          deadline_s: on the engine's clock, or None.
          as_content: floats travel in tensor_content, else in float_val.
          may_wait: whether the answer may take longer than a few milliseconds.
        """
        begun = self.begin(data, deadline_s, as_content=as_content, may_wait=may_wait)
        # No frames, for it has no envelope.
        return None if begun is None else self.finish(begun)  # type: ignore[return-value]

    def begin(
        self,
        data: bytes,
        deadline_s: float | None,
        stream_id: int = 0,
        *,
        as_content: bool,
        may_wait: bool = True,
        envelope: Envelope | None = None,
    ) -> Begun | None:
        """Does what comes before the lookups; what it returns must be finished. See __call__.

        Args:
          envelope, stream_id: the response may come as HTTP/2 frames of this stream, in this envelope.
        """
        started_s = self._clock()
        if deadline_s is not None and started_s >= deadline_s:
            return None
        state = self._states[get_ident()]
        length = scan(id(data) + BYTES_AT, len(data), state.found_at, state.skeleton_at)
        if length < 0:
            return None
        skeleton = bytes(state.skeleton[:length])
        try:
            target = self._targets[skeleton]
        except KeyError:
            target = self._read(skeleton)
        if target is None:
            return None
        return self._begin(
            *target,
            (data, skeleton, state, as_content, envelope, stream_id),
            wire_format=WIRE_FORMAT,
            api=self._api,
            method="Predict",
            started_s=started_s,
            may_wait=may_wait,
        )

    def _read(self, skeleton: bytes) -> tuple[ModelRef, str] | None:
        spec, *_ = fields_of(skeleton)
        target = None
        try:
            # A ModelSpec in field 1, as a request has it.
            request = parse_message("tensorflow.serving.PredictRequest", b"\x0a" + varint(len(spec)) + spec)
            target = read_model_spec(request)
        except ServiceError:
            pass
        if len(self._targets) < _MAX_SKELETONS:
            self._targets[skeleton] = target
        return target
