"""Interface of request tracing for the engine and the servers; service.observe.otel implements it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

from service.types import SignatureSpec


class Tracing(Protocol):
    """Makes spans of requests that are to be traced, and of what they run. Concurrency: any thread."""

    @property
    def sampler(self) -> str:
        """The description of OpenTelemetry's sampler."""
        ...

    def request(self, name: str) -> AbstractContextManager[None]:
        """Spans a request; its parent is the sender's, where request_context has one."""
        ...

    def run(self, spec: SignatureSpec, model: str, version: int) -> AbstractContextManager[None]:
        """Spans a lookup or a run of a graph."""
        ...
