"""A message is compressed at most once: each answer's flag and header agree, and one gunzip gives the plain answer."""

from __future__ import annotations

import gzip
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from service.artifact.protos import message_class
from tests.conformance.wires import PREDICT, fill_tensor
from tests.integration.h2_client import Answer, H2Client, framed
from tests.integration.process import ServerProcess
from tests.toy_model import write_toy_model

# A field that PredictRequest does not have: protobuf ignores it, and the core forwards the request for it.
UNKNOWN_FIELD = b"\x78\x01"
GZIP = (("x-response-encoding", "gzip"),)
THREADS, CALLS = 8, 150


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Starts a server of the toy model."""
    base: Path = tmp_path_factory.mktemp("model")
    write_toy_model(base / "1")
    with ServerProcess(model_base_path=base, graph_signatures="off") as started:
        yield started.ready()


def message(rows: int) -> bytes:
    """Returns a lookup of this many rows."""
    request: Any = message_class("tensorflow.serving.PredictRequest")()
    request.model_spec.name, request.model_spec.signature_name = "default", "lookup"
    fill_tensor(request.inputs["user"], np.arange(rows) % 5)
    return bytes(request.SerializeToString())


def compressed(data: bytes) -> bytes:
    """Returns a message with gRPC's prefix, which says that it is compressed."""
    body = gzip.compress(data)
    return b"\1" + len(body).to_bytes(4, "big") + body


def plain(answer: Answer) -> tuple[bytes, bool]:
    """Returns an answer's message, inflated if its flag and its header say so, and whether it was."""
    assert answer.status == 0 and len(answer.data) == 5 + int.from_bytes(answer.data[1:5], "big")
    is_compressed = answer.data[0] == 1
    assert not is_compressed or answer.headers["grpc-encoding"] == "gzip"
    return gzip.decompress(answer.data[5:]) if is_compressed else answer.data[5:], is_compressed


@pytest.mark.parametrize("is_sent_compressed", [False, True], ids=["plain", "gzip"])
def test_flags_headers_and_bodies_agree(server: ServerProcess, is_sent_compressed: bool) -> None:
    for rows in (1, 1000, 20_000):
        sent = message(rows)
        body, headers = framed(sent), {}
        if is_sent_compressed:
            body, headers = compressed(sent), {"grpc_encoding": "gzip"}
        with H2Client(server.grpc_port) as client:
            answers = []
            for more in ({}, {"x_response_encoding": "gzip"}):
                stream = client.begin(**headers, **more)
                client.send(stream, body)
                answers.append(plain(client.answer(stream)))
        (expected, is_first_compressed), (found, is_compressed) = answers
        assert found == expected and expected[:3] != b"\x1f\x8b\x08" and not is_first_compressed
        assert is_compressed


def test_many_answers_at_a_time_are_compressed_once(server: ServerProcess) -> None:
    bodies = [message(rows) + more for rows in (1, 64, 3000) for more in (b"", UNKNOWN_FIELD)]
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        call = channel.unary_unary(PREDICT)
        expected = [call(body, timeout=60) for body in bodies]

    def send(seed: int) -> int:
        source = random.Random(seed)
        with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}", [("grpc.use_local_subchannel_pool", 1)]) as channel:
            call = channel.unary_unary(PREDICT)
            for _ in range(CALLS):
                one = source.randrange(len(bodies))
                options: dict[str, Any] = {"metadata": GZIP if source.random() < 0.8 else ()}
                if source.random() < 0.5:
                    options["compression"] = grpc.Compression.Gzip
                if source.random() < 0.1:
                    call.future(bodies[one], timeout=60, **options).cancel()
                    continue
                found, rpc = call.with_call(bodies[one], timeout=60, **options)
                assert found == expected[one], (found[:8], rpc.initial_metadata(), rpc.trailing_metadata())
        return CALLS

    with ThreadPoolExecutor(THREADS) as threads:
        assert sum(threads.map(send, range(THREADS))) == THREADS * CALLS
