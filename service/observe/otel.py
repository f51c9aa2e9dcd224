"""Traces requests, lookups, graph runs and loads by OpenTelemetry, and sends the spans by OTLP.

OpenTelemetry's own OTEL_ variables set the address and the sampler. Source:
opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables, semantic conventions for HTTP and RPC spans
(1.37); www.w3.org/TR/trace-context.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from opentelemetry.context import Context
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import SpanKind
from starlette.types import ASGIApp

from service.engine import request_context
from service.engine.servable import Servable
from service.observe.http_spans import HttpSpans
from service.observe.spans import Spans
from service.types import SignatureSpec

_STOP_S = 5.0
Protocol = Literal["grpc", "http/protobuf"]


class OtelTracing:
    """Tracing by OpenTelemetry; a Tracing of engine.tracing. Concurrency: any thread; call stop() once.

    Args:
      protocol: OTLP's transport.
      attributes: this server's resource attributes, beside those of OTEL_RESOURCE_ATTRIBUTES.
    """

    def __init__(self, protocol: Protocol, attributes: Mapping[str, str | int]) -> None:
        resource = Resource.create(dict(attributes))
        if str(resource.attributes.get(SERVICE_NAME, "unknown_service")).startswith("unknown_service"):
            resource = resource.merge(Resource({SERVICE_NAME: "embedding-server"}))
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False, id_generator=DrawnIds())
        self._provider.add_span_processor(BatchSpanProcessor(_exporter(protocol)))
        self._spans = Spans(self._provider.get_tracer("embedding-server"))

    @property
    def sampler(self) -> str:
        """The description of OpenTelemetry's sampler, which the native core parses."""
        return self._provider.sampler.get_description()

    @contextmanager
    def request(self, name: str) -> Iterator[None]:
        """Opens a server span for a gRPC request, whose path is the name."""
        service, _, method = name.lstrip("/").rpartition("/")
        attributes = {"rpc.system": "grpc", "rpc.service": service, "rpc.method": method}
        with self._spans.spanned(
            name.lstrip("/"), attributes, SpanKind.SERVER, self._spans.remote_parent() or Context()
        ):
            yield

    @contextmanager
    def run(self, spec: SignatureSpec, model: str, version: int) -> Iterator[None]:
        """Opens an internal span for a lookup or for a run of a graph."""
        name = "lookup" if spec.kind == "lookup" else "graph run"
        with self._spans.spanned(name, {"model": model, "version": version, "signature": spec.name}, SpanKind.INTERNAL):
            yield

    def loading(self, load: Callable[[str, int, Path], Servable]) -> Callable[[str, int, Path], Servable]:
        """Wraps a loader of versions, so that each load has a span."""

        def traced(name: str, version: int, path: Path) -> Servable:
            attributes = {"model": name, "version": version, "path": str(path)}
            with self._spans.spanned("load", attributes, SpanKind.INTERNAL, Context()):
                return load(name, version, path)

        return traced

    def http_spans(self, app: ASGIApp) -> ASGIApp:
        """Wraps an ASGI application, so that its requests have spans."""
        return HttpSpans(app, self._spans)

    def stop(self) -> None:
        """Sends the finished spans, for a few seconds at most."""
        # The exporter would retry a collector that is gone, and delay the end of the server.
        thread = threading.Thread(target=self._provider.shutdown, name="tracing-stop", daemon=True)
        thread.start()
        thread.join(_STOP_S)


class DrawnIds(RandomIdGenerator):
    """Gives a trace the id that the native core drew for its request, so that the core and the sampler decide alike."""

    def generate_trace_id(self) -> int:
        """Returns the id that the native core drew, else a random one."""
        return request_context.draws.get().trace_id or super().generate_trace_id()


def _exporter(protocol: Protocol) -> SpanExporter:
    # The exporter is imported only if it is used: each one brings libraries of its own.
    if protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as OverGrpc

        return OverGrpc()
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as OverHttp

    return OverHttp()
