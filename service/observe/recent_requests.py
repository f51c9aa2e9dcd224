"""Keeps the last slow and failed requests for the status page, and logs slow requests."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from service.engine import request_context
from service.engine.call import Subject
from service.errors import ServiceError

logger = logging.getLogger(__name__)

_KEPT = 50
# Most log lines on slow requests per second: if all requests are slow, more lines would slow them further.
_LINES_PER_S = 5
_MAX_TEXT = 300
# Codes of errors that the server or its load causes, and not the client; the status page lists their requests apart.
_OURS = frozenset({"INTERNAL", "UNAVAILABLE", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "UNKNOWN", "DATA_LOSS"})


@dataclass(frozen=True, slots=True)
class Noted:
    """One slow or failed request.

    at_s: its end, seconds since 1970. version: None if no version was bound. code: "OK" if the request was only slow.
    """

    at_s: float
    request_id: str
    api: str
    method: str
    model: str
    version: int | None
    signature: str
    seconds: float = 0.0
    run_seconds: float = 0.0
    rows: int = 0
    code: str = "OK"
    message: str = ""


class RecentRequests:
    """The last slow and the last failed requests, a fixed number of each. Concurrency: any thread.

    slow_s: seconds after which a request counts as slow; infinite: no request does.

    Args:
      now: seconds since 1970; clock: monotonic seconds.
    """

    def __init__(
        self, slow_s: float, now: Callable[[], float] = time.time, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.slow_s = slow_s
        self._now = now
        self._clock = clock
        self._slow: deque[Noted] = deque(maxlen=_KEPT)
        self._own_failures: deque[Noted] = deque(maxlen=_KEPT)
        self._refusals: deque[Noted] = deque(maxlen=_KEPT)
        self._lock = threading.Lock()
        self._second = 0.0
        self._lines = self._unsaid = 0

    def was_slow(self, subject: Subject, seconds: float, run_seconds: float, rows: int) -> None:
        """Keeps a request that succeeded and took slow_s seconds or longer.

        Also logs the request, unless too many slow requests were logged in this second.
        """
        noted = Noted(self._now(), _own_id(), *subject, seconds, run_seconds, rows)
        self._slow.append(noted)
        unsaid = self._may_say()
        if unsaid is None:
            return
        extra = {
            **({"request_id": noted.request_id} if noted.request_id else {}),
            **subject._asdict(),
            "rows": rows,
            "seconds": round(seconds, 6),
            "run_seconds": round(run_seconds, 6),
            **({"unsaid": unsaid} if unsaid else {}),
        }
        logger.warning("slow request", extra=extra)

    def failed(self, subject: Subject, error: BaseException, code: str) -> None:
        """Keeps a failed request for the status page, but does not log it, which the HTTP or gRPC server does."""
        self.noted(subject, code, error.message if isinstance(error, ServiceError) else type(error).__name__)

    def noted(self, subject: Subject, code: str, message: str) -> None:
        noted = Noted(self._now(), _own_id(), *subject, code=code, message=message[:_MAX_TEXT])
        (self._own_failures if code in _OURS else self._refusals).append(noted)

    def slowest(self) -> list[Noted]:
        return sorted(self._slow.copy(), key=lambda noted: -noted.seconds)

    def failures(self) -> list[Noted]:
        # Failures of the server are kept apart from errors of clients, so that a client's many errors displace none.
        kept = [*reversed(self._own_failures.copy()), *reversed(self._refusals.copy())]
        return sorted(kept, key=lambda noted: noted.at_s, reverse=True)

    def _may_say(self) -> int | None:
        """Says whether one more slow request may be logged:

        None if not, else how many were not logged since the last line.
        """
        with self._lock:
            if self._clock() - self._second >= 1:
                self._second, self._lines = self._clock(), 0
            self._lines += 1
            if self._lines > _LINES_PER_S:
                self._unsaid += 1
                return None
            unsaid, self._unsaid = self._unsaid, 0
            return unsaid


def _own_id() -> str:
    return request_context.request_id.get().decode("latin-1")
