"""A server killed with kill -9 under load starts again in the same place."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import httpx
import numpy as np

from tests.integration.conftest import Serve
from tests.integration.process import PATIENCE_S, until
from tests.integration.steady_clients import FEATURES

URL = "/v1/models/default:lookup"
ANSWER = {"user": [[3, 30]], "tags_sum": [[6, 14, 3]]}


class Persistent:
    """A client that sends its request again if its connection breaks, as one with retries does."""

    def __init__(self, port: int) -> None:
        self._base_url = f"http://127.0.0.1:{port}"
        self._is_over = threading.Event()
        self.num_answers = 0
        self.wrong: list[str] = []
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        with httpx.Client(base_url=self._base_url, timeout=PATIENCE_S) as http:
            while not self._is_over.is_set():
                try:
                    response = http.post(URL, json={"features": FEATURES})
                except httpx.TransportError:
                    # The server was killed: it does not listen yet, or ended before it answered. The client sends the
                    # request again.
                    self._is_over.wait(0.01)
                    continue
                # A server that starts or drains answers 503.
                if response.status_code != 503:
                    if response.status_code != 200 or response.json()["embeddings"] != ANSWER:
                        self.wrong.append(response.text)
                    self.num_answers += 1

    def __enter__(self) -> Persistent:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_over.set()
        self._thread.join(PATIENCE_S)


def test_a_server_killed_under_load_is_restarted_in_its_place(serve: Serve, base: Path) -> None:
    first = serve().ready()
    with Persistent(first.http_port) as one, Persistent(first.http_port) as other:
        until(lambda: min(one.num_answers, other.num_answers) > 20)
        os.kill(first.pid, signal.SIGKILL)
        first.exit_code()
        second = serve(port=first.grpc_port, rest_api_port=first.http_port).ready()
        before = one.num_answers, other.num_answers
        until(lambda: one.num_answers > before[0] + 20 and other.num_answers > before[1] + 20)
    assert one.wrong == other.wrong == []
    assert second.predict_grpc({"user": np.array([1])}, "lookup")["user"].tolist() == [[1, 10]]
