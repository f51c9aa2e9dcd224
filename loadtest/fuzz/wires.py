"""Sends request number i, which depends only on the seed and i, so that any request can be sent again."""

from __future__ import annotations

import http.client
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol

import grpc

from loadtest.fuzz import verdicts
from loadtest.fuzz.byte_mutations import mutated
from loadtest.fuzz.json_mutations import mutated_json
from loadtest.fuzz.seeds import PREDICT, REFLECTION, RELOAD, Route, grpc_seeds, http_seeds
from loadtest.fuzz.verdicts import Verdict
from loadtest.model_samples import ServedModel

TIMEOUT_S = 60
_PREDICT_SHARE = 0.85


@dataclass(frozen=True, slots=True)
class Sent:
    """One request that was sent, its route or method, and the verdict on the server's answer."""

    target: str
    payload: bytes
    verdict: Verdict


class Wire(Protocol):
    """The interface of a connection over which one thread sends mutated requests."""

    batch: int

    def send_all(self, numbers: Sequence[int]) -> list[tuple[int, Sent]]:
        """Makes and sends the requests with these numbers, at most `batch`; returns (number, request) in any order."""

    def close(self) -> None:
        """Closes the connection."""


class _OneByOne:
    """Base class of the Wire classes that send one request at a time."""

    batch = 1

    def send(self, number: int) -> Sent:
        """Makes and sends the request that this number determines, and judges the server's answer."""
        raise NotImplementedError

    def send_all(self, numbers: Sequence[int]) -> list[tuple[int, Sent]]:
        """Makes and sends the requests with these numbers, one after the other; returns (number, request) of each."""
        return [(number, self.send(number)) for number in numbers]


class GrpcWire(_OneByOne):
    """Sender of mutated gRPC messages, mostly to Predict, some to other methods. Concurrency: one caller at a time."""

    def __init__(self, address: str, model: ServedModel, seed: int) -> None:
        self._channel = grpc.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)])
        self._seed = seed
        self._seeds = grpc_seeds(model)
        # Only ReloadWire calls the reload method, because a mutated reload that is valid by chance changes the served
        # models.
        self._others = [method for method in self._seeds if method not in (PREDICT, RELOAD)]
        self._calls: dict[str, Any] = {method: self._channel.unary_unary(method) for method in self._seeds}
        self._reflect: Any = self._channel.stream_stream(REFLECTION)

    def send(self, number: int) -> Sent:
        source = Random(f"grpc {self._seed} {number}")
        method = PREDICT if source.random() < _PREDICT_SHARE else source.choice(self._others)
        return self._send(method, mutated(source, self._seeds[method]))

    def _send(self, method: str, payload: bytes) -> Sent:
        try:
            if method == REFLECTION:
                data = b"".join(self._reflect(iter([payload]), timeout=TIMEOUT_S))
            else:
                data = self._calls[method](payload, timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            return Sent(method, payload, verdicts.of_grpc_error(error))
        return Sent(method, payload, verdicts.of_grpc_answer(method, data))

    def close(self) -> None:
        self._channel.close()


class ReloadWire(GrpcWire):
    """Sender of mutated configurations to the gRPC method that reloads the list of models."""

    def send(self, number: int) -> Sent:
        source = Random(f"reload {self._seed} {number}")
        return self._send(RELOAD, mutated(source, self._seeds[RELOAD]))


class HttpWire(_OneByOne):
    """Sender of mutated JSON to every HTTP route that accepts a body. Concurrency: one caller at a time."""

    def __init__(self, address: str, model: ServedModel, seed: int) -> None:
        host, _, port = address.removeprefix("http://").partition(":")
        self._connection = http.client.HTTPConnection(host, int(port), timeout=TIMEOUT_S)
        self._seed = seed
        self._routes = http_seeds(model)

    def send(self, number: int) -> Sent:
        source = Random(f"http {self._seed} {number}")
        route = source.choice(self._routes)
        body, headers = mutated_json(source, route.documents)
        try:
            verdict = self._post(route, body, headers)
        except (OSError, http.client.HTTPException):
            # A server may close an idle connection just when the client sends on it, so send the request once more on a
            # new connection.
            self._connection.close()
            try:
                verdict = self._post(route, body, headers)
            except (OSError, http.client.HTTPException) as error:
                self._connection.close()
                verdict = Verdict("no answer", f"no answer: {error!r}")
        return Sent(route.path, body, verdict)

    def close(self) -> None:
        self._connection.close()

    def _post(self, route: Route, body: bytes, headers: dict[str, str]) -> Verdict:
        self._connection.request("POST", route.path, body, headers)
        response = self._connection.getresponse()
        content_type = response.headers.get("Content-Type", "")
        return verdicts.of_http(response.status, content_type, response.read(), route.answers)
