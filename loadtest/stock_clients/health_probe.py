"""Calls grpc.health.v1 as health probes do: Check, Watch, and the program grpc_health_probe of Kubernetes setups."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from functools import partial
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from loadtest.stock_clients.outcome import Check, Place, Skip, require

CLIENT = "grpc_health"
_TIMEOUT_S = 30


def checks(place: Place) -> Iterator[Check]:
    stub = health_pb2_grpc.HealthStub(grpc.insecure_channel(place.grpc))
    for service in ("", "tensorflow.serving.PredictionService", place.model.name):
        yield Check(CLIENT, f"Check {service or 'the server'}", partial(_check, stub, service))
    yield Check(CLIENT, "Check a service that is not there", partial(_check_unknown, stub))
    yield Check(CLIENT, "Watch the server", partial(_watch, stub))
    yield Check("grpc_health_probe", "-addr", partial(_probe, place))


def _check(stub: Any, service: str) -> str:
    status = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=_TIMEOUT_S).status
    require(status == health_pb2.HealthCheckResponse.SERVING, _name(status))
    return _name(status)


def _check_unknown(stub: Any) -> str:
    try:
        stub.Check(health_pb2.HealthCheckRequest(service="no.such.Service"), timeout=_TIMEOUT_S)
    except grpc.RpcError as error:
        require(error.code() is grpc.StatusCode.NOT_FOUND, str(error.code()))
        return f"NOT_FOUND: {error.details()}"
    raise AssertionError("it was answered")


def _watch(stub: Any) -> str:
    stream = stub.Watch(health_pb2.HealthCheckRequest(service=""), timeout=_TIMEOUT_S)
    status = next(stream).status
    stream.cancel()
    require(status == health_pb2.HealthCheckResponse.SERVING, _name(status))
    return f"first status {_name(status)}"


def _name(status: int) -> str:
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(status))


def _probe(place: Place) -> str:
    binary = shutil.which("grpc_health_probe")
    if binary is None:
        raise Skip("grpc_health_probe is not on PATH")
    done = subprocess.run([binary, f"-addr={place.grpc}"], capture_output=True, text=True, timeout=_TIMEOUT_S)
    require(done.returncode == 0, done.stderr)
    return done.stdout + done.stderr
