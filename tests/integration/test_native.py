"""The native core in a real server: it answers plain lookups, forwards the rest, and follows reloads and deltas."""

from __future__ import annotations

import ctypes
import platform
import signal
import struct
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from service.artifact.protos import message_class
from tests.exposition import read_exposition
from tests.integration.conftest import Serve, add_version
from tests.integration.process import PATIENCE_S, ServerProcess, predict_grpc, until
from tests.toy_described import write_described_model

W1 = {
    "user": np.array([1, 4], np.int64),
    "tags__values": np.array([0, 1, 2], np.int64),
    "tags__row_splits": np.array([0, 2, 3], np.int64),
}


def data_plane(server: ServerProcess) -> dict[str, Any]:
    """Returns the status page's section about the data plane."""
    found: dict[str, Any] = server.http.get("/v1/statusz").json()["data_plane"]
    return found


def counted(server: ServerProcess, name: str, by: str, **labels: str) -> dict[str, float]:
    """Returns the samples of a family that have these labels, as the value of the label `by` -> number."""
    family = read_exposition(server.http.get("/metrics").text)[f"embedding_server_{name}"]
    found = [(dict(told), value) for (_, told), value in family.samples.items()]
    return {told[by]: value for told, value in found if labels.items() <= told.items()}


def status_of(server: ServerProcess, path: str) -> int:
    """Gets a path."""
    return server.http.get(path).status_code


def test_lookups_are_answered_by_the_core(serve: Serve) -> None:
    server = serve().ready()
    found = server.predict_grpc(W1, "lookup")
    assert found["user"].tolist() == [[1, 10], [4, 40]]
    assert data_plane(server)["kind"] == "native"
    assert data_plane(server)["forwarded"]["grpc"] == 0


def test_no_lookup_is_forwarded(serve: Serve, tmp_path: Path) -> None:
    write_described_model(tmp_path / "described" / "1")
    server = serve(
        model_base_path=tmp_path / "described",
    ).ready()
    (version,) = server.http.get("/v1/statusz").json()["models"]["default"]["versions"]
    assert version.get("not_run", {}) == {}
    before = data_plane(server)["forwarded"]["http"]
    for signature, inputs, wanted in (
        ("bounded", {"bag__values": [8, 1], "bag__row_splits": [0, 1, 2]}, [[6, 8], [3, 4]]),
        ("stored", {"steps__values": [1], "steps__row_splits": [0, 1]}, [[[1 + 1e-12, 0.25 + 1e-12], [0, 0]]]),
        ("empty", {"row__values": [-1], "row__row_splits": [0, 1]}, [[2, 4, 1]]),
    ):
        body = {"signature_name": signature, "inputs": inputs}
        assert server.http.post("/v1/models/default:predict", json=body).json() == {"outputs": wanted}
    # Only the questions for the status page are forwarded.
    assert data_plane(server)["forwarded"]["http"] == before + 1


def test_what_the_core_does_not_answer_comes_from_the_reference_servers(serve: Serve) -> None:
    server = serve().ready()
    assert server.lookup({"user": [2]}) == {"user": [[2, 20]]}
    paths = (
        "/v1/models/default",
        "/v1/models/default/metadata",
        "/v2/health/ready",
        "/docs",
        "/openapi.json",
        "/metrics",
    )
    assert {path: status_of(server, path) for path in paths} == dict.fromkeys(paths, 200)
    refused = server.http.post("/v1/models/nobody:predict", json={"instances": [1]})
    assert refused.status_code == 404
    health = server.channel.unary_unary("/grpc.health.v1.Health/Check")
    assert health(b"", timeout=PATIENCE_S) == b"\x08\x01"
    metadata = message_class("tensorflow.serving.GetModelMetadataRequest")()
    metadata.model_spec.name = "default"
    metadata.metadata_field.append("signature_def")
    call = server.channel.unary_unary("/tensorflow.serving.PredictionService/GetModelMetadata")
    assert b"lookup" in call(metadata.SerializeToString(), timeout=PATIENCE_S)


def test_each_request_is_counted_once(serve: Serve) -> None:
    server = serve().ready()
    for _ in range(3):
        server.predict_grpc(W1, "lookup")
    server.lookup({"user": [2]})
    assert counted(server, "requests_total", "api", code="OK", signature="lookup") == {"grpc": 3, "http": 1}
    assert counted(server, "table_ids_total", "table") == {"user": 3 * 2 + 1, "tag": 3 * 3}


