"""Reads the status page, request ids and slow requests of a running server, on both wires."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest

from tests.conformance.wires import predict_request
from tests.exposition import read_exposition
from tests.integration.process import ServerProcess, until
from tests.toy_model import write_toy_model
from tests.unit.observe.test_dashboards import expressions, metrics_of

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE_ID}-b7ad6b7169203331-00"
SUFFIXES = {"histogram": ("_bucket", "_sum", "_count")}
PREDICT = "/tensorflow.serving.PredictionService/Predict"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Starts a server; with its limit, every request is slow."""
    base = tmp_path_factory.mktemp("models") / "toy"
    write_toy_model(base / "3")
    with ServerProcess(
        "--slow_request_ms=0.0001",
        model_base_path=base,
        model_name="toy",
        graph_signatures="off",
    ) as running:
        yield running.ready()


def statusz(server: ServerProcess) -> dict[str, Any]:
    """Returns the document."""
    response = server.http.get("/v1/statusz")
    assert response.headers["content-type"] == "application/json"
    document: dict[str, Any] = response.json()
    return document


def test_statusz_tells_what_is_served_held_and_refused(server: ServerProcess) -> None:
    before = statusz(server)
    assert server.lookup({"user": [1, 2, 4]}, model="toy") == {"user": [[1, 10], [2, 20], [4, 40]]}
    refused = server.http.post(
        "/v1/models/toy:lookup", json={"features": {"user": [77]}}, headers={"x-request-id": "my-own"}
    )
    assert refused.status_code == 400
    found = statusz(server)
    assert found["server"]["pid"] == before["server"]["pid"] == server.pid
    assert found["server"]["is_ready"] is True
    assert found["server"]["rss_bytes"] > 1 << 20 and found["server"]["open_files"] > 3
    (version,) = found["models"]["toy"]["versions"]
    assert (version["version"], version["state"], version["signatures"]["lookup"]) == (3, "AVAILABLE", "lookup")
    _, was = before["models"]["toy"]["versions"][0]["tables"]
    assert version["verification"] in ("due", "done")
    assert (version["deltas"]["last_sequence"], version["deltas"]["refused"]) == (0, {})
    overload = found["overload"]
    assert (overload["limits"]["bytes"], overload["limits"]["wait_ms"]) == (2**30, 500)
    # The server has no --delta_journal_dir.
    assert version["deltas"]["journal_failures"] == {}
    tag, user = version["tables"]
    # The table has 5 rows of two float32 numbers. Lookups sent four ids, one of which has no row.
    assert (user["table"], user["rows"], user["dim"], user["mapped_bytes"]) == ("user", 5, 2, 40)
    assert user["resident_bytes"] in (None, 0, 4096, 8192)
    # The file is smaller than a huge page.
    assert user["huge_bytes"] in (None, 0)
    assert (user["ids"] - was["ids"], user["missing_ids"] - was["missing_ids"]) == (4, 1)
    assert user["missing_share"] == user["missing_ids"] / user["ids"]
    assert user["reads"] - was["reads"] == 3
    assert tag["table"] == "tag"
    (row,) = [row for row in found["requests"] if (row["api"], row["signature"]) == ("http", "lookup")]
    assert row["requests"] > 0 and row["rows"] >= 3 and row["failures"]["INVALID_ARGUMENT"] > 0
    assert row["p99_ms"] >= row["p50_ms"] > 0
    error = found["last_errors"][0]
    assert (error["request_id"], error["code"], error["model"]) == ("my-own", "INVALID_ARGUMENT", "toy")
    assert error["client"] == "127.0.0.1"
    assert "77" in error["message"]
    failures = found["recent_failures"]
    of_toy = [one["requests"] for one in failures["counts"] if (one["model"], one["code"]) == ("toy", error["code"])]
    assert failures["seconds"] == 300 and of_toy[0] > 0
    assert found["settings"]["model_name"] == {"value": "toy", "is_default": False}


