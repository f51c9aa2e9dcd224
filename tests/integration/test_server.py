"""The server runs as a process: it starts, answers, refuses to start, and leaves libraries unloaded."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from service.artifact.protos import message_class
from tests.integration.conftest import Serve, add_version
from tests.integration.process import ROOT, environment, predict_grpc, until
from tests.toy_model import write_toy_model

MAX_RSS_BYTES = 270 << 20


def run(*flags: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs a server that should stop by itself; returns its output and exit status."""
    command = [sys.executable, "-m", "service", *flags]
    return subprocess.run(command, cwd=ROOT, env=environment(**variables), capture_output=True, text=True, timeout=120)


def test_answers_lookups_over_both_wires_without_tensorflow(serve: Serve) -> None:
    server = serve(model_name="toy").ready()
    assert server.lookup({"user": [1, 4], "tags": [["red", "green"], []]}, model="toy") == {
        "user": [[1, 10], [4, 40]],
        "tags": [[1.5, 2.5, 1], [0, 0, 0]],
    }
    inputs = {"tags_sum__values": np.array([1, 2, 3]), "tags_sum__row_splits": np.array([0, 0, 3])}
    outputs = server.predict_grpc(inputs, "lookup", model="toy")
    assert outputs["tags_sum"].tolist() == [[0, 0, 0], [6, 14, 3]]

    response = server.http.post("/v1/models/toy:predict", json={"instances": [{"user": 1, "tags": [1]}]})
    assert response.status_code == 400
    assert 'Signature "serving_default" runs a TensorFlow graph' in response.json()["error"]
    assert "--graph_signatures=off" in response.json()["error"]
    with pytest.raises(grpc.RpcError) as caught:
        inputs = {"user": np.array([1]), "tags__values": np.array([1]), "tags__row_splits": np.array([0, 1])}
        server.predict_grpc(inputs, "", model="toy")
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION

    maps = Path(f"/proc/{server.pid}/maps").read_text()
    assert "tensorflow" not in maps
    assert "variables.data-00000-of-00001" in maps, "the table is mapped and not copied"
    status = dict(line.split(":", 1) for line in Path(f"/proc/{server.pid}/status").read_text().splitlines())
    assert int(status["VmRSS"].split()[0]) * 1024 < MAX_RSS_BYTES


def test_tells_its_health_over_both_wires(serve: Serve) -> None:
    server = serve(model_name="toy").ready()
    assert server.http.get("/healthz").json() == {"status": "ok"}
    assert server.http.get("/readyz").json()["status"] == "ready"
    health = health_pb2_grpc.HealthStub(server.channel)
    for service in ("", "tensorflow.serving.PredictionService", "toy"):
        assert health.Check(health_pb2.HealthCheckRequest(service=service), timeout=60).status == 1


def test_counts_what_it_answered(serve: Serve) -> None:
    server = serve().ready()
    server.lookup({"user": [1, 2, 3]})
    server.http.post("/v1/models/default:lookup", json={"features": {"user": [99]}})
    labels = 'api="http",{}model="default",signature="lookup",version="1"'
    text = server.http.get("/metrics").text
    assert f"embedding_server_rows_total{{{labels.format('')}}} 3.0" in text
    bad_request = 'code="INVALID_ARGUMENT",'
    assert f"embedding_server_requests_total{{{labels.format(bad_request)}}} 1.0" in text
    assert 'embedding_server_version_state{model="default",version="1"} 30.0' in text


def test_is_alive_but_not_ready_until_a_version_comes(serve: Serve, base: Path) -> None:
    empty = base.parent / "empty"
    empty.mkdir()
    server = serve(model_base_path=empty)
    port = server.wait_for_log("listening")["http_port"]
    import httpx

    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as http:
        assert http.get("/healthz").status_code == 200
        until(lambda: "no version folder" in http.get("/readyz").text)
        assert http.get("/readyz").status_code == 503
        response = http.post("/v1/models/default:lookup", json={"features": {"user": [1]}})
        assert response.status_code == 503
        assert "no version folder" in response.json()["error"]
        add_version(empty, 1)
        until(lambda: http.get("/readyz").status_code == 200)


def test_a_large_request_is_answered_and_one_over_the_limit_refused(serve: Serve) -> None:
    server = serve(max_request_bytes=1 << 20).ready()
    ids = np.tile(np.arange(4), 20_000)
    splits = np.arange(0, len(ids) + 1, 8)
    inputs = {"tags__values": ids, "tags__row_splits": splits}
    assert server.predict_grpc(inputs, "lookup")["tags"].tolist() == [[1.5, 3.5, 1]] * 10_000
    assert server.lookup({"tags": ids.reshape(-1, 8).tolist()})["tags"] == [[1.5, 3.5, 1]] * 10_000
    body = b'{"features": {"user": [' + b"1," * (1 << 19) + b"1]}}"
    assert server.http.post("/v1/models/default:lookup", content=body).status_code == 413
    assert server.lookup({"user": [1]}) == {"user": [[1, 10]]}


