"""Load on a running server over both wires: `make load`, or the compose profile `load`.

Each user sends at a steady rate (--rate requests per second) instead of as fast as answers come, so a slow server shows
as a growing response time and not as less load.
"""

from __future__ import annotations

import random
from argparse import ArgumentParser
from functools import cache
from typing import Any

import requests
from locust import FastHttpUser, constant_throughput, events, task

from loadtest.grpc_user import GrpcUser
from loadtest.payloads import Feature, as_tensors, features_of, rows

PREDICT, LOOKUP = "serving_default", "lookup"


@events.init_command_line_parser.add_listener
def add_options(parser: ArgumentParser) -> None:
    """Adds our options to locust's."""
    parser.add_argument("--grpc_host", default="127.0.0.1:8500", help="gRPC address of the server")
    parser.add_argument("--model", default="movielens", help="served name of the model")
    parser.add_argument("--rows", type=int, default=8, help="rows per request")
    parser.add_argument("--rate", type=float, default=25.0, help="requests per second of each user")
    parser.add_argument("--seed", type=int, default=0, help="of the ids")


@cache
def served_features(host: str, model: str, signature: str) -> list[Feature]:
    """Asks the server once what a signature takes."""
    base = f"{host}/v1/models/{model}"
    tables = requests.get(f"{base}/tables", timeout=10)
    metadata = requests.get(f"{base}/metadata", timeout=10)
    tables.raise_for_status()
    metadata.raise_for_status()
    signatures = metadata.json()["metadata"]["signature_def"]["signature_def"]
    return features_of(tables.json()["tables"], signatures[signature])


class Requests:
    """Source of requests for both kinds of user."""

    def __init__(self, environment: Any) -> None:
        options = environment.parsed_options
        self.model: str = options.model
        self._host: str = environment.host
        self._num_rows: int = options.rows
        self._source = random.Random(options.seed)

    def features(self, signature: str) -> list[Feature]:
        """Returns the features that a signature takes."""
        return served_features(self._host, self.model, signature)

    def draw(self, signature: str) -> dict[str, list[Any]]:
        """Returns the rows of one request."""
        return rows(self.features(signature), self._num_rows, self._source)


def rate(user: Any) -> float:
    """Paces a user by --rate."""
    return constant_throughput(user.environment.parsed_options.rate)(user)


class HttpClient(FastHttpUser):
    """JSON over HTTP."""

    wait_time = rate

    def on_start(self) -> None:
        """Learns what the server serves."""
        self.requests = Requests(self.environment)

    @task(3)
    def lookup(self) -> None:
        """Looks up every feature of the model."""
        body = {"features": self.requests.draw(LOOKUP)}
        self.client.post(f"/v1/models/{self.requests.model}:lookup", json=body, name=":lookup")

    @task(1)
    def predict(self) -> None:
        """Predicts in columnar form."""
        body = {"inputs": self.requests.draw(PREDICT)}
        self.client.post(f"/v1/models/{self.requests.model}:predict", json=body, name=":predict")


class GrpcClient(GrpcUser):
    """TensorFlow Serving's Predict over gRPC."""

    wait_time = rate

    def on_start(self) -> None:
        """Learns what the server serves."""
        self.requests = Requests(self.environment)

    @task(3)
    def lookup(self) -> None:
        """Looks up every feature of the model."""
        self._send(LOOKUP)

    @task(1)
    def predict_rating(self) -> None:
        """Runs the default signature."""
        self._send(PREDICT)

    def _send(self, signature: str) -> None:
        tensors = as_tensors(self.requests.features(signature), self.requests.draw(signature))
        self.predict(self.requests.model, signature, tensors)
