"""Starts, ports and flags of the wires: lookups without TensorFlow, limits, addresses, and starts that are refused."""

from __future__ import annotations

import gzip
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pytest

from service.artifact.protos import message_class
from tests.conformance.wires import fill_tensor
from tests.integration.conftest import Serve
from tests.integration.process import PATIENCE_S, ROOT, ServerProcess, environment, predict_grpc

MAX_RSS_BYTES = 270 << 20


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


@pytest.fixture(scope="module")
def server(toy_model: Path) -> Iterator[ServerProcess]:
    """Starts a server for tests that change nothing."""
    with ServerProcess(model_base_path=toy_model, graph_signatures="off") as server:
        yield server.ready()


@pytest.mark.parametrize("forwarded", [False, True], ids=["answered", "forwarded"])
def test_metadata_of_64_kb_is_accepted_and_more_is_refused(server: ServerProcess, forwarded: bool) -> None:
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


def test_two_servers_never_share_a_port(server: ServerProcess, serve: Serve) -> None:
    for flag, port in (("rest_api_port", server.http_port), ("port", server.grpc_port)):
        assert serve(**{flag: port}).exit_code() == 2


def test_the_log_has_one_json_object_per_line(server: ServerProcess) -> None:
    server.http.post("/v1/models/default:lookup", json={"features": {"user": [99]}})
    record = server.wait_for_log(
        "request refused: 'input \"user\": id 99 at position 0 is out of range, its table has ids 0 to 4.'"
    )
    assert record["level"] == "info"
    assert record["request_id"]
    assert {r["level"] for r in server.records} == {"info"}


def test_a_large_answer_that_is_forwarded_is_compressed_for_who_accepts_it(server: ServerProcess) -> None:
    plain, packed = (server.http.get("/openapi.json", headers={"Accept-Encoding": it}) for it in ("gzip;q=0", "gzip"))
    assert packed.headers["content-encoding"] == "gzip" and "content-encoding" not in plain.headers
    assert packed.headers["vary"] == plain.headers["vary"] == "Accept-Encoding"
    assert packed.content == plain.content and int(packed.headers["content-length"]) < len(plain.content)


INPUTS: dict[str, Any] = {
    "user": np.array([1]),
    "tags__values": np.array([3]),
    "tags__row_splits": np.array([0, 1]),
}


def _has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


needs_ipv6 = pytest.mark.skipif(not _has_ipv6(), reason="this machine has no IPv6")


def listening_ports(pid: int) -> set[int]:
    """Returns the numbers of the TCP ports on which a process listens."""
    inodes = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            inodes.add(str(link.readlink()).removeprefix("socket:[").removesuffix("]"))
        except OSError:
            continue
    found = set()
    for family in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{family}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                found.add(int(fields[1].rpartition(":")[2], 16))
    return found


@contextmanager
def channel_to(target: str) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(target) as channel:
        yield channel


def asks(target: str) -> bool:
    """Says whether a server at a gRPC target answers a lookup."""
    with channel_to(target) as channel:
        answer = predict_grpc(channel, INPUTS, "lookup")
    return answer["user"].tolist() == [[1, 10]]


def is_healthy(*flags: str) -> bool:
    """Says whether the image's health check finds the server ready."""
    command = [sys.executable, "-m", "service.healthcheck", "--host=127.0.0.1", *flags]
    return subprocess.run(command, cwd=ROOT, env=environment(), timeout=PATIENCE_S).returncode == 0


def test_0_is_off_as_in_tensorflow_serving(serve: Serve, tmp_path: Path) -> None:
    grpc_only = serve(rest_api_port=0)
    ports = grpc_only.wait_for_log("listening")
    assert ports.keys().isdisjoint({"http_port", "admin_port"})
    assert listening_ports(grpc_only.pid) == {ports["grpc_port"]}
    grpc_only.wait_for_log("loaded")
    assert asks(f"127.0.0.1:{ports['grpc_port']}")
    assert is_healthy("--rest_api_port=0", f"--port={ports['grpc_port']}")

    http_only = serve(port=0).ready()
    assert http_only.grpc_port is None
    assert listening_ports(http_only.pid) == {http_only.http_port}
    assert http_only.lookup({"user": [1]}) == {"user": [[1, 10]]}

    path = tmp_path / "grpc.sock"
    socket_only = serve(port=0, rest_api_port=0, grpc_socket_path=path)
    assert socket_only.wait_for_log("listening").keys().isdisjoint({"http_port", "grpc_port", "admin_port"})
    socket_only.wait_for_log("loaded")
    assert asks(f"unix:{path}")
    assert listening_ports(socket_only.pid) == set()
    assert is_healthy("--rest_api_port=0", "--port=0", f"--grpc_socket_path={path}")
    for server in (grpc_only, http_only, socket_only):
        server.signal(15)
        assert server.exit_code() == 0
    assert not is_healthy("--rest_api_port=0", "--port=0", f"--grpc_socket_path={path}")


