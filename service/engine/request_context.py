"""Holds context variables of the current request: its id, and its traceparent header.

Transports set both as a request begins, in the context that works on it; logs and spans read them. Neither is reset at
the end: the next request in the same context sets its own.
"""

from __future__ import annotations

import re
from contextvars import ContextVar

# Pattern of a client's request id: only harmless characters, because the id gets into logs and answers' headers.
_SANE = re.compile(rb"[A-Za-z0-9._:-]{1,64}")
# Pattern of a traceparent header (W3C Trace Context): version, trace id, parent id, flags; later versions of the format
# may add fields behind the flags.
_TRACEPARENT = re.compile(rb"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?")

REQUEST_ID = "x-request-id"
TRACEPARENT = "traceparent"

request_id: ContextVar[bytes] = ContextVar("request_id", default=b"")
traceparent: ContextVar[bytes] = ContextVar("traceparent", default=b"")


def enter(own_id: bytes, parent: bytes = b"") -> None:
    """Sets the context variables of a request: its id, and its traceparent."""
    request_id.set(own_id)
    traceparent.set(parent)


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