@pytest.mark.parametrize("forwarded", [False, True], ids=["answered", "forwarded"])
def test_metadata_of_64_kb_is_accepted_and_more_is_refused(serve: Serve, forwarded: bool) -> None:
    server = serve().ready()

    def predict(filler: int) -> object:
        metadata = [("x-filler", "a" * filler)]
        if forwarded:
            status = server.channel.unary_unary("/tensorflow.serving.ModelService/GetModelStatus")
            assert status(b"\n\t\n\x07default", timeout=60, metadata=metadata)
            return [[1, 10]]
        return predict_grpc(server.channel, {"user": np.array([1])}, "lookup", metadata=metadata)["user"].tolist()

    # The limit on a header list is 64 KB: it counts each name, value and 32 bytes more, and gRPC's own fields need some
    # hundred bytes.
    assert predict(63 << 10) == [[1, 10]]
    with pytest.raises(grpc.RpcError):
        predict(65 << 10)
    assert predict(1) == [[1, 10]]


def test_reflection_lists_the_services(serve: Serve) -> None:
    from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

    server = serve().ready()
    stub = reflection_pb2_grpc.ServerReflectionStub(server.channel)
    (answer,) = stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")]), timeout=60)
    names = {service.name for service in answer.list_services_response.service}
    assert {"tensorflow.serving.PredictionService", "tensorflow.serving.ModelService"} <= names


@pytest.mark.parametrize("flag", ["rest_api_port", "port"])
def test_a_port_in_use_stops_the_start_with_2_and_names_the_flag(serve: Serve, flag: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = serve(**{flag: port})
        assert server.exit_code() == 2
    assert "cannot start" in server.text()
    assert f"127.0.0.1:{port}" in server.text()
    assert f"--{flag}" in server.text()


def test_two_servers_never_share_a_port(serve: Serve) -> None:
    first = serve().ready()
    for flag, port in (("rest_api_port", first.http_port), ("port", first.grpc_port)):
        assert serve(**{flag: port}).exit_code() == 2


def test_bad_settings_stop_the_start_with_all_faults() -> None:
    result = run("--port=x", "--log_level=loud", "--rest_api_port=70000", EMB_COLOR="red")
    assert result.returncode == 2
    for fault in (
        "EMB_COLOR",
        "--port is 'x'",
        "--log_level is 'loud'",
        "--rest_api_port is 70000",
        "name a folder of models",
    ):
        assert fault in result.stderr
    assert "Traceback" not in result.stderr


def test_help_is_short_of_nothing() -> None:
    result = run("--help")
    assert result.returncode == 0
    assert "--model_base_path" in result.stdout
    assert result.stderr == ""


def test_settings_may_come_from_the_environment(base: Path) -> None:
    # The environment sets the required base path, and a bad flag ends the process before it starts to serve.
    result = run("--port=-1", EMB_MODEL_BASE_PATH=str(base))
    assert result.returncode == 2
    assert result.stderr.splitlines()[1:] == ["--port is -1: expected 0 to 65535"]


def test_the_log_has_one_json_object_per_line(serve: Serve) -> None:
    server = serve().ready()
    server.http.post("/v1/models/default:lookup", json={"features": {"user": [99]}})
    record = server.wait_for_log(
        "request refused: 'input \"user\": id 99 at position 0 is out of range, its table has ids 0 to 4.'"
    )
    assert record["level"] == "info"
    assert record["request_id"]
    assert {r["level"] for r in server.records} == {"info"}


def test_an_unknown_grpc_method_is_unimplemented(serve: Serve) -> None:
    server = serve().ready()
    request = message_class("tensorflow.serving.PredictRequest")().SerializeToString()
    for method in ("/tensorflow.serving.SessionService/SessionRun", "/nobody.Knows/This"):
        with pytest.raises(grpc.RpcError) as caught:
            server.channel.unary_unary(method)(request, timeout=60)
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_ipv6_is_served_where_there_is_any(serve: Serve) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    server = serve(host="::1")
    listening = server.wait_for_log("listening")
    server.wait_for_log("loaded")
    with grpc.insecure_channel(f"[::1]:{listening['grpc_port']}") as channel:
        assert predict_grpc(channel, {"user": np.array([2])}, "lookup")["user"].tolist() == [[2, 20]]


def test_a_second_model_folder_of_another_name_is_another_server(serve: Serve, tmp_path: Path) -> None:
    write_toy_model(tmp_path / "other" / "7", scale=3)
    first, second = serve().ready(), serve(model_base_path=tmp_path / "other").ready()
    assert first.lookup({"user": [1]}) == {"user": [[1, 10]]}
    assert second.lookup({"user": [1]}) == {"user": [[3, 30]]}
