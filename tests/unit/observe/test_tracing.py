"""One setting decides whether tracing begins; OpenTelemetry's own variables decide how spans are sent."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import httpx
import pytest
from opentelemetry.sdk.trace import TracerProvider, sampling
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from starlette.responses import PlainTextResponse

from service.configuration.settings import Settings, StartError
from service.configuration.settings_reading import otlp_protocol
from service.errors import ArtifactError, BackendFailure, InvalidRequest
from service.observe.otel import DrawnIds, HttpSpans, Spans
from service.process.app import start_tracing


@pytest.mark.parametrize(
    ("environ", "protocol"),
    [
        ({}, "http/protobuf"),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": ""}, "http/protobuf"),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "grpc"),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "x", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "grpc"}, "grpc"),
    ],
)
def test_the_protocol_is_the_one_for_traces_or_for_all(environ: dict[str, str], protocol: str) -> None:
    assert otlp_protocol(environ) == protocol


def test_it_is_off_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "nothing")
    assert start_tracing(Settings()) is None


def test_a_protocol_that_there_is_not_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json")
    with pytest.raises(StartError, match="is 'http/json': expected grpc or http/protobuf"):
        start_tracing(Settings(tracing="otlp"))


pytest.importorskip("opentelemetry.sdk.trace")


class Recorded:
    """In place of Spans: keeps the path of each span, and sets no attributes."""

    def __init__(self) -> None:
        self.paths: list[str] = []

    def remote_parent(self) -> None:
        return None

    @contextmanager
    def spanned(self, name: str, attributes: dict[str, Any], *rest: object) -> Iterator[Any]:
        self.paths.append(attributes["url.path"])
        yield self

    def set_attribute(self, name: str, value: object) -> None:
        pass


def test_checks_of_health_are_not_traced() -> None:
    spans = Recorded()
    app = HttpSpans(PlainTextResponse("answer"), spans)  # type: ignore[arg-type]
    paths = ["/healthz", "/readyz", "/metrics", "/v2", "/v2/health/live", "/v2/health/ready"]
    traced = ["/v1/models/m", "/v2/models/m/ready", "/v2/models/m/infer"]

    async def ask() -> None:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server") as client:
            for path in paths + traced:
                assert (await client.get(path)).text == "answer"

    asyncio.run(ask())
    assert spans.paths == traced


class _OfGrpc(sampling.Sampler):
    """A sampler that no name in the environment gives: it drops HTTP requests."""

    def should_sample(
        self, parent: Any, trace_id: int, name: str, kind: Any = None, attributes: Any = None, links: Any = None
    ) -> Any:
        is_dropped = name.startswith("POST")
        decision = sampling.Decision.DROP if is_dropped else sampling.Decision.RECORD_AND_SAMPLE
        return sampling.SamplingResult(decision, attributes)

    def get_description(self) -> str:
        return "OfGrpc"


def _answered(**more: Any) -> dict[str, Any]:
    run = {"model": "m", "version": 3, "signature": "s", "is_lookup": False, "times_ns": [110, 150]}
    request = {"name": "/a.B/C", "path": "", "parent": "", "trace_id": "0" * 31 + "7", "request_id": "id"}
    return {**request, "times_ns": [100, 200], "status": 0, "code": "", "text": "", "run": run, **more}


def test_requests_of_the_core_become_spans_unless_the_sampler_drops_them() -> None:
    kept, drawn = InMemorySpanExporter(), DrawnIds()
    provider = TracerProvider(sampler=_OfGrpc(), id_generator=drawn)
    provider.add_span_processor(SimpleSpanProcessor(kept))
    spans = Spans(provider.get_tracer("t"), drawn)
    spans.answered(_answered())
    path = "/v1/models/m:lookup"
    spans.answered(_answered(name="POST /v1/models/{model}:lookup", path=path, status=200, run=None))
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    spans.answered(_answered(code="UNAVAILABLE", text="later", run=None, parent=parent))
    run, request, refused = kept.get_finished_spans()
    assert (run.name, run.start_time, run.end_time) == ("graph run", 110, 150)
    assert run.parent == request.context
    assert dict(run.attributes or {}) == {"model": "m", "version": 3, "signature": "s"}
    assert (request.name, request.start_time, request.end_time, request.context.trace_id) == ("a.B/C", 100, 200, 7)
    assert request.parent is None and request.kind is SpanKind.SERVER
    call = {"rpc.system.name": "grpc", "rpc.method": "a.B/C", "request.id": "id"}
    assert dict(request.attributes or {}) == {**call, "rpc.status_code": "OK"}
    assert f"{refused.context.trace_id:032x}" in parent
    failed = {"rpc.status_code": "UNAVAILABLE", "error.type": "UNAVAILABLE"}
    assert dict(refused.attributes or {}) == {**call, **failed}
    assert (refused.status.status_code, refused.status.description) == (StatusCode.ERROR, "later")


def _traced() -> tuple[Spans, InMemorySpanExporter]:
    kept, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    return Spans(provider.get_tracer("t"), DrawnIds()), kept


def test_only_failures_of_the_server_have_an_error_type() -> None:
    spans, kept = _traced()
    spans.answered(_answered(code="NOT_FOUND", text="no model", run=None))
    for status in (404, 503):
        spans.answered(
            _answered(name="POST /v1/models/{model}:lookup", path="/v1/models/m:lookup", status=status, run=None)
        )
    for error in (None, InvalidRequest("wrong"), BackendFailure("broken"), KeyError("key")):
        with suppress(Exception), spans.call("/a.B/C"):
            if error:
                raise error
    found = [
        (attributes.get("rpc.status_code"), attributes.get("error.type"), span.status.status_code.name)
        for span in kept.get_finished_spans()
        for attributes in [span.attributes or {}]
    ]
    assert found == [
        ("NOT_FOUND", None, "UNSET"),
        (None, None, "UNSET"),
        (None, "503", "ERROR"),
        ("OK", None, "UNSET"),
        ("INVALID_ARGUMENT", None, "UNSET"),
        ("INTERNAL", "INTERNAL", "ERROR"),
        ("INTERNAL", "INTERNAL", "ERROR"),
    ]


def test_a_load_that_fails_is_an_error() -> None:
    spans, kept = _traced()
    with suppress(ArtifactError), spans.spanned("load", {"model": "m"}, SpanKind.INTERNAL):
        raise ArtifactError("cut off")
    (load,) = kept.get_finished_spans()
    assert dict(load.attributes or {}) == {"model": "m", "error.type": "FAILED_PRECONDITION"}
    assert (load.status.status_code, load.status.description) == (StatusCode.ERROR, "cut off")
