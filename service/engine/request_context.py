"""Holds context variables of the current request: its id, its traceparent header, and the native core's random numbers.

Transports set all three as a request begins, in the context that works on it; logs, spans and samples read them. None
is reset at the end: the next request in the same context sets its own.
"""

from __future__ import annotations

import re
from contextvars import ContextVar
from typing import NamedTuple

# Pattern of a client's request id: only harmless characters, because the id gets into logs and answers' headers.
_SANE = re.compile(rb"[A-Za-z0-9._:-]{1,64}")
# Pattern of a traceparent header (W3C Trace Context): version, trace id, parent id, flags; later versions of the format
# may add fields behind the flags.
_TRACEPARENT = re.compile(rb"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?")

REQUEST_ID = "x-request-id"
TRACEPARENT = "traceparent"

request_id: ContextVar[bytes] = ContextVar("request_id", default=b"")
traceparent: ContextVar[bytes] = ContextVar("traceparent", default=b"")


class Draws(NamedTuple):
    """The random numbers that the native core drew for a request, to decide about its log record and its trace.

    log: decides whether the request is logged, from 0 to below 1; None: the core drew nothing.
    trace_id: the trace id for a request without a parent; 0: the core drew nothing.
    """

    log: float | None = None
    trace_id: int = 0


NO_DRAWS = Draws()
draws: ContextVar[Draws] = ContextVar("draws", default=NO_DRAWS)


def enter(own_id: bytes, parent: bytes = b"", drawn: Draws = NO_DRAWS) -> None:
    """Sets the context variables of a request: its id, its traceparent, and the native core's random numbers."""
    request_id.set(own_id)
    traceparent.set(parent)
    draws.set(drawn)


def sane_id(value: bytes) -> bytes:
    """Returns a client's request id; b"" if the id is too long or has characters that _SANE does not allow."""
    return value if _SANE.fullmatch(value) else b""


def trace_id(parent: bytes) -> bytes:
    """Returns the trace id in a traceparent header; b"" if the header is not valid.

    >>> trace_id(b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
    b'0af7651916cd43dd8448eb211c80319c'
    """
    found = _TRACEPARENT.fullmatch(parent)
    return found[1] if found else b""
