"""The native core and the reference server give the same answers: random calls of every wire to both, side by side.

The reference is an independent implementation in numpy, so a difference is a fault of one of both.

`--parity-requests N` draws N requests of each model, each for every wire (default 200).
"""

from __future__ import annotations

import http.client
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from service.artifact.protos import message_class
from service.wire.json_body import MAX_KEYS, MAX_LISTS
from tests.conformance.conftest import TOY_MODELS
from tests.conformance.random_calls import Call, RandomCalls
from tests.conformance.wires import PREDICT, predict_outputs, predict_request
from tests.integration.process import ServerProcess
from tests.mixed_model import NUM_ITEMS, NUM_USERS, write_mixed_model
from tests.toy_sums import DTYPES, VOCABULARY_SIZE, features, write_sums_model

pytestmark = pytest.mark.core

# Input of model "described" with shape [B, K] -> K, or 0 if K is free.
_IDS_PER_ROW = {"any": 0, "two": 2}
# The wires that the reference has.
_WIRES = {"grpc", "json lookup", "json columns", "json rows"}
# Headers that differ between two answers to the same request, so they are not compared.
_OWN_HEADERS = {"date", "x-request-id", "server", "connection", "keep-alive"}


@pytest.fixture(scope="module")
def planes(toy_repository: Path) -> Iterator[dict[str, ServerProcess]]:
    """Starts a server of each data plane over the same models."""
    with ExitStack() as stack:
        servers = {
            plane: stack.enter_context(
                ServerProcess(
                    data_plane=plane, model_config_file=toy_repository / "models.config", graph_signatures="off"
                )
            )
            for plane in ("core", "reference")
        }
        for server in servers.values():
            server.ready()
        yield servers


class Answers:
    """Sends calls to one server and returns what came back, as bytes.

    authorization: sent with each call; "" is not.
    """

    def __init__(self, server: ServerProcess) -> None:
        self.authorization = ""
        self._channel = server.channel
        self._http = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=60)

    def close(self) -> None:
        """Ends the HTTP connection."""
        self._http.close()

    def to(self, call: Call) -> tuple[Any, bytes]:
        """Sends a call; returns the status and the body, over HTTP with the headers."""
        if call.is_grpc:
            try:
                metadata = [("authorization", self.authorization)] if self.authorization else []
                return "OK", self._channel.unary_unary(call.path)(call.body, timeout=60, metadata=metadata)
            except grpc.RpcError as error:
                # The text of the error is not compared: of several faults, the order of a protobuf map decides which
                # one is reported, and it differs between processes.
                return error.code().name, b""
        more = {"authorization": self.authorization} if self.authorization else {}
        self._http.request("POST", call.path, call.body, dict(call.headers) | more)
        response = self._http.getresponse()
        headers = sorted(
            (name.lower(), value) for name, value in response.getheaders() if name.lower() not in _OWN_HEADERS
        )
        return (response.status, *headers), response.read()


@pytest.mark.parametrize("model", TOY_MODELS)
def test_both_planes_give_the_same_answers(
    model: str, planes: dict[str, ServerProcess], toy_repository: Path, request: pytest.FixtureRequest
) -> None:
    rng = random.Random(f"planes of {model}")
    calls = RandomCalls(model, toy_repository / model / "1", _IDS_PER_ROW)
    answered: Counter[str] = Counter()
    with (
        closing(Answers(planes["core"])) as core,
        closing(Answers(planes["reference"])) as reference,
    ):
        for _ in range(request.config.getoption("--parity-requests")):
            for call in calls.draw(rng):
                if call.wire not in _WIRES:
                    continue
                expected, found = comparable(reference.to(call)), comparable(core.to(call))
                assert found == expected, (call, found, expected)
                answered[call.wire] += expected[0] in ("OK", 200)
    # For each wire, at least one of the compared answers is not a refusal.
    assert answered.keys() == _WIRES and min(answered.values()) > 0, answered


def comparable(answer: tuple[Any, bytes]) -> tuple[Any, Any]:
    """Returns the status of an answer, and the numbers bit for bit; of an error, the canonical code and no text.

    The order of outputs in a message, the headers and the texts of errors may differ.
    """
    head, body = answer
    if head == "OK":
        message = message_class("tensorflow.serving.PredictResponse").FromString(body)
        return head, message.SerializeToString(deterministic=True)
    if isinstance(head, tuple):
        status, *headers = head
        return status, json.loads(body) if status == 200 else dict(headers).get("x-error-code")
    return head, None


_LOOKUP, _PREDICT, _INFER = "/v1/models/toy:lookup", "/v1/models/toy:predict", "/v2/models/toy/infer"
_ROWS = "/v1/models/toy/tables/user:rows"


