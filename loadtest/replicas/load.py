"""Clients with their usual retries, which send lookups at a steady rate and check every row."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import grpc
import numpy as np
import requests
from requests.adapters import HTTPAdapter
from urllib3.util.retry import Retry

from loadtest.replicas.fleet import MODEL, user_rows
from loadtest.steady_load import Counts, SteadyLoad
from loadtest.wire import PREDICT_METHOD, message_classes, predict_request

_CLIENTS = 4
# Seconds from one request of a client to its next one.
PERIOD_S = 0.02
_NUM_IDS = 20
# Longest time of a call, all of its attempts together.
_TIMEOUT_S = 5.0
# The retries of gRPC clients that docs/replicas.md documents, as a gRPC service config.
_SERVICE_CONFIG = """{
  "loadBalancingConfig": [{"round_robin": {}}],
  "methodConfig": [{
    "name": [{"service": "tensorflow.serving.PredictionService"}],
    "retryPolicy": {
      "maxAttempts": 4,
      "initialBackoff": "0.02s",
      "maxBackoff": "0.5s",
      "backoffMultiplier": 3,
      "retryableStatusCodes": ["UNAVAILABLE"]
    }
  }]
}"""
_RETRIES = Retry(total=3, backoff_factor=0.05, status_forcelist=(502, 503, 504), allowed_methods=None)


@dataclass
class Tally(Counts):
    """Counts of the requests over one wire while one fault lasts; seconds: the time of each answered request."""

    seconds: list[float] = field(default_factory=list)

    def quantile_ms(self, q: float) -> float:
        """Returns a quantile of the answered requests' response times in milliseconds; q from 0 to 1."""
        return float(np.quantile(self.seconds, q)) * 1e3 if self.seconds else float("nan")


class Load(SteadyLoad):
    """Clients that call until the `with` block ends.

    tallies: wire -> its counts since renew() was called last.
    """

    def __init__(self, grpc_target: str, http_url: str, period_s: float = PERIOD_S) -> None:
        """Makes clients that call over gRPC and, unless http_url is "", clients that call over HTTP."""
        self._period_s = period_s
        self._wires = {"gRPC": lambda: _grpc_lookups(grpc_target)}
        if http_url:
            self._wires["HTTP"] = lambda: _http_lookups(http_url)
        self.renew()
        super().__init__(*(partial(self._run, wire, n) for wire in self._wires for n in range(_CLIENTS)))

    def renew(self) -> dict[str, Tally]:
        """Starts new counts of requests, and returns them; requests under way still count in the previous counts."""
        self.tallies = {wire: Tally() for wire in self._wires}
        return self.tallies

    def _run(self, wire: str, number: int) -> None:
        source = random.Random(number)
        look_up = self._wires[wire]()
        self.is_over.wait(number * self._period_s / _CLIENTS)
        while not self.is_over.is_set():
            ids = [source.randrange(5) for _ in range(_NUM_IDS)]
            tally, begin_s = self.tallies[wire], time.monotonic()
            try:
                version, rows = look_up(ids)
                error = ""
            except grpc.RpcError as failure:
                error = f"{failure.code().name}: {failure.details()}"
            except requests.RequestException as failure:
                error = f"{type(failure).__name__}: {failure}"
            end_s = time.monotonic()
            with self.counting:
                if error:
                    tally.fail(error)
                else:
                    tally.seconds.append(end_s - begin_s)
                    tally.versions[version] += 1
                    tally.wrong += not np.array_equal(rows, user_rows(version)[ids])
            self.is_over.wait(max(0.0, begin_s + self._period_s - end_s))


def _grpc_lookups(target: str) -> Callable[[list[int]], tuple[int, np.ndarray]]:
    options = [
        ("grpc.service_config", _SERVICE_CONFIG),
        # Each client has its own connections, not those of other clients of this process.
        ("grpc.use_local_subchannel_pool", 1),
        # Without this option, grpcio would send an authority that HTTP/2 does not allow if it has a list of addresses
        # (docs/replicas.md).
        ("grpc.default_authority", "replicas"),
    ]
    request_class, response_class = message_classes()
    predict = grpc.insecure_channel(target, options).unary_unary(
        PREDICT_METHOD, request_class.SerializeToString, response_class.FromString
    )

    def look_up(ids: list[int]) -> tuple[int, np.ndarray]:
        answer = predict(predict_request(request_class, MODEL, "lookup", {"user": ids}), timeout=_TIMEOUT_S)
        rows = np.array(answer.outputs["user"].float_val, np.float32).reshape(len(ids), -1)
        return answer.model_spec.version.value, rows

    return look_up


def _http_lookups(url: str) -> Callable[[list[int]], tuple[int, np.ndarray]]:
    session = requests.Session()
    session.mount("http://", HTTPAdapter(max_retries=_RETRIES))

    def look_up(ids: list[int]) -> tuple[int, np.ndarray]:
        body: dict[str, Any] = {"features": {"user": ids}}
        answer = session.post(f"{url}/v1/models/{MODEL}:lookup", json=body, timeout=_TIMEOUT_S)
        answer.raise_for_status()
        rows = np.array(answer.json()["embeddings"]["user"], np.float32)
        return int(answer.headers["X-Model-Version"]), rows

    return look_up
