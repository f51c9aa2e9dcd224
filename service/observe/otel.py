"""Traces requests, lookups, graph runs and loads with OpenTelemetry, and sends the spans to a collector by OTLP.

OpenTelemetry's own OTEL_ variables set the address and the sampler. Source:
opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables, semantic conventions for HTTP and RPC spans
(1.45, where both are stable); www.w3.org/TR/trace-context.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Literal

from opentelemetry.context import Context
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import Span, SpanKind, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.control import request_context
from service.errors import ServiceError
from service.versions.servable import Servable

# Status codes of gRPC by which the server has failed. Source: OpenTelemetry's semantic conventions 1.45, gRPC.
_FAILURES = frozenset({"UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"})


class Spans:
    """The maker of OpenTelemetry spans. Concurrency: any thread. drawn: the tracer's source of trace ids."""

    def __init__(self, tracer: Tracer, drawn: DrawnIds) -> None:
        self._tracer = tracer
        self.drawn = drawn
        self._propagator = TraceContextTextMapPropagator()

    def remote_parent(self) -> Context | None:
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
                code, text = _code_and_text(error)
                # A wrong request is no failure of the server; a lookup or a load that raises an error has failed.
                if kind is not SpanKind.SERVER or code in _FAILURES:
                    mark_failed(span, code, text)
                raise

    @contextmanager
    def call(self, path: str) -> Iterator[None]:
        name, attributes = _name_and_attributes_of_call(path)
        with self.spanned(name, attributes, SpanKind.SERVER, self.remote_parent() or Context()) as span:
            try:
                yield
            except Exception as error:
                span.set_attribute("rpc.status_code", _code_and_text(error)[0])
                raise
            span.set_attribute("rpc.status_code", "OK")

    def answered(self, request: Mapping[str, Any]) -> None:
        name, path, code, status = (request[key] for key in ("name", "path", "code", "status"))
        attributes: dict[str, Any]
        if path:
            method, _, route = name.partition(" ")
            attributes = {"http.request.method": method, "url.path": path, "url.scheme": "http", "http.route": route}
            attributes["http.response.status_code"] = status
        else:
            name, attributes = _name_and_attributes_of_call(name)
            attributes["rpc.status_code"] = code or "OK"
        if request["request_id"]:
            attributes["request.id"] = request["request_id"]
        request_context.traceparent.set(request["parent"].encode("latin-1"))
        self.drawn.trace_id.set(int(request["trace_id"], 16))
        begin_ns, end_ns = request["times_ns"]
        parent = self.remote_parent() or Context()
        span = self._tracer.start_span(name, parent, SpanKind.SERVER, attributes, start_time=begin_ns)
        if run := request["run"]:
            self._run_of(span, run)
        if code in _FAILURES:
            mark_failed(span, code, request["text"])
        elif status >= 500:
            mark_failed(span, str(status))
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
        return self.trace_id.get() or super().generate_trace_id()


def _name_and_attributes_of_call(path: str) -> tuple[str, dict[str, Any]]:
    name = path.lstrip("/")
    return name, {"rpc.system.name": "grpc", "rpc.method": name}


def _code_and_text(error: Exception) -> tuple[str, str]:
    return (error.code, error.message) if isinstance(error, ServiceError) else ("INTERNAL", type(error).__name__)


def mark_failed(span: Span, error_type: str, text: str | None = None) -> None:
    span.set_attribute("error.type", error_type)
    span.set_status(StatusCode.ERROR, text)


# Path prefixes of traced requests. Health checks and requests for metrics are not traced: they are frequent, and their
# spans would help nobody.
_TRACED = ("/v1/models", "/v2/models")


class HttpSpans:
    """ASGI middleware: opens a trace span for a request whose path is in _TRACED. Concurrency: event loop only."""

    def __init__(self, app: ASGIApp, tracing: Spans) -> None:
        self._app = app
        self._tracing = tracing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith(_TRACED):
            await self._app(scope, receive, send)
            return
        method = scope["method"]
        attributes = {"http.request.method": method, "url.path": scope["path"], "url.scheme": scope["scheme"]}
        parent = self._tracing.remote_parent() or Context()
        with self._tracing.spanned(method, attributes, SpanKind.SERVER, parent) as span:

            async def send_marked(message: Message) -> None:
                if message["type"] == "http.response.start":
                    status = message["status"]
                    span.set_attribute("http.response.status_code", status)
                    if status >= 500:
                        mark_failed(span, str(status))
                    # The span of an HTTP request is named by its route and not by its path, so that there are few
                    # names; the route is known only after the router ran.
                    if route := scope.get("route"):
                        span.update_name(f"{method} {route.path}")
                        span.set_attribute("http.route", route.path)
                await send(message)

            await self._app(scope, receive, send_marked)


_STOP_S = 5.0
Protocol = Literal["grpc", "http/protobuf"]


class OtelTracing:
    """The tracing of the server with OpenTelemetry; implements engine.tracing.Tracing. Concurrency: any thread; call
    stop() once.

    Args:
      attributes: this server's resource attributes, beside those of OTEL_RESOURCE_ATTRIBUTES.
    """

    def __init__(self, protocol: Protocol, attributes: Mapping[str, str | int]) -> None:
        resource = Resource.create(dict(attributes))
        if str(resource.attributes.get(SERVICE_NAME, "unknown_service")).startswith("unknown_service"):
            resource = resource.merge(Resource({SERVICE_NAME: "embedding-server"}))
        drawn = DrawnIds()
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False, id_generator=drawn)
        self._provider.add_span_processor(BatchSpanProcessor(_exporter(protocol)))
        self._spans = Spans(self._provider.get_tracer("embedding-server"), drawn)

    @property
    def sampler(self) -> str:
        return self._provider.sampler.get_description()

    def request(self, name: str) -> AbstractContextManager[None]:
        return self._spans.call(name)

    def answered(self, requests: Sequence[Mapping[str, Any]]) -> None:
        for request in requests:
            self._spans.answered(request)

    def loading(self, load: Callable[[str, int, Path], Servable]) -> Callable[[str, int, Path], Servable]:
        def traced(name: str, version: int, path: Path) -> Servable:
            attributes = {"model": name, "version": version, "path": str(path)}
            with self._spans.spanned("load", attributes, SpanKind.INTERNAL, Context()):
                return load(name, version, path)

        return traced

    def http_spans(self, app: ASGIApp) -> ASGIApp:
        return HttpSpans(app, self._spans)

    def stop(self) -> None:
        """Sends the trace spans that OpenTelemetry has not sent yet, and waits for this a few seconds at most."""
        # A daemon thread shuts OpenTelemetry down, and stop() waits for it at most _STOP_S seconds: the exporter may
        # retry a missing collector for long.
        thread = threading.Thread(target=self._provider.shutdown, name="tracing-stop", daemon=True)
        thread.start()
        thread.join(_STOP_S)


def _exporter(protocol: Protocol) -> SpanExporter:
    # Only the exporter for the given protocol is imported, because each one imports further libraries.
    if protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as OverGrpc

        return OverGrpc()
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as OverHttp

    return OverHttp()