def keys(count: int) -> Iterator[tuple[str, bytes]]:
    """Yields for each form of request a document with `count` keys; colons in strings count as keys."""
    rows = b",".join([b'{"user":1}'] * (count - 2))
    yield _PREDICT, b'{"signature_name":"lookup","instances":[%s]}' % rows
    inputs = b'[{"name":"user","datatype":"INT64","shape":[1],"data":[1]}]'
    yield _INFER, b'{"id":"%s","parameters":{"signature_name":"lookup"},"inputs":%s}' % (b":" * (count - 8), inputs)
    # Lookups and rows can not have so many valid keys, so these documents are refused.
    yield _LOOKUP, b'{"signature_name":"%s","features":{"user":[1]}}' % (b":" * (count - 3))
    yield _ROWS, b'{"ids":["%s"]}' % (b":" * (count - 1))


def lists(count: int) -> Iterator[tuple[str, bytes]]:
    """Yields, for each form of request, a document with `count` lists and objects."""
    yield _LOOKUP, b'{"features":{"tags":[%s]}}' % b",".join([b"[1]"] * (count - 3))
    yield _PREDICT, b'{"signature_name":"lookup","inputs":{"user":[1],"tags":[[1]%s]}}' % (b",[]" * (count - 5))
    rows = b",".join([b"[1]"] * (count - 6))
    inputs = b'[{"name":"user","datatype":"INT64","shape":[%d],"data":[%s]}]' % (count - 6, rows)
    yield _INFER, b'{"parameters":{"signature_name":"lookup"},"inputs":%s}' % inputs
    # The route for rows of a table accepts no nested lists, so it refuses this document.
    yield _ROWS, b'{"ids":[%s]}' % b",".join([b"[1]"] * (count - 2))


def depth(levels: int) -> Iterator[tuple[str, bytes]]:
    """Yields, for each JSON form of a request, its route and a document with lists nested `levels` deep."""
    deep = b"[" * levels + b"1" + b"]" * levels
    yield _LOOKUP, b'{"features":{"tags":%s}}' % deep
    yield _PREDICT, b'{"signature_name":"lookup","inputs":{"tags":%s}}' % deep
    for head in (b'"datatype":"INT64","data":%s', b'"data":%s,"datatype":"INT64"'):
        tensor = b'{"name":"user","shape":[1],%s}' % (head % deep)
        yield _INFER, b'{"parameters":{"signature_name":"lookup"},"inputs":[%s]}' % tensor
    yield _ROWS, b'{"ids":%s}' % deep


def digits(count: int) -> Iterator[tuple[str, bytes]]:
    """Yields, for each form of request, documents with numbers of `count` digits."""
    for number in (b"1" * count, b"-" + b"1" * count, b"1." + b"0" * count, b"0." + b"1" * count, b"1e" + b"1" * count):
        yield _LOOKUP, b'{"features":{"user":[%s]}}' % number
        yield _LOOKUP, b'{"features":{"tags":[[1]]},"weights":{"tags":[[%s]]}}' % number
        yield _PREDICT, b'{"signature_name":"lookup","inputs":{"user":[%s]}}' % number
        inputs = b'[{"name":"user","datatype":"INT64","shape":[1],"data":[%s]}]' % number
        yield _INFER, b'{"parameters":{"signature_name":"lookup"},"inputs":%s}' % inputs
        yield _ROWS, b'{"ids":[%s]}' % number


@pytest.mark.parametrize(
    ("documents", "size", "statuses"),
    [
        *((keys, MAX_KEYS + more, {200, 400}) for more in (-1, 0)),
        (keys, MAX_KEYS + 1, {413}),
        *((lists, MAX_LISTS + more, {200, 400}) for more in (-1, 0)),
        (lists, MAX_LISTS + 1, {413}),
        # In the Open Inference Protocol, data may be nested up to 64 levels deep, whatever its shape.
        *((depth, levels, {200, 400}) for levels in (8, 9, 16, 17, 64)),
        *((depth, levels, {400}) for levels in (65, 200, 201, 1024, 1025, 100_000)),
        *((digits, count, {200, 400}) for count in (18, 19, 20, 309, 100_000)),
    ],
)
def test_both_planes_bound_json_alike(
    documents: Callable[[int], Iterator[tuple[str, bytes]]],
    size: int,
    statuses: set[int],
    planes: dict[str, ServerProcess],
) -> None:
    found = set()
    with closing(Answers(planes["core"])) as core, closing(Answers(planes["reference"])) as reference:
        for path, body in documents(size):
            call = Call("json", False, path, body)
            answer = comparable(core.to(call))
            # The reference has no Open Inference Protocol, and no limits but that on bytes.
            if path != _INFER and documents not in (keys, lists):
                assert answer == comparable(reference.to(call)), (path, body[:200])
            found.add(answer[0])
    assert found == statuses


