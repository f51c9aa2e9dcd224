"""Readiness of a server with several models: a fault of one model takes no server from its load balancer."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path
from typing import NamedTuple

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from service.artifact.protos import message_class
from tests.exposition import read_exposition
from tests.integration.conftest import Serve
from tests.integration.process import ServerProcess, until
from tests.toy_model import write_toy_model

SERVICES = ("", "tensorflow.serving.PredictionService", "inference.GRPCInferenceService")


class Seen(NamedTuple):
    """Readiness on each wire: of the server, and of the models "a" and "b"."""

    server: bool
    a: bool
    b: bool


def inference(server: ServerProcess, method: str, **fields: str) -> bool:
    """Calls a gRPC method of the Open Inference Protocol such as ServerReady; returns the answer's `ready`."""
    request = message_class(f"inference.{method}Request")(**fields).SerializeToString()
    answer = server.channel.unary_unary(f"/inference.GRPCInferenceService/{method}")(request, timeout=60)
    return bool(message_class(f"inference.{method}Response").FromString(answer).ready)


def readiness(server: ServerProcess) -> dict[str, Seen]:
    """Asks every wire."""
    stub = health_pb2_grpc.HealthStub(server.channel)

    def is_ok(path: str) -> bool:
        return server.http.get(path).status_code == 200

    def is_serving(service: str) -> bool:
        return int(stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=60).status) == 1

    families = read_exposition(server.http.get("/metrics").text)
    models = families["embedding_server_model_ready"]
    return {
        "readyz": Seen(is_ok("/readyz"), is_ok("/v2/models/a/ready"), is_ok("/v2/models/b/ready")),
        "v2": Seen(is_ok("/v2/health/ready"), is_ok("/v2/models/a/ready"), is_ok("/v2/models/b/ready")),
        "health": Seen(all(map(is_serving, SERVICES)), is_serving("a"), is_serving("b")),
        "inference": Seen(
            inference(server, "ServerReady"),
            inference(server, "ModelReady", name="a"),
            inference(server, "ModelReady", name="b"),
        ),
        "metrics": Seen(
            families["embedding_server_ready"].value() == 1, models.value(model="a") == 1, models.value(model="b") == 1
        ),
    }


def shows(server: ServerProcess, *seen: bool) -> None:
    """Waits until every wire shows this readiness."""
    expected = Seen(*seen)
    until(lambda: set(readiness(server).values()) == {expected})


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """Writes a config file with models "a" and "b"; only "a" has a version."""
    write_toy_model(tmp_path / "a" / "1")
    config = tmp_path / "models.conf"
    listed = "".join(
        f'config {{ name: "{name}" base_path: "{tmp_path / name}" model_platform: "tensorflow" }}\n' for name in "ab"
    )
    config.write_text(f"model_config_list {{ {listed} }}")
    return config


def test_a_model_that_never_loads_or_is_lost_takes_no_server_away(serve: Serve, models: Path) -> None:
    server = serve(model_base_path="", model_config_file=models).answering()
    shows(server, True, True, False)
    problem = f"cannot read its folder {models.parent / 'b'}: No such file or directory"
    assert server.http.get("/readyz").json() == {"status": "ready", "problems": {"b": problem}}
    write_toy_model(models.parent / "incoming")
    (models.parent / "b").mkdir()
    (models.parent / "incoming").rename(models.parent / "b" / "1")
    shows(server, True, True, True)
    assert server.http.get("/readyz").json() == {"status": "ready", "problems": {}}
    # The only version of model a is deleted, and model b still answers.
    shutil.rmtree(models.parent / "a" / "1")
    shows(server, True, False, True)
    assert server.lookup({"user": [4]}, model="b") == {"user": [[4, 40]]}
    shutil.rmtree(models.parent / "b" / "1")
    shows(server, False, False, False)
    assert server.http.get("/healthz").status_code == 200


def test_strict_readiness_needs_every_model(serve: Serve, models: Path) -> None:
    server = serve("--strict_readiness", model_base_path="", model_config_file=models).answering()
    shows(server, False, True, False)
    write_toy_model(models.parent / "incoming")
    (models.parent / "b").mkdir()
    (models.parent / "incoming").rename(models.parent / "b" / "1")
    shows(server, True, True, True)


def test_every_wire_fails_readiness_before_the_server_drains(serve: Serve, models: Path) -> None:
    server = serve(model_base_path="", model_config_file=models, shutdown_delay_s=600).answering()
    shows(server, True, True, False)
    server.signal(signal.SIGTERM)
    server.wait_for_log("draining")
    until(lambda: server.http.get("/readyz").status_code == 503)
    # The metric of a model says whether one of its versions answers; during the drain, model a still does.
    seen = readiness(server)
    assert seen.pop("metrics") == (False, True, False)
    assert set(seen.values()) == {Seen(False, False, False)}
    assert server.http.get("/readyz").json()["problems"].keys() == {"", "b"}
    assert server.lookup({"user": [4]}, model="a") == {"user": [[4, 40]]}, "requests are answered during the delay"
    # SIGKILL ends the server, which would otherwise serve on until the end of its shutdown delay.
    server.signal(signal.SIGKILL)
