"""Graph runs are overloaded: refused requests get an error, admitted ones an answer, and other requests are served."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import grpc
import grpc.aio
import httpx
import numpy as np
import pytest

from tests.conformance.wires import PREDICT, predict_outputs, predict_request
from tests.exposition import read_exposition
from tests.integration.process import PATIENCE_S, ServerProcess, until

pytestmark = pytest.mark.tf
CONFIG = """model_config_list {
  config { name: "flooded" base_path: "%s" model_platform: "tensorflow" }
  config { name: "other" base_path: "%s" model_platform: "tensorflow" }
}
"""
CLIENTS, REQUESTS = 40, 6
_WIDTH = 256
# ok: the right answer; refused: an error because of overload; failed: anything else.
Kind = Literal["ok", "refused", "failed"]
X, Y = 3.0, 6.0


def write_slow_model(folder: Path, layers: int) -> None:
    """Writes a version folder of the slow model; each layer costs about 17 million multiplications."""
    import tensorflow

    tf: Any = tensorflow

    class Slow(tf.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.kernel = tf.Variable(tf.eye(_WIDTH) * 0.5)

        @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, "x")])  # type: ignore[untyped-decorator]
        def answer(self, x: Any) -> dict[str, Any]:
            state = tf.fill([_WIDTH, _WIDTH], tf.reduce_sum(x))
            for _ in range(layers):
                state = tf.matmul(state, self.kernel)
            # min(abs(sum), 0) is always 0, which TensorFlow's optimizer does not recognize, so it does not remove the
            # layers.
            return {"y": 2.0 * x + tf.minimum(tf.abs(tf.reduce_sum(state)), 0.0)}

    module = Slow()
    tf.saved_model.save(module, str(folder), signatures=module.answer)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Starts a server of two slow models, which lets eight requests wait."""
    folder = tmp_path_factory.mktemp("slow")
    write_slow_model(folder / "model" / "1", layers=20)
    config = folder / "models.config"
    config.write_text(CONFIG % (folder / "model", folder / "model"))
    settings: dict[str, object] = {
        "model_config_file": config,
        "version_settle_s": 0,
        "tensorflow_session_parallelism": 1,
        "grpc_max_threads": 1,
        "max_queued_requests": 8,
        # On a slow machine, requests wait longer, and the server must not refuse them because of that.
        "max_queue_ms": 60_000,
    }
    with ServerProcess(**settings) as server:
        yield server.ready()


@pytest.mark.parametrize("wire", ["http", "grpc"])
def test_a_flood_is_refused_in_part_and_another_model_is_answered(server: ServerProcess, wire: str) -> None:
    kinds, hints, others = asyncio.run(_flood(server, wire))
    assert kinds.keys() == {"ok", "refused"}
    assert kinds.total() == CLIENTS * REQUESTS
    assert set(others) == {"ok"}
    assert hints == kinds["refused"]
    until(lambda: _sample(server, "refused_total", reason="queue", model="flooded") >= kinds["refused"])
    assert _sample(server, "refused_total", reason="queue", model="other") == 0
    until(lambda: _sample(server, "in_flight_bytes", model="flooded") == 0)


async def _flood(server: ServerProcess, wire: str) -> tuple[Counter[Kind], int, list[Kind]]:
    kinds: Counter[Kind] = Counter()
    hints = 0
    others: list[Kind] = []
    limits = httpx.Limits(max_connections=None)
    async with (
        httpx.AsyncClient(base_url=server.http.base_url, timeout=PATIENCE_S, limits=limits) as http,
        grpc.aio.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel,
    ):

        async def ask(model: str) -> tuple[Kind, bool]:
            return await (_ask_http(http, model) if wire == "http" else _ask_grpc(channel, model))

        async def client() -> None:
            nonlocal hints
            for _ in range(REQUESTS):
                kind, has_hint = await ask("flooded")
                kinds[kind] += 1
                hints += has_hint

        flood = asyncio.gather(*(client() for _ in range(CLIENTS)))
        while not flood.done() and len(others) < 20:
            others.append((await ask("other"))[0])
        await flood
    return kinds, hints, others


async def _ask_http(http: httpx.AsyncClient, model: str) -> tuple[Kind, bool]:
    """Sends a request; returns its outcome, and whether a refusal had a Retry-After."""
    answer = await http.post(f"/v1/models/{model}:predict", json={"inputs": {"x": [X]}})
    if answer.status_code == 200:
        return ("ok" if answer.json() == {"outputs": [Y]} else "failed"), False
    return ("refused" if answer.status_code == 503 else "failed"), "retry-after" in answer.headers


async def _ask_grpc(channel: grpc.aio.Channel, model: str) -> tuple[Kind, bool]:
    """Calls Predict; returns the outcome, and whether a refusal's trailers say when to try again."""
    request = predict_request(model, {"x": np.array([X], np.float32)}, "serving_default")
    try:
        data = await channel.unary_unary(PREDICT)(request, timeout=PATIENCE_S)
    except grpc.aio.AioRpcError as error:
        has_hint = any(key == "grpc-retry-pushback-ms" for key, _ in error.trailing_metadata() or ())
        return ("refused" if error.code() is grpc.StatusCode.UNAVAILABLE else "failed"), has_hint
    return ("ok" if predict_outputs(data)["y"].tolist() == [Y] else "failed"), False


def _sample(server: ServerProcess, name: str, **labels: str) -> float:
    """Returns the value of a sample, or 0 if it is absent because nothing was counted yet."""
    family = read_exposition(server.http.get("/metrics").text)[f"embedding_server_{name}"]
    return family.value(**labels) if labels in family.labelled() else 0.0