def test_names_of_clients_are_no_markup_of_the_status_page(server: ServerProcess) -> None:
    server.http.post("/v1/models/toy:lookup", json={"features": {"<img src=x>": [1]}})
    page = server.http.get("/v1/statusz", headers={"accept": "text/html"})
    assert "<img src=x>" in page.text
    assert page.headers["content-type"] == "application/json" and page.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"x-request-id": "abc.1"}, "abc.1"),
        ({"traceparent": PARENT}, TRACE_ID),
        ({"traceparent": PARENT, "x-request-id": "abc.2"}, "abc.2"),
    ],
    ids=["own", "trace", "both"],
)
@pytest.mark.parametrize("ids", [[1], [99]], ids=["answered", "refused"])
def test_http_returns_the_senders_id(
    server: ServerProcess, headers: dict[str, str], expected: str, ids: list[int]
) -> None:
    for _ in range(2):
        body = {"features": {"user": ids}}
        assert server.http.post("/v1/models/toy:lookup", json=body, headers=headers).headers["x-request-id"] == expected


@pytest.mark.parametrize(
    "headers",
    [
        {"x-request-id": "", "traceparent": "ff" + PARENT[2:]},
        {"x-request-id": "a b", "traceparent": "a b"},
        {"x-request-id": "x" * 65},
        {"traceparent": "00-" + "0" * 32 + "-b7ad6b7169203331-01"},
    ],
    ids=["empty", "space", "long", "no trace"],
)
def test_what_is_no_id_is_replaced(server: ServerProcess, headers: dict[str, str]) -> None:
    response = server.http.post("/v1/models/toy:lookup", json={"features": {"user": [1]}}, headers=headers)
    assert response.headers["x-request-id"] not in ("", "a b", *headers.values())
    assert set(response.headers["x-request-id"]) <= set("0123456789abcdef-")


def predict(server: ServerProcess, user: int, metadata: list[tuple[str, str]]) -> tuple[Any, Any, grpc.StatusCode]:
    """Sends a Predict; returns its initial and trailing metadata and its code."""
    request = predict_request("toy", {"user": np.array([user])})
    call = server.channel.unary_unary(PREDICT).future(request, metadata=metadata)
    code = call.code()
    return dict(call.initial_metadata()), dict(call.trailing_metadata()), code


def test_grpc_returns_the_senders_id(server: ServerProcess) -> None:
    initial, _, code = predict(server, 1, [("x-request-id", "g-1")])
    assert (initial["x-request-id"], code) == ("g-1", grpc.StatusCode.OK)
    assert "x-request-id" not in predict(server, 1, [])[0]
    initial, trailing, code = predict(server, 99, [("x-request-id", "g-2")])
    assert (trailing["x-request-id"], code) == ("g-2", grpc.StatusCode.INVALID_ARGUMENT)
    assert predict(server, 99, [("traceparent", PARENT)])[1]["x-request-id"] == TRACE_ID
    # Without an id from the client, the server makes one up, answers it, and writes it to the log.
    made_up = predict(server, 99, [])[1]["x-request-id"]

    def told() -> list[dict[str, Any]]:
        return [record for record in server.records if record["logger"] == "service.grpc.refusals"]

    for own_id in ("g-2", TRACE_ID, made_up):
        until(
            lambda own_id=own_id: any(r.get("request_id") == own_id and r["code"] == "INVALID_ARGUMENT" for r in told())
        )


def test_slow_requests_are_logged_with_their_id(server: ServerProcess) -> None:
    """At most five slow requests a second are logged, so the test may have to send this one again."""

    def is_logged() -> bool:
        server.http.post("/v1/models/toy:lookup", json={"features": {"user": [1]}}, headers={"x-request-id": "slow-1"})
        return any(
            record["message"] == "slow request" and record.get("request_id") == "slow-1" for record in server.records
        )

    until(is_logged)
    slow = [one for one in statusz(server)["slow_requests"] if one["request_id"] == "slow-1"]
    assert (slow[0]["api"], slow[0]["method"], slow[0]["rows"], slow[0]["version"]) == ("http", "lookup", 1, 3)
    assert slow[0]["client"] == "127.0.0.1"
    assert slow[0]["seconds"] >= slow[0]["run_seconds"] > 0


def test_the_running_server_has_every_metric_of_the_alerts_and_the_dashboard(server: ServerProcess) -> None:
    predict(server, 1, [])
    found = read_exposition(server.http.get("/metrics").text)
    names = {name + part for name, family in found.items() for part in SUFFIXES.get(family.kind, ("",))}
    named = {name for _, expression in expressions() for name in metrics_of(expression)}
    # This server has neither an object store nor remote tables.
    elsewhere = {one for one in named if one.startswith(("embedding_server_store_", "embedding_server_remote_"))}
    assert named - names == {"up"} | elsewhere
