"""Makes trace spans with the parts that all spans need: the client's span as parent, the request's id, the error."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from service.engine import request_context
from service.errors import ServiceError

# Error codes that do not mark a span as failed, because OpenTelemetry's conventions for RPC servers do not count them
# as errors of the server, not even RESOURCE_EXHAUSTED.
_CLIENTS_FAULTS = frozenset(
    {"INVALID_ARGUMENT", "NOT_FOUND", "FAILED_PRECONDITION", "OUT_OF_RANGE", "ALREADY_EXISTS", "PERMISSION_DENIED"}
    | {"UNAUTHENTICATED", "CANCELLED", "ABORTED", "RESOURCE_EXHAUSTED"}
)


class Spans:
    """The maker of OpenTelemetry spans. Concurrency: any thread."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._propagator = TraceContextTextMapPropagator()

    def remote_parent(self) -> Context | None:
        """Returns the OpenTelemetry context of the client's traceparent header; None without a valid header."""
        header = request_context.traceparent.get()
        if not request_context.trace_id(header):
            return None
        return self._propagator.extract({"traceparent": header.decode("latin-1")}, Context())

    @contextmanager
    def spanned(
        self, name: str, attributes: Mapping[str, Any], kind: SpanKind, parent: Context | None = None
    ) -> Iterator[Span]:
        """Opens a trace span around a block of code, and records an error that the block raises in the span.

        Args:
          parent: the parent's context; None: the current span's; an empty context: the span begins a trace.
        """
        with self._tracer.start_as_current_span(
            name,
            context=parent,
            kind=kind,
            attributes=dict(attributes),
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            own_id = request_context.request_id.get()
            if own_id and kind is SpanKind.SERVER:
                span.set_attribute("request.id", own_id.decode("latin-1"))
            try:
                yield span
            except Exception as error:
                _mark(span, error)
                raise


def _mark(span: Span, error: Exception) -> None:
    code = error.code if isinstance(error, ServiceError) else "INTERNAL"
    span.set_attribute("error.type", code)
    if code not in _CLIENTS_FAULTS:
        span.set_status(StatusCode.ERROR, error.message if isinstance(error, ServiceError) else type(error).__name__)