@needs_ipv6
@pytest.mark.parametrize("host", ["[::]", "0.0.0.0,::", "127.0.0.1,[::1]"])
def test_both_families_reach_a_server(serve: Serve, host: str) -> None:
    server = serve(host=host, admin_port="auto", admin_host="127.0.0.1,::1").answering()
    server.wait_for_log("loaded")
    _ask_by_both(server)


def _ask_by_both(server: ServerProcess) -> None:
    for address in ("127.0.0.1", "[::1]"):
        assert asks(f"{address}:{server.grpc_port}")
        body = {"features": {"user": [1]}}
        answer = httpx.post(f"http://{address}:{server.http_port}/v1/models/default:lookup", json=body, timeout=60)
        assert answer.json()["embeddings"] == {"user": [[1, 10]]}
        assert httpx.get(f"http://{address}:{server.admin_port}/healthz", timeout=60).status_code == 200


@needs_ipv6
def test_an_address_that_is_in_use_is_named(serve: Serve) -> None:
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as taken:
        port = taken.getsockname()[1]
        server = serve(host="127.0.0.1,::1", rest_api_port=port)
        assert server.exit_code() == 2
    assert f"cannot listen on [::1]:{port} for HTTP: Address already in use" in server.text()


PREDICT = "/tensorflow.serving.PredictionService/Predict"


def test_flags_of_the_wires(serve: Serve, tmp_path_factory: pytest.TempPathFactory) -> None:
    socket = tmp_path_factory.mktemp("s") / "grpc"
    flags = ("--rest_api_enable_cors_support", "--enable_serialization_as_tensor_content", "--rest_api_strict_json")
    settings = {
        "grpc_socket_path": socket,
        "grpc_channel_arguments": "grpc.max_receive_message_length=2000",
        "rest_api_gzip_min_bytes": 1000,
    }
    request = message_class("tensorflow.serving.PredictRequest")()
    request.model_spec.name, request.model_spec.signature_name = "default", "lookup"
    fill_tensor(request.inputs["user"], np.array([1, 4]))
    server = serve(*flags, **settings).ready()
    with grpc.insecure_channel(f"unix:{socket}") as local:
        for channel in (server.channel, local):
            data = channel.unary_unary(PREDICT)(request.SerializeToString(), timeout=PATIENCE_S)
            (output,) = message_class("tensorflow.serving.PredictResponse").FromString(data).outputs.values()
            assert np.frombuffer(output.tensor_content, "<f4").tolist() == [1.0, 10.0, 4.0, 40.0]
    request.inputs["user"].Clear()
    fill_tensor(request.inputs["user"], np.ones(4000, np.int64))
    with pytest.raises(grpc.RpcError) as caught:
        server.channel.unary_unary(PREDICT)(request.SerializeToString(), timeout=PATIENCE_S)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED

    path = "/V1/MODELS/default:lookup"
    response = server.http.post(path, json={"features": {"user": [1] * 1000}}, headers={"Origin": "http://a"})
    assert response.json()["embeddings"]["user"] == [[1.0, 10.0]] * 1000
    assert response.headers["content-encoding"] == "gzip"
    assert response.headers["access-control-allow-origin"] == "*"
    response = server.http.post(path, content=b'{"features": {"user": [NaN]}}')
    assert response.status_code == 400 and "NaN" in json.loads(response.content)["error"]


def test_a_limit_below_the_size_of_small_requests_holds(serve: Serve) -> None:
    server = serve(max_request_bytes=1024).ready()
    request = message_class("tensorflow.serving.PredictRequest")()
    request.model_spec.name, request.model_spec.signature_name = "default", "lookup"
    call = server.channel.unary_unary(PREDICT)
    for is_packed in (False, True):
        compression = grpc.Compression.Gzip if is_packed else grpc.Compression.NoCompression
        for ids, is_fitting in ((500, True), (4000, False)):
            request.inputs["user"].Clear()
            fill_tensor(request.inputs["user"], np.ones(ids, np.int64))
            try:
                call(request.SerializeToString(), timeout=PATIENCE_S, compression=compression)
                code = grpc.StatusCode.OK
            except grpc.RpcError as error:
                code = error.code()
            assert code is (grpc.StatusCode.OK if is_fitting else grpc.StatusCode.RESOURCE_EXHAUSTED)
            body = b'{"features": {"user": [%s]}}' % b",".join([b"1"] * (ids // 2))
            headers = {"content-encoding": "gzip"} if is_packed else {}
            response = server.http.post(
                "/v1/models/default:lookup", content=gzip.compress(body) if is_packed else body, headers=headers
            )
            assert response.status_code == (200 if is_fitting else 413)
