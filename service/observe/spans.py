"""Makes trace spans with the parts that all spans need: the client's span as parent, the request's id, the error."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from opentelemetry.context import Context
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import Span, SpanKind, StatusCode, Tracer, set_span_in_context
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
    """The maker of OpenTelemetry spans. Concurrency: any thread.

    drawn: the tracer's source of trace ids.
    """

    def __init__(self, tracer: Tracer, drawn: DrawnIds) -> None:
        self._tracer = tracer
        self.drawn = drawn
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

    def answered(self, request: Mapping[str, Any]) -> None:
        """Makes the trace spans of a request that the native core has answered; see SpanRecord in edge/records.rs."""
        name, path, code, status = (request[key] for key in ("name", "path", "code", "status"))
        attributes: dict[str, Any]
        if path:
            method, _, route = name.partition(" ")
            attributes = {"http.request.method": method, "url.path": path, "url.scheme": "http", "http.route": route}
            attributes["http.response.status_code"] = status
        else:
            name = name.lstrip("/")
            service, _, method = name.rpartition("/")
            attributes = {"rpc.system": "grpc", "rpc.service": service, "rpc.method": method}
        if request["request_id"]:
            attributes["request.id"] = request["request_id"]
        request_context.traceparent.set(request["parent"].encode("latin-1"))
        self.drawn.trace_id.set(int(request["trace_id"], 16))
        begin_ns, end_ns = request["times_ns"]
        parent = self.remote_parent() or Context()
        span = self._tracer.start_span(name, parent, SpanKind.SERVER, attributes, start_time=begin_ns)
        if run := request["run"]:
            self._run_of(span, run)
        if code:
            _mark_code(span, code, request["text"])
        elif status >= 500:
            span.set_status(StatusCode.ERROR)
        span.end(end_ns)

    def _run_of(self, request: Span, run: Mapping[str, Any]) -> None:
        attributes = {key: run[key] for key in ("model", "version", "signature")}
        name = "lookup" if run["is_lookup"] else "graph run"
        begin_ns, end_ns = run["times_ns"]
        within = set_span_in_context(request, Context())
        self._tracer.start_span(name, within, SpanKind.INTERNAL, attributes, start_time=begin_ns).end(end_ns)


class DrawnIds(RandomIdGenerator):
    """The source of trace ids: the id that the native core drew for a request, else a random one. So the core and
    OpenTelemetry's sampler agree whether to trace.

    trace_id: the id that the core drew; 0: none.
    """

    def __init__(self) -> None:
        self.trace_id: ContextVar[int] = ContextVar("trace_id", default=0)

    def generate_trace_id(self) -> int:
        """Returns the trace id that the native core drew for the request, else a random id."""
        return self.trace_id.get() or super().generate_trace_id()


def _mark(span: Span, error: Exception) -> None:
    code = error.code if isinstance(error, ServiceError) else "INTERNAL"
    _mark_code(span, code, error.message if isinstance(error, ServiceError) else type(error).__name__)


def _mark_code(span: Span, code: str, text: str) -> None:
    span.set_attribute("error.type", code)
    if code not in _CLIENTS_FAULTS:
        span.set_status(StatusCode.ERROR, text)
