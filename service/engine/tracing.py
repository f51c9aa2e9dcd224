"""Declares the interface to trace requests, which service.observe.otel implements by OpenTelemetry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol


class Tracing(Protocol):
    """The maker of OpenTelemetry spans for sampled requests and for their lookups and graph runs.

    Concurrency: any thread.
    """

    @property
    def sampler(self) -> str:
        """The text by which OpenTelemetry's sampler describes itself, with its sampling rate."""
        ...

    def request(self, name: str) -> AbstractContextManager[None]:
        """Opens a trace span for a request; its parent is the client's span if request_context has a traceparent."""
        ...

    def answered(self, requests: Sequence[Mapping[str, Any]]) -> None:
        """Makes the trace spans of requests that the native core has answered; SpanRecord in edge/records.rs has the
        fields.
        """
        ...
