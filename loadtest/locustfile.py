"""Sends load to a running server over gRPC and HTTP: for `make load`, or the compose profile `load`.

Each user sends at a steady rate (--rate requests per second), not as fast as answers come. So a slow server shows
longer response times instead of less load.
"""

from __future__ import annotations

import random
import time
from argparse import ArgumentParser
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, chain
from typing import Any

import grpc
import grpc.experimental.gevent
import requests
from locust import FastHttpUser, User, constant_throughput, events, task

from loadtest.wire import PREDICT_METHOD, message_classes, predict_request

# grpcio must use locust's gevent loop.
grpc.experimental.gevent.init_gevent()
PREDICT, LOOKUP = "serving_default", "lookup"
ZIPF_EXPONENT = 1.05
MAX_IDS_PER_ROW = 8


@events.init_command_line_parser.add_listener
def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--grpc_host", default="127.0.0.1:8500", help="gRPC address of the server")
    parser.add_argument("--model", default="movielens", help="served name of the model")
    parser.add_argument("--rows", type=int, default=8, help="rows per request")
    parser.add_argument("--rate", type=float, default=25.0, help="requests per second of each user")
    parser.add_argument("--seed", type=int, default=0, help="of the ids")


@dataclass(frozen=True, slots=True)
class Feature:
    """A feature whose ids are drawn for requests. cumulative: running sums of the Zipf weights of the feature's ids."""

    name: str
    is_ragged: bool
    cumulative: tuple[float, ...]

    def draw(self, source: random.Random, count: int) -> list[int]:
        """Draws random ids; small ids are the most frequent."""
        return source.choices(range(len(self.cumulative)), cum_weights=self.cumulative, k=count)

    def rows(self, source: random.Random, count: int) -> list[Any]:
        """Draws the ids of a request's rows; a ragged row holds 0 to MAX_IDS_PER_ROW ids."""
        if not self.is_ragged:
            return self.draw(source, count)
        return [self.draw(source, source.randint(0, MAX_IDS_PER_ROW)) for _ in range(count)]

    def tensors(self, rows: list[Any]) -> dict[str, list[int]]:
        """Converts rows to flat int64 tensors for gRPC, named NAME, or NAME__values and NAME__row_splits."""
        if not self.is_ragged:
            return {self.name: rows}
        splits = [0, *accumulate(map(len, rows))]
        return {f"{self.name}__values": [*chain.from_iterable(rows)], f"{self.name}__row_splits": splits}


@cache
def served_features(host: str, model: str, signature: str) -> list[Feature]:
    """Reads the features of a signature from the server; later calls return the same list."""
    documents = []
    for name in ("tables", "metadata"):
        answer = requests.get(f"{host}/v1/models/{model}/{name}", timeout=10)
        answer.raise_for_status()
        documents.append(answer.json())
    inputs = documents[1]["metadata"]["signature_def"]["signature_def"][signature]["inputs"]
    found = []
    for table in documents[0]["tables"]:
        cumulative = tuple(accumulate(1 / rank**ZIPF_EXPONENT for rank in range(1, table["vocabulary_size"] + 1)))
        for name in table["features"]:
            if f"{name}__row_splits" in inputs or name in inputs:
                found.append(Feature(name, f"{name}__row_splits" in inputs, cumulative))
    return found


class Requests:
    """The source of random requests for both kinds of locust users."""

    def __init__(self, environment: Any) -> None:
        options = environment.parsed_options
        self.model: str = options.model
        self._host: str = environment.host
        self._num_rows: int = options.rows
        self._source = random.Random(options.seed)

    def columns(self, signature: str) -> dict[str, list[Any]]:
        return {feature.name: rows for feature, rows in self._draw(signature)}

    def tensors(self, signature: str) -> dict[str, list[int]]:
        pairs = (feature.tensors(rows).items() for feature, rows in self._draw(signature))
        return dict(chain.from_iterable(pairs))

    def _draw(self, signature: str) -> list[tuple[Feature, list[Any]]]:
        features = served_features(self._host, self.model, signature)
        return [(feature, feature.rows(self._source, self._num_rows)) for feature in features]


def rate(user: Any) -> float:
    """Returns locust's wait time between two requests of a user, by which the user keeps the rate --rate."""
    return constant_throughput(user.environment.parsed_options.rate)(user)


class HttpClient(FastHttpUser):
    """A locust user that sends JSON requests over HTTP."""

    wait_time = rate

    def on_start(self) -> None:
        self.requests = Requests(self.environment)

    @task(3)
    def lookup(self) -> None:
        body = {"features": self.requests.columns(LOOKUP)}
        self.client.post(f"/v1/models/{self.requests.model}:lookup", json=body, name=":lookup")

    @task(1)
    def predict(self) -> None:
        body = {"inputs": self.requests.columns(PREDICT)}
        self.client.post(f"/v1/models/{self.requests.model}:predict", json=body, name=":predict")


class GrpcClient(User):
    """A locust user that calls TensorFlow Serving's Predict, reported to locust under the name "Predict SIGNATURE"."""

    wait_time = rate

    def __init__(self, environment: Any) -> None:
        super().__init__(environment)
        self.requests = Requests(environment)
        self._request_class, response_class = message_classes()
        channel = grpc.insecure_channel(environment.parsed_options.grpc_host)
        self._predict: Callable[..., Any] = channel.unary_unary(
            PREDICT_METHOD,
            request_serializer=self._request_class.SerializeToString,
            response_deserializer=response_class.FromString,
        )

    @task(3)
    def lookup(self) -> None:
        self._send(LOOKUP)

    @task(1)
    def predict_rating(self) -> None:
        self._send(PREDICT)

    def _send(self, signature: str) -> None:
        tensors = self.requests.tensors(signature)
        request = predict_request(self._request_class, self.requests.model, signature, tensors)
        started = time.perf_counter()
        response, failure = None, None
        try:
            response = self._predict(request, timeout=10)
        except grpc.RpcError as error:
            failure = error
        self.environment.events.request.fire(
            request_type="grpc",
            name=f"Predict {signature}",
            response_time=(time.perf_counter() - started) * 1000,
            response_length=0 if response is None else response.ByteSize(),
            exception=failure,
        )
