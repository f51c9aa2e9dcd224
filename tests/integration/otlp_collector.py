"""Receives spans with real OTLP servers over gRPC and HTTP, and keeps them."""

from __future__ import annotations

import gzip
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import grpc
import pytest

from tests.http_servers import Silent, http_server

_EXPORT = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"


class Collector:
    """Both OTLP servers, on free ports. spans: (resource attributes, span) of all received spans."""

    def __init__(self) -> None:
        self._messages = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
        self.spans: list[tuple[dict[str, Any], Any]] = []
        self.paths: list[str] = []
        collector = self

        class Http(Silent):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                collector.paths.append(self.path)
                collector.receive(body)
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", "0")
                self.end_headers()

        self._stack = ExitStack()
        self._http_port = self._stack.enter_context(http_server(Http))
        method = grpc.unary_unary_rpc_method_handler(self._export)
        service, name = _EXPORT[1:].split("/")
        handler = grpc.method_handlers_generic_handler(service, {name: method})
        self._grpc = grpc.server(ThreadPoolExecutor(2), handlers=[handler])
        self._grpc_port = self._grpc.add_insecure_port("127.0.0.1:0")

    def endpoint(self, protocol: str) -> str:
        """Returns the value for OTEL_EXPORTER_OTLP_ENDPOINT."""
        return f"http://127.0.0.1:{self._grpc_port if protocol == 'grpc' else self._http_port}"

    def receive(self, body: bytes) -> None:
        """Keeps the spans of an ExportTraceServiceRequest."""
        for resource in self._messages.ExportTraceServiceRequest.FromString(body).resource_spans:
            named = attributes(resource.resource)
            self.spans += [(named, span) for scope in resource.scope_spans for span in scope.spans]

    def named(self, name: str, **wanted: Any) -> list[Any]:
        """Returns the spans with this name and these attributes."""
        return [s for _, s in self.spans if s.name == name and wanted.items() <= attributes(s).items()]

    def _export(self, body: bytes, context: grpc.ServicerContext) -> bytes:
        self.receive(body)
        return b""

    def __enter__(self) -> Collector:
        self._grpc.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._grpc.stop(0).wait()
        self._stack.close()


def attributes(holder: Any) -> dict[str, Any]:
    """Returns the attributes of a span or a resource as a dict."""
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in holder.attributes}
