"""Measures the requests per second of the adopted version and of the original one, in turns on the same machine."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import grpc

from loadtest.bench.generator import Ask, LoadError, drive
from loadtest.foreign.kinds import Tensors
from loadtest.foreign.wires import grpc_request, rest_body, rest_path
from loadtest.live_server import LiveServer, exchange
from loadtest.wire import PREDICT_METHOD

NUM_ROWS, NUM_REQUESTS = 32, 16
_CONNECTIONS, _WARM_S, _TIMEOUT_S = 8, 0.2, 60


@dataclass(frozen=True, slots=True)
class Speed:
    """Median requests per second of one signature over one wire. reason: why they are missing; "" if measured."""

    adopted: float = 0.0
    original: float = 0.0
    reason: str = ""

    @property
    def ratio(self) -> float | None:
        return self.adopted / self.original if self.original else None

    def as_json(self) -> dict[str, Any]:
        return {"adopted": self.adopted, "original": self.original, "ratio": self.ratio, "reason": self.reason}


def measure(
    servers: Sequence[LiveServer],
    model: str,
    signature: str,
    requests: Sequence[Tensors],
    *,
    is_grpc: bool,
    seconds: float,
    rounds: int,
) -> Speed:
    """Returns the medians of both servers' rates, measured in turns on 8 connections; all requests must be valid."""
    rates: list[list[float]] = [[], []]
    try:
        asks = [_ask(server, model, signature, requests, is_grpc=is_grpc) for server in servers]
        for _ in range(rounds):
            for server, ask, found in zip(servers, asks, rates, strict=True):
                shot = drive(
                    ask,
                    _port(server, is_grpc=is_grpc),
                    connections=_CONNECTIONS,
                    seconds=seconds,
                    warm_s=_WARM_S,
                    server_cpu_s=lambda: 0.0,
                )
                found.append(shot.requests_per_s)
    except (LoadError, grpc.RpcError, OSError) as error:
        return Speed(reason=f"{type(error).__name__}: {error}")
    adopted, original = map(statistics.median, rates)
    return Speed(adopted, original)


def _port(server: LiveServer, *, is_grpc: bool) -> int:
    return int((server.grpc if is_grpc else server.http).rpartition(":")[2])


def _ask(server: LiveServer, model: str, signature: str, requests: Sequence[Tensors], *, is_grpc: bool) -> Ask:
    # Each request is sent once: the load generator checks that later answers have the size of the first one.
    if is_grpc:
        bodies = [grpc_request(model, signature, tensors).SerializeToString() for tensors in requests]
        with grpc.insecure_channel(server.grpc) as channel:
            call = channel.unary_unary(PREDICT_METHOD)
            sizes = [len(call(body, timeout=_TIMEOUT_S)) for body in bodies]
        return Ask(True, PREDICT_METHOD, bodies, sizes, [()] * len(bodies))
    bodies = [rest_body(signature, tensors) for tensors in requests]
    headers = [("content-type", "application/json")]
    sizes = [_rest_size(server, rest_path(model), body, dict(headers)) for body in bodies]
    return Ask(False, rest_path(model), bodies, sizes, [headers] * len(bodies))


def _rest_size(server: LiveServer, path: str, body: bytes, headers: dict[str, str]) -> int:
    status, answer = exchange(server.http, path, body, headers)
    if status != 200:
        raise LoadError(f"{status}: {answer[:200]!r}")
    return len(answer)