def test_a_reload_under_load_answers_from_one_version_or_the_other(serve: Serve, base: Path) -> None:
    server = serve().ready()
    stop, failures, seen = threading.Event(), list[BaseException](), set[float]()

    def ask() -> None:
        try:
            while not stop.is_set():
                seen.add(float(server.predict_grpc({"user": np.array([1])}, "lookup")["user"][0][1]))
        except BaseException as error:
            failures.append(error)

    askers = [threading.Thread(target=ask) for _ in range(2)]
    for asker in askers:
        asker.start()
    add_version(base, 2, scale=3)
    until(lambda: 30.0 in seen or failures)
    server.wait_for_log("version state", version=1, state="END")
    stop.set()
    for asker in askers:
        asker.join(PATIENCE_S)
    assert failures == []
    assert seen == {10.0, 30.0}
    assert data_plane(server)["forwarded"]["grpc"] == 0


def test_rows_that_change_are_seen_by_the_core(serve: Serve, tmp_path: Path) -> None:
    server = serve(delta_journal_dir=tmp_path / "journal", admin_port="auto").ready()
    assert server.admin_port is not None
    for number in range(1, 5):
        body = {"ids": [1], "rows": [[number, number]]}
        url = f"http://127.0.0.1:{server.admin_port}/v1/models/default/tables/user:upsert"
        told = server.http.post(url, json=body)
        assert told.status_code == 200, told.text
        assert told.json()["is_visible"]
        found = server.predict_grpc({"user": np.array([1])}, "lookup")["user"].tolist()
        assert found == [[number, number]]
    assert data_plane(server)["forwarded"]["grpc"] == 0


def test_a_drain_lets_requests_end_and_leaves_nothing_behind(serve: Serve, tmp_path: Path) -> None:
    server = serve(grpc_socket_path=tmp_path / "grpc.sock").ready()
    server.predict_grpc(W1, "lookup")
    assert (tmp_path / "grpc.sock").exists()
    server.signal(signal.SIGTERM)
    assert server.exit_code() == 0
    assert "stopped" in server.text()


def test_why_calls_for_a_list_of_addresses_are_reset_is_logged_once(serve: Serve) -> None:
    server = serve().ready()
    # For a list of addresses, grpcio sends the whole list as the name of the server.
    target = f"ipv4:127.0.0.1:{server.grpc_port},127.0.0.1:{server.grpc_port}"

    def told() -> list[str]:
        texts = [record["message"] for record in server.records]
        return [text for text in texts if "RST_STREAM 1" in text]

    for _ in range(3):
        with grpc.insecure_channel(target) as channel, pytest.raises(grpc.RpcError, match="RST_STREAM"):
            predict_grpc(channel, {"user": np.array([1])}, "lookup")
        until(lambda: len(told()) > 0)
    assert len(told()) == 1
    assert "grpc.default_authority" in told()[0] and "127.0.0.1" in told()[0]
    with grpc.insecure_channel(target, [("grpc.default_authority", "replicas")]) as channel:
        assert predict_grpc(channel, {"user": np.array([1])}, "lookup")["user"].tolist() == [[1, 10]]


def test_threads_of_connections_interrupt_threads_that_load(serve: Serve) -> None:
    server = serve().ready()
    usual_ns = _slice_ns(server.pid)
    if usual_ns == 0:
        pytest.skip("this kernel tells no slices: Linux does since 6.12")
    edges = []
    for task in Path(f"/proc/{server.pid}/task").iterdir():
        # Threads of other names may end meanwhile.
        with suppress(OSError):
            edges += [int(task.name)] if (task / "comm").read_text().startswith("edge") else []
    assert edges and {_slice_ns(task) for task in edges} == {100_000} and usual_ns > 100_000


def _slice_ns(thread: int) -> int:
    """Returns the slice of a thread; 0 if the kernel does not tell it."""
    # struct sched_attr of 48 bytes: after size, policy, flags, nice and priority comes the runtime. The numbers of the
    # system call are those of x86-64 and of the generic table.
    attributes = ctypes.create_string_buffer(48)
    number = 315 if platform.machine() == "x86_64" else 275
    if ctypes.CDLL(None).syscall(number, thread, attributes, 48, 0) != 0:
        return 0
    return int(struct.unpack_from("<Q", attributes, 24)[0])
