"""Clients that send lookups while a test harms the server, and count their answers."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import grpc
import httpx
import numpy as np

from tests.integration.process import PACE_S, PATIENCE_S, ServerProcess, predict_grpc

FEATURES = {"user": [3], "tags_sum": [[1, 2, 3], [], [3]]}
INPUTS = {"user": [3], "tags_sum__values": [1, 2, 3, 3], "tags_sum__row_splits": [0, 3, 3, 4]}
# The expected answer of the toy model at scale 1.
ANSWER = {"user": [[3, 30]], "tags_sum": [[6, 14, 3], [0, 0, 0], [3, 9, 1]]}


class SteadyClients:
    """Two threads of clients per wire. An answer counts by the scale of its version, a refusal by its code.

    counts: scale or code -> number of answers. wrong: answers that fit no version, or mix two.
    """

    def __init__(self, server: ServerProcess) -> None:
        self._server = server
        self._stop = threading.Event()
        self.counts: Counter[float | str] = Counter()
        self.wrong: list[Any] = []
        self._threads = [threading.Thread(target=self._run, args=(t,)) for t in (self._http, self._grpc) * 2]

    def _run(self, ask: Callable[[Any], Any]) -> None:
        with httpx.Client(base_url=self._server.http.base_url, timeout=PATIENCE_S) as http:
            while not self._stop.wait(PACE_S):
                try:
                    answer = ask(http)
                except Exception as error:
                    answer = f"{type(error).__name__}: {error}"
                if isinstance(answer, str):
                    self.counts[answer] += 1
                    continue
                scale = answer["user"][0][0] / 3
                expected = {name: (scale * np.array(rows)).tolist() for name, rows in ANSWER.items()}
                if answer != expected or not scale:
                    self.wrong.append(answer)
                self.counts[scale] += 1

    def _http(self, http: httpx.Client) -> Any:
        response = http.post("/v1/models/default:lookup", json={"features": FEATURES})
        if response.status_code != 200:
            return response.headers["X-Error-Code"]
        answer = response.json()["embeddings"]
        # The scale of each version's rows is the version's number.
        is_named = float(response.headers["X-Model-Version"]) * ANSWER["user"][0][0] == answer["user"][0][0]
        return answer if is_named else answer | {"of": dict(response.headers)}

    def _grpc(self, http: httpx.Client) -> Any:
        inputs = {name: np.array(values) for name, values in INPUTS.items()}
        try:
            outputs = predict_grpc(self._server.channel, inputs, "lookup")
        except grpc.RpcError as error:
            return error.code().name
        return {name: array.tolist() for name, array in outputs.items()}

    def unexpected(self, *codes: str) -> list[str]:
        """Returns the outcomes that are no answer, none of these codes, and no connection that broke or was refused."""
        found = [one for one in self.counts if isinstance(one, str) and one not in codes]
        return [one for one in found if not re.match("(Connect|Read|Write|RemoteProtocol)Error: ", one)]

    def __enter__(self) -> SteadyClients:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)
