"""Traces requests, lookups, graph runs and loads with OpenTelemetry, and sends the spans to a collector by OTLP.

OpenTelemetry's own OTEL_ variables set the address and the sampler. Source:
opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables, semantic conventions for HTTP and RPC spans
(1.45, where both are stable); www.w3.org/TR/trace-context.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Literal

from opentelemetry.context import Context
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import SpanKind
from starlette.types import ASGIApp

from service.engine.servable import Servable
from service.observe.http_spans import HttpSpans
from service.observe.spans import DrawnIds, Spans

_STOP_S = 5.0
Protocol = Literal["grpc", "http/protobuf"]


class OtelTracing:
    """The tracing of the server with OpenTelemetry; implements engine.tracing.Tracing. Concurrency: any thread; call
    stop() once.

    Args:
      protocol: OTLP's transport.
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
        """The text by which OpenTelemetry's sampler describes itself; native.sampling parses it for the native core."""
        return self._provider.sampler.get_description()

    def request(self, name: str) -> AbstractContextManager[None]:
        """Opens a trace span of the kind "server" for a gRPC request. name: path of the gRPC method."""
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
