"""Serves constant answers with a bare ASGI application under uvicorn; at /orjson/* it also decodes and encodes JSON."""

from __future__ import annotations

import json
import socket
import sys
import time
from typing import Any

import numpy as np
import orjson
import uvicorn
import uvloop

from loadtest.bench.baselines.answers import constant_answers, listening


class App:
    """ASGI application: /constant/W returns constant bytes; /orjson/W parses JSON and encodes float32 arrays."""

    def __init__(self) -> None:
        self._answers = constant_answers("json")
        self.arrays = {
            path.replace("constant", "orjson"): _as_arrays(json.loads(answer)) for path, answer in self._answers.items()
        }

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Handles one HTTP request of an ASGI server."""
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        path = scope["path"]
        answer = self._answers.get(path)
        if answer is None:
            orjson.loads(body)
            answer = orjson.dumps(self.arrays[path], option=orjson.OPT_SERIALIZE_NUMPY)
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(answer))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer})


def _as_arrays(answer: dict[str, dict[str, Any]]) -> Any:
    return {key: {name: np.array(rows, np.float32) for name, rows in value.items()} for key, value in answer.items()}


def encode_alone() -> None:
    """Times orjson's encoding of arrays: for each duration (a line of stdin), prints the mean seconds per encoding."""
    arrays = App().arrays[f"/orjson/{sys.argv[2]}"]
    listening(0)
    for line in sys.stdin:
        end_s = time.perf_counter() + float(line)
        started_s, count = time.perf_counter(), 0
        while time.perf_counter() < end_s:
            orjson.dumps(arrays, option=orjson.OPT_SERIALIZE_NUMPY)
            count += 1
        sys.stdout.write(f"{(time.perf_counter() - started_s) / count}\n")
        sys.stdout.flush()


async def serve(app: Any) -> None:
    """Serves an ASGI application with the same uvicorn settings as the service: uvloop, httptools, no access log."""
    config = uvicorn.Config(app, http="httptools", ws="none", lifespan="off", access_log=False, log_config=None)
    listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
    listening(listener.getsockname()[1])
    await uvicorn.Server(config).serve(sockets=[listener])


if __name__ == "__main__":
    encode_alone() if len(sys.argv) > 2 else uvloop.run(serve(App()))
