"""A collector gets the server's spans, over either protocol of OTLP; traces that a client began are continued."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from tests.conformance.wires import predict_request
from tests.integration.otlp_collector import Collector, attributes
from tests.integration.process import ServerProcess, until
from tests.toy_model import write_toy_model

PREDICT = "/tensorflow.serving.PredictionService/Predict"
SPAN_OF_PREDICT = PREDICT[1:]
SPAN_OF_LOOKUP = "POST /v1/models/{model}:lookup"
Start = Callable[..., ServerProcess]


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    """One for all."""
    with Collector() as running:
        yield running


@pytest.fixture
def start(tmp_path: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Returns a function that starts a server with tracing, whose spans go to the collector if nothing forbids it."""
    write_toy_model(tmp_path / "toy" / "3")
    running: list[ServerProcess] = []

    def make(*flags: str, protocol: str, **variables: str) -> ServerProcess:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint(protocol))
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        server = ServerProcess(
            "--tracing=otlp",
            *flags,
            model_base_path=tmp_path / "toy",
            model_name="toy",
            graph_signatures="off",
        )
        running.append(server)
        return server

    yield make
    for server in running:
        server.__exit__(None, None, None)


def parent(trace: int, *, is_sampled: bool) -> str:
    """Returns the traceparent header of trace number `trace`."""
    return f"00-{trace:032x}-b7ad6b7169203331-{'01' if is_sampled else '00'}"


def lookup(server: ServerProcess, user: int = 1, **headers: str) -> int:
    """Posts a lookup; returns the status."""
    body = {"features": {"user": [user]}}
    return server.http.post("/v1/models/toy:lookup", json=body, headers=headers).status_code


def predict(server: ServerProcess, user: int, traceparent: str) -> grpc.StatusCode:
    """Sends a Predict with a traceparent; returns its status code."""
    request = predict_request("toy", {"user": np.array([user])})
    metadata = [("traceparent", traceparent)] if traceparent else []
    code: grpc.StatusCode = server.channel.unary_unary(PREDICT).future(request, metadata=metadata).code()
    return code


def of_trace(collector: Collector, trace: int) -> dict[str, Any]:
    """Returns the spans of a trace, by name."""
    return {span.name: span for _, span in collector.spans if span.trace_id == trace.to_bytes(16, "big")}


def test_a_trace_goes_on_over_both_wires(collector: Collector, start: Start) -> None:
    server = start(protocol="grpc", OTEL_SERVICE_NAME="own-name").ready()
    base = 1000
    for number in range(3):
        # The third request reads an id that does not exist, so it fails.
        user = 99 if number == 2 else 1
        assert lookup(server, user, traceparent=parent(base + number, is_sampled=True)) == (200 if user == 1 else 400)
        code = predict(server, user, parent(base + 100 + number, is_sampled=True))
        assert code == (grpc.StatusCode.OK if user == 1 else grpc.StatusCode.INVALID_ARGUMENT)
        assert lookup(server, traceparent=parent(base + 200 + number, is_sampled=False)) == 200
    until(lambda: SPAN_OF_PREDICT in of_trace(collector, base + 102))
    for trace, name_of_request in ((base, SPAN_OF_LOOKUP), (base + 100, SPAN_OF_PREDICT)):
        for number in range(2):
            spans = of_trace(collector, trace + number)
            request, run = spans[name_of_request], spans["lookup"]
            assert request.parent_span_id == bytes.fromhex("b7ad6b7169203331")
            assert run.parent_span_id == request.span_id
            assert request.start_time_unix_nano <= run.start_time_unix_nano < run.end_time_unix_nano
            assert attributes(run) == {"model": "toy", "version": 3, "signature": "lookup"}
            # A request without an x-request-id gets the id of its trace.
            assert attributes(request)["request.id"] == f"{trace + number:032x}"
    assert attributes(of_trace(collector, base)[SPAN_OF_LOOKUP])["http.response.status_code"] == 200
    refused = of_trace(collector, base + 102)[SPAN_OF_PREDICT]
    # A span does not get the status "error" if the client's request was wrong.
    assert (attributes(refused)["rpc.status_code"], refused.status.code) == ("INVALID_ARGUMENT", 0)
    assert attributes(refused).items() >= {"rpc.system.name": "grpc", "rpc.method": SPAN_OF_PREDICT}.items()
    assert "error.type" not in attributes(refused)
    assert not [n for n in range(3) if of_trace(collector, base + 200 + n)]
    (load,) = [s for r, s in collector.spans if s.name == "load" and r["service.name"] == "own-name"]
    assert {"model": "toy", "version": 3}.items() <= attributes(load).items()


