"""Answers plain requests by their servable's shortcuts, in a wire's own bytes; others are left to the general path."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from service.core.bound import Observer
from service.core.errors import ServiceError
from service.core.recording import Recorder
from service.core.registry import Registry
from service.core.servable import Holder, Servable
from service.core.shortcuts import Begun, Limits
from service.core.tracing import Tracing
from service.core.types import DEFAULT_SIGNATURE, ModelRef

# Writing an answer of this size takes some milliseconds: others wait less for that than for a thread with the lock.
_QUICK_BYTES = 4 << 20
# For a shorter run of a graph it costs more to have another thread do it.
_QUICK_RUN_S = 300e-6

# A plain request on its way: its shortcut, what holds its servable, that, its signature's name, what has drawn a lot
# for it, api, method, when it was there, and when its run began.
_Taken = tuple[Any, Holder, Servable, str, Recorder | None, str, str, float, float]


class DirectAnswers:
    """An engine's. Concurrency: any thread; see Engine for the arguments."""

    def __init__(
        self,
        registry: Registry,
        observer: Observer,
        clock: Callable[[], float],
        *,
        max_response_bytes: int,
        recorders: Mapping[str, Recorder],
        tracing: Tracing | None,
    ) -> None:
        self._registry = registry
        self._observer = observer
        self._clock = clock
        self._recorders = recorders
        self._tracing = tracing
        self._slow_limits: Limits = max_response_bytes, math.inf, math.inf
        self._quick_limits: Limits = max_response_bytes, _QUICK_BYTES, _QUICK_RUN_S

    def answer(
        self,
        ref: ModelRef,
        signature_name: str,
        request: Any,
        *,
        wire_format: str,
        api: str,
        method: str,
        started_s: float,
        fallback_signature: str = "",
        may_wait: bool = True,
    ) -> Any | None:
        """Answers a plain request as its wire wants it, by the servable's shortcut for it.

        Args:
          request: as the shortcuts of this wire format take it.
          wire_format, signature_name: which of them.
          api, method, started_s, fallback_signature: as in Engine.bind.
          may_wait: whether answers may be large, and graphs run for longer than a fraction of a millisecond.

        Returns:
          None where the request must take the general path, which then answers, refuses and counts it.
        """
        taken = self._take(ref, signature_name, wire_format, fallback_signature, api, method, started_s)
        if taken is None:
            return None
        shortcut, holder = taken[0], taken[1]
        try:
            limits = self._slow_limits if may_wait else self._quick_limits
            return self._counted(taken, shortcut.answer(request, limits))
        finally:
            holder.release()

    def begin(
        self,
        ref: ModelRef,
        signature_name: str,
        request: Any,
        *,
        wire_format: str,
        api: str,
        method: str,
        started_s: float,
        may_wait: bool = True,
    ) -> Begun | None:
        """Does what comes before the lookups of a plain request, which are then done together with others'.

        Args:
          wire_format: its shortcuts are StagedShortcuts. The others are as in answer.

        Returns:
          What finish takes, which must be called; None as answer does.
        """
        taken = self._take(ref, signature_name, wire_format, "", api, method, started_s)
        if taken is None:
            return None
        shortcut, holder = taken[0], taken[1]
        begun = None
        try:
            begun = shortcut.begin(request, self._slow_limits if may_wait else self._quick_limits)
            if begun is None:
                self._leave(taken)
                return None
            return begun[0], begun, taken
        finally:
            if begun is None:
                holder.release()

    def finish(self, begun: Begun) -> Any | None:
        """Returns what answer does of a request that the same thread has begun. To be called once."""
        _, of_shortcut, taken = begun
        shortcut, holder = taken[0], taken[1]
        try:
            return self._counted(taken, shortcut.finish(of_shortcut))
        finally:
            holder.release()

    def _take(
        self,
        ref: ModelRef,
        signature_name: str,
        wire_format: str,
        fallback_signature: str,
        api: str,
        method: str,
        started_s: float,
    ) -> _Taken | None:
        try:
            holder = self._registry.hold(ref)
        except ServiceError:
            return None
        taken = None
        try:
            servable = holder.servable
            if not signature_name:
                has_default = DEFAULT_SIGNATURE in servable.signatures
                signature_name = DEFAULT_SIGNATURE if has_default else fallback_signature
            shortcut = servable.shortcuts.get((wire_format, signature_name))
            if shortcut is None:
                return None
            recorder = self._recorders.get(servable.name) if self._recorders else None
            if recorder is not None and recorder.draw.take():
                # Only the general path has tensors to keep.
                recorder.draw.put_back(True)
                return None
            tracing = self._tracing
            if tracing is not None and tracing.takes():
                if recorder is not None:
                    recorder.draw.put_back(False)
                return None
            taken = shortcut, holder, servable, signature_name, recorder, api, method, started_s, self._clock()
            return taken
        finally:
            if taken is None:
                holder.release()

    def _counted(self, taken: _Taken, answer: tuple[Any, int] | None) -> Any | None:
        """Returns what a request is answered, and counts it; None where the general path does both."""
        _, _, servable, signature_name, _, api, method, started_s, run_started_s = taken
        # Behind the run: what it read may have become zeros meanwhile. The general path says so.
        if answer is None or servable.files.mark[0]:
            self._leave(taken)
            return None
        now_s = self._clock()
        # While the lease is held, as Bound does.
        self._observer.finished(
            api=api,
            method=method,
            model=servable.name,
            version=servable.version,
            signature=signature_name,
            kind=servable.signatures[signature_name].kind,
            error=None,
            seconds=now_s - started_s,
            run_seconds=now_s - run_started_s,
            rows=answer[1],
        )
        return answer[0]

    def _leave(self, taken: _Taken) -> None:
        """Leaves what was drawn for a request to the general path."""
        recorder = taken[4]
        if recorder is not None:
            recorder.draw.put_back(False)
        if self._tracing is not None:
            self._tracing.not_answered()
