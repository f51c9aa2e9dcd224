"""One setting decides whether tracing begins; OpenTelemetry's own variables decide how spans are sent."""

from __future__ import annotations

import pytest

from service.configuration.settings import Settings, StartError
from service.configuration.settings_reading import otlp_protocol
from service.observe.tracing import start_tracing


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