def test_new_traces_are_sampled(collector: Collector, start: Start) -> None:
    ratio = {"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.25"}
    server = start(protocol="http/protobuf", **ratio).ready()
    for _ in range(400):
        assert lookup(server) == 200
    for _ in range(100):
        assert predict(server, 2, "") == grpc.StatusCode.OK
    server.signal(15)
    assert server.exit_code() == 0
    mine = [span for resource, span in collector.spans if resource["service.name"] == "embedding-server"]
    assert set(collector.paths) == {"/v1/traces"}
    # Each of 400 requests is sampled with probability 0.25: the limits are left once in 10**8 runs; a fault would
    # sample all or none.
    assert 50 <= sum(span.name == SPAN_OF_LOOKUP for span in mine) <= 155
    assert 5 <= sum(span.name == SPAN_OF_PREDICT for span in mine) <= 55
    requests = {span.span_id for span in mine if span.name in (SPAN_OF_LOOKUP, SPAN_OF_PREDICT)}
    assert {span.parent_span_id for span in mine if span.name == "lookup"} == requests


def test_only_sampled_requests_are_traced(collector: Collector, start: Start) -> None:
    server = start(protocol="grpc", OTEL_TRACES_SAMPLER="parentbased_always_off", OTEL_SERVICE_NAME="answers").ready()
    plane = server.http.get("/v1/statusz").json()["data_plane"]
    if plane["kind"] != "native":
        pytest.skip("there is no core")
    for _ in range(5):
        assert lookup(server) == lookup(server, traceparent=parent(1, is_sampled=False)) == 200
        assert predict(server, 1, "") == grpc.StatusCode.OK
    assert lookup(server, traceparent=parent(5000, is_sampled=True)) == 200
    after = server.http.get("/v1/statusz").json()["data_plane"]
    # The core forwarded one of the two requests for the status page.
    assert after["forwarded"]["http"] - plane["forwarded"]["http"] == 1
    assert after["forwarded"]["grpc"] == plane["forwarded"]["grpc"] == 0
    until(lambda: SPAN_OF_LOOKUP in of_trace(collector, 5000))
    own = [s for r, s in collector.spans if r["service.name"] == "answers"]
    assert {s.trace_id for s in own} == {(5000).to_bytes(16, "big")}


def test_the_core_answers_sampled_requests(collector: Collector, start: Start) -> None:
    server = start(protocol="grpc", OTEL_TRACES_SAMPLER="always_on", OTEL_SERVICE_NAME="all").ready()
    plane = server.http.get("/v1/statusz").json()["data_plane"]
    if plane["kind"] != "native":
        pytest.skip("there is no core")
    for _ in range(20):
        assert predict(server, 1, "") == grpc.StatusCode.OK
        assert lookup(server, 99) == 400
        assert predict(server, 99, "") == grpc.StatusCode.INVALID_ARGUMENT
        assert server.http.post("/v1/models/toy/tables/user:rows", json={"ids": [1]}).status_code == 200
    after = server.http.get("/v1/statusz").json()["data_plane"]
    assert after["forwarded"]["grpc"] == 0 and after["forwarded"]["http"] - plane["forwarded"]["http"] == 1
    server.signal(15)
    assert server.exit_code() == 0
    spans = [s for r, s in collector.spans if r["service.name"] == "all"]
    names = Counter(s.name for s in spans)
    assert (names[SPAN_OF_PREDICT], names[SPAN_OF_LOOKUP], names["lookup"]) == (40, 20, 20)
    assert names["POST /v1/models/{model}/tables/{table}:rows"] == 20
    assert {attributes(s)["http.response.status_code"] for s in spans if s.name == SPAN_OF_LOOKUP} == {400}
    roots = [s.trace_id for s in spans if not s.parent_span_id]
    assert len(set(roots)) == len(roots)


def test_a_collector_that_is_gone_is_no_trouble(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    server = start(protocol="http/protobuf", OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9").ready()
    assert {lookup(server) for _ in range(5)} == {200}
    server.signal(15)
    assert server.exit_code() == 0
