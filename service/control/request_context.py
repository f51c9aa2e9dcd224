"""Describes the current request: its id and trace, its labels for metrics, and who records it.

Transports set the context variables as a request begins, in the context that works on it; logs and spans read them.
They are not reset at the end: the next request in the same context sets its own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

# Pattern of a client's request id: only harmless characters, because the id gets into logs and answers' headers.
_SANE = re.compile(rb"[A-Za-z0-9._:-]{1,64}")
# Pattern of a traceparent header (W3C Trace Context): version, trace id, parent id, flags; later versions of the format
# may add fields behind the flags.
_TRACEPARENT = re.compile(rb"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?")

REQUEST_ID = "x-request-id"
TRACEPARENT = "traceparent"

request_id: ContextVar[bytes] = ContextVar("request_id", default=b"")
traceparent: ContextVar[bytes] = ContextVar("traceparent", default=b"")
# The name of the request's caller, or the address of a client that is no known caller.
client: ContextVar[str] = ContextVar("client", default="")


def enter(own_id: bytes, parent: bytes = b"", client_name: str = "") -> None:
    request_id.set(own_id)
    traceparent.set(parent)
    client.set(client_name)


def sane_id(value: bytes) -> bytes:
    return value if _SANE.fullmatch(value) else b""


def trace_id(parent: bytes) -> bytes:
    """Returns the trace id in a traceparent header; b"" if the header is not valid.

    >>> trace_id(b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
    b'0af7651916cd43dd8448eb211c80319c'
    """
    found = _TRACEPARENT.fullmatch(parent)
    return found[1] if found else b""


@dataclass(frozen=True, slots=True)
class Call:
    """The description of a request that HTTP or gRPC gives the engine: labels for metrics, arrival and deadline.

    api: the label for metrics, such as "http" or "grpc".
    method: the label for metrics, spelt as HTTP or gRPC spells the method.
    started_s: when the request arrived; None: it has just arrived.
    deadline_s: the engine begins no work after this time; None: the request has no deadline.
    is_control: the request runs no signature, such as one for status, metadata or a page.
    """

    api: str
    method: str = ""
    started_s: float | None = None
    deadline_s: float | None = None
    is_control: bool = False


class Subject(NamedTuple):
    """The labels under which metrics count a request: API, method, model, version and signature.

    model, signature: "" if no model or signature of the requested name exists, so that labels stay bounded.
    version: None where no version was found.
    """

    api: str
    method: str
    model: str
    version: int | None
    signature: str


@dataclass(frozen=True, slots=True)
class Finished:
    """The result and the times of a request that has ended, for metrics.

    error: None: the request succeeded.
    run_seconds: the part of seconds that the search took.
    is_control: as in Call.
    """

    subject: Subject
    error: BaseException | None
    seconds: float
    run_seconds: float
    rows: int
    is_control: bool = False


class Observer(Protocol):
    """The observer that counts finished requests. Concurrency: any thread; must not raise."""

    def finished(self, request: Finished) -> None: ...


class Tracing(Protocol):
    """The maker of OpenTelemetry spans for sampled requests and for their lookups and graph runs.

    Concurrency: any thread.
    """

    @property
    def sampler(self) -> str: ...

    def request(self, name: str) -> AbstractContextManager[None]:
        """Opens a trace span for a request; its parent is the client's span if request_context has a traceparent."""

    def answered(self, requests: Sequence[Mapping[str, Any]]) -> None:
        """Makes the trace spans of requests that the native core has answered; SpanRecord in edge/records.rs has the
        fields.
        """


class Recorder(Protocol):
    """The recorder that writes answered requests to one model's request log.

    rate: the share of requests that the native core chooses for the log, 0 to 1.

    Concurrency: any thread; must not raise nor wait.
    """

    @property
    def rate(self) -> float: ...

    def answered(self, version: int, signature_name: str, answered_s: int, log: bytes) -> None:
        """Records a request that the native core has answered.

        Args:
          answered_s: seconds since 1970.
          log: a serialized PredictionLog that lacks its log_metadata.
        """

    def note_dropped(self, count: int) -> None: ...