def test_sums_of_every_order_and_dtype_have_the_same_bits(tmp_path: Path) -> None:
    write_sums_model(tmp_path / "sums" / "1")
    rng = np.random.default_rng(7)
    with ExitStack() as stack:
        servers = [
            stack.enter_context(ServerProcess(data_plane=plane, model_name="sums", model_base_path=tmp_path / "sums"))
            for plane in ("core", "reference")
        ]
        core, reference = (stack.enter_context(closing(Answers(server.ready()))) for server in servers)
        for dtype in DTYPES:
            for with_weights in (False, True):
                inputs = {}
                for entry in features(dtype).values():
                    lengths = np.concatenate([np.arange(40), [0]])
                    count = int(lengths.sum())
                    inputs[entry["ids"]] = rng.integers(0, VOCABULARY_SIZE, count)
                    inputs[entry["row_splits"]] = np.cumsum(np.concatenate([[0], lengths]))
                    if with_weights and "weights" in entry:
                        weights = rng.choice(np.float32([1e-39, -0.0, 0.0, -1.5, 0.3, 1.0, 7.7, 1e30]), count)
                        inputs[entry["weights"]] = weights
                call = Call("grpc", True, PREDICT, predict_request("sums", inputs, dtype))
                (status, expected), (other, found) = comparable(reference.to(call)), comparable(core.to(call))
                assert status == other == "OK"
                bits = (predict_outputs(data) for data in (expected, found))
                for (name, wanted), (_, got) in zip(*(sorted(one.items()) for one in bits), strict=True):
                    assert got.view(np.uint32).tolist() == wanted.view(np.uint32).tolist(), (name, with_weights)


@pytest.mark.tf
def test_graphs_give_the_same_answers(tf: Any, tmp_path: Path) -> None:
    write_mixed_model(tf, tmp_path / "mixed" / "1")
    rng = np.random.default_rng(5)
    with ExitStack() as stack:
        servers = [
            stack.enter_context(ServerProcess(data_plane=plane, model_name="mixed", model_base_path=tmp_path / "mixed"))
            for plane in ("core", "reference")
        ]
        core, reference = (stack.enter_context(closing(Answers(server.ready()))) for server in servers)
        answered = Counter[str]()
        for rows in (1, 2, 7, 64):
            for signature in ("serving_default", "plain", "colored"):
                for inputs in graph_inputs(rng, signature, rows):
                    call = Call("grpc", True, PREDICT, predict_request("mixed", inputs, signature))
                    expected, found = comparable(reference.to(call)), comparable(core.to(call))
                    assert found == expected, (signature, rows)
                    answered[expected[0]] += 1
    assert answered["OK"] and answered["INVALID_ARGUMENT"], answered


def graph_inputs(rng: np.random.Generator, signature: str, rows: int) -> Iterator[dict[str, Any]]:
    """Yields inputs of the mixed model: good ones, an id out of range, a missing input, and a wrong dtype."""
    if signature == "colored":
        yield {"color": rng.integers(0, 3, rows)}
        yield {"color": np.array([b"red", b"blue"] * rows, object)}
        yield {"color": np.array([b"no such color"], object)}
        return
    lengths = rng.integers(0, 4, rows)
    count = int(lengths.sum())
    splits = np.cumsum(np.concatenate([[0], lengths]))
    good = {
        "dense": rng.normal(size=(rows, 3)).astype(np.float32),
        "user": rng.integers(0, NUM_USERS, rows),
        "friend": rng.integers(0, NUM_USERS, rows),
        "pair": rng.integers(0, NUM_USERS, (rows, 2)),
        "tags__values": rng.integers(0, NUM_ITEMS, count),
        "tags__row_splits": splits,
        "tags__weights": rng.normal(size=count).astype(np.float32),
        "history__values": rng.integers(0, NUM_ITEMS, count),
        "history__row_splits": splits,
    }
    if signature == "serving_default":
        good["word"] = np.array([f"word {i}".encode() for i in rng.integers(0, 99, rows)], object)
    yield good
    yield good | {"user": good["user"] + NUM_USERS}
    yield {name: array for name, array in good.items() if name != "dense"}
    yield good | {"dense": good["dense"].astype(np.int32)}
    yield good | {"dense": good["dense"][:, :2]}
