"""The kinds of requests of the soak test, with each kind's share of all requests and its expected answer."""

from __future__ import annotations

import gzip
import http.client
import json
import random
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

import grpc
import numpy as np

from loadtest.bench.workloads import GRPC, JSON, MODEL, Arrays, Data, check
from loadtest.live_server import LiveServer
from loadtest.wire import ANSWERS, METADATA_METHOD, PREDICT_METHOD, STATUS_METHOD, message_class, message_classes

# Timeout of one request, much longer than even a busy machine needs.
_PATIENCE_S = 30.0
_OPTIONS = [
    # The option grpc.use_local_subchannel_pool makes grpcio open a separate connection for each channel.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", -1),
]
_CONTENT = (("x-tensor-encoding", "content"),)
_GZIP = (("x-response-encoding", "gzip"),)
# The first bytes of gzip data; no message of a PredictResponse begins with them.
_GZIP_MAGIC = b"\x1f\x8b\x08"
SMALL_LOOKUP = "small lookup"


class Wrong(Exception):
    """Raised if the server's answer is not the expected one."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that is sent again and again. answer: its first answer, which was checked, without the version."""

    body: bytes
    answer: Any
    inputs: Arrays
    expected: Arrays


class Calls:
    """Sender of every kind of request; the caller gives the gRPC channel.

    share: kind -> (its share of all requests, the function that sends one).
    """

    def __init__(self, server: LiveServer, data: Data, *, has_predict: bool) -> None:
        """Sends each request once and compares the answer with numpy's; raises AssertionError and grpc.RpcError."""
        self._grpc, self._http = server.grpc, server.http.removeprefix("http://")
        self.share: dict[str, tuple[float, Callable[[grpc.Channel, random.Random], str]]] = {}
        with self.channel() as channel:
            asked = {
                name: [self._first(channel, name, inputs, data, ()) for inputs in data.requests(name)]
                for name in ("W1", "W2", "W4", *(["W5"] if has_predict else []))
            }
            content = [self._first(channel, "W2", inputs, data, _CONTENT) for inputs in data.requests("W2")]
        self._large, self._medium = asked["W4"], asked["W2"]
        self.share[SMALL_LOOKUP] = (60, partial(self._right, asked["W1"], (), None))
        self.share["lookup"] = (8, partial(self._right, asked["W2"], (), None))
        self.share["tensor_content"] = (6, partial(self._right, content, _CONTENT, None))
        self.share["gzip"] = (5, partial(self._right, asked["W2"], _GZIP, grpc.Compression.Gzip))
        self.share["large lookup"] = (1.5, partial(self._right, asked["W4"], (), None))
        if has_predict:
            self.share["predict"] = (5, partial(self._right, asked["W5"], (), None))
        self.share |= {
            "bad request": (4, self._bad),
            "unknown model": (2, self._unknown),
            "short deadline": (2, self._short_deadline),
            "cancelled": (2, self._cancelled),
            "channel closed": (0.5, self._channel_closed),
            "metadata": (1, self._metadata),
            "status": (1, self._status),
            "HTTP": (4, self._over_http),
            "HTTP small lookup": (12, partial(self._small_over_http, asked["W1"])),
        }

    def channel(self) -> grpc.Channel:
        return grpc.insecure_channel(self._grpc, _OPTIONS)

    def _first(self, channel: grpc.Channel, workload: str, inputs: Arrays, data: Data, metadata: Any) -> Asked:
        body, _ = GRPC.encode(workload, inputs)
        if metadata is _CONTENT:
            body = _with_content(body)
        answer = _unary(channel, PREDICT_METHOD, body, metadata=metadata)
        expected = data.expected(workload, inputs)
        check(GRPC.decode(answer, {}), expected, exact=workload != "W5")
        return Asked(body, _unversioned(answer), inputs, expected)

    def _right(
        self,
        asked: list[Asked],
        metadata: Any,
        compression: grpc.Compression | None,
        channel: grpc.Channel,
        source: random.Random,
    ) -> str:
        one = source.choice(asked)
        call = channel.unary_unary(PREDICT_METHOD)
        body, rpc = call.with_call(one.body, timeout=_PATIENCE_S, metadata=metadata, compression=compression)
        if body[:3] == _GZIP_MAGIC:
            # The client's library has removed the compression that the answer's flag and header tell, and hides both:
            # here either the message was compressed twice, or the header `grpc-encoding` was missing.
            raise Wrong(
                f"an answer of {len(body)} bytes is still compressed, as if twice; status {rpc.code().name}, initial "
                f"metadata {rpc.initial_metadata()}, trailing metadata {rpc.trailing_metadata()}, first bytes "
                f"{body[:16].hex()}, request compressed: {compression is not None}"
            )
        if _unversioned(body) != one.answer:
            check(GRPC.decode(body, {}), one.expected, exact=True)
            raise Wrong("the answer is within 1e-6 of numpy's, but not the first answer to the bit")
        return "OK"

    def _bad(self, channel: grpc.Channel, source: random.Random) -> str:
        request = message_classes()[0].FromString(source.choice(self._medium).body)
        fault = source.choice(["no such row", "ids without their row splits", "too small a shape", "a wrong name"])
        if fault == "no such row":
            request.inputs["user"].int64_val[0] = 1 << 40
        elif fault == "ids without their row splits":
            del request.inputs["tags__row_splits"]
        elif fault == "too small a shape":
            request.inputs["user"].tensor_shape.dim[0].size -= 1
        else:
            request.inputs["nobody"].CopyFrom(request.inputs["user"])
        return _refused(channel, PREDICT_METHOD, request, grpc.StatusCode.INVALID_ARGUMENT, fault)

    def _unknown(self, channel: grpc.Channel, source: random.Random) -> str:
        request = message_classes()[0].FromString(source.choice(self._medium).body)
        request.model_spec.name = f"nobody{source.randrange(10**6)}"
        return _refused(channel, PREDICT_METHOD, request, grpc.StatusCode.NOT_FOUND, "no such model")

    def _short_deadline(self, channel: grpc.Channel, source: random.Random) -> str:
        one = source.choice(self._large if source.random() < 0.3 else self._medium)
        timeout_s = source.uniform(1e-4, 5e-3)
        try:
            return _code(lambda: _unary(channel, PREDICT_METHOD, one.body, timeout=timeout_s), "DEADLINE")
        except grpc.RpcError as error:
            # The server refuses a request at once if other requests wait and the request's deadline would pass before
            # its turn.
            if not (error.details() or "").startswith("The server is overloaded"):
                raise
            return "refused at once"

    def _cancelled(self, channel: grpc.Channel, source: random.Random) -> str:
        one = source.choice(self._large if source.random() < 0.3 else self._medium)
        call = channel.unary_unary(PREDICT_METHOD).future(one.body, timeout=_PATIENCE_S)
        time.sleep(source.uniform(0, 4e-3))
        call.cancel()
        return _code(call.result, "CANCELLED")

    def _channel_closed(self, _channel: grpc.Channel, source: random.Random) -> str:
        channel = self.channel()
        large = source.choice(self._large)
        try:
            call = channel.unary_unary(PREDICT_METHOD).future(large.body, timeout=_PATIENCE_S, wait_for_ready=True)
            time.sleep(source.uniform(0, 2e-2))
        finally:
            channel.close()
        return _code(call.result, "CANCELLED")

    def _metadata(self, channel: grpc.Channel, _source: random.Random) -> str:
        kind = message_class("tensorflow.serving.GetModelMetadataRequest")
        request = kind(model_spec={"name": MODEL}, metadata_field=["signature_def"])
        body = _unary(channel, METADATA_METHOD, request.SerializeToString())
        answer = message_class(ANSWERS[METADATA_METHOD]).FromString(body)
        if "signature_def" not in answer.metadata:
            raise Wrong("no signature_def")
        return "OK"

    def _status(self, channel: grpc.Channel, _source: random.Random) -> str:
        if not self.available(channel):
            raise Wrong("no version is AVAILABLE")
        return "OK"

    def available(self, channel: grpc.Channel) -> set[int]:
        request = message_class("tensorflow.serving.GetModelStatusRequest")(model_spec={"name": MODEL})
        body = _unary(channel, STATUS_METHOD, request.SerializeToString())
        statuses = message_class(ANSWERS[STATUS_METHOD]).FromString(body).model_version_status
        # AVAILABLE = 30.
        return {status.version for status in statuses if status.state == 30}

    def _small_over_http(self, asked: list[Asked], _channel: grpc.Channel, source: random.Random) -> str:
        with self._connection() as connection:
            for _ in range(4):
                _check_post(connection, "W1", source.choice(asked))
        return "4 times 200"

    def _over_http(self, _channel: grpc.Channel, source: random.Random) -> str:
        with self._connection() as connection:
            _check_post(connection, "W2", source.choice(self._medium))
            status, answer = _post(connection, JSON.path("W2"), b'{"features": {"nobody": [1]}}', {})
            if status != 400 or "error" not in json.loads(answer):
                raise Wrong(f"HTTP {status} to a bad request: {answer[:200]!r}")
        return "200 and 400"

    def _connection(self) -> closing[http.client.HTTPConnection]:
        return closing(http.client.HTTPConnection(self._http, timeout=_PATIENCE_S))


def _check_post(connection: http.client.HTTPConnection, workload: str, asked: Asked) -> None:
    body, headers = JSON.encode(workload, asked.inputs)
    status, answer = _post(connection, JSON.path(workload), body, dict(headers))
    if status != 200:
        raise Wrong(f"HTTP {status}: {answer[:200]!r}")
    check(JSON.decode(answer, {}), asked.expected, exact=True)


def _post(connection: http.client.HTTPConnection, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
    connection.request("POST", path, body, headers | {"Accept-Encoding": "gzip"})
    response = connection.getresponse()
    answer = response.read()
    return response.status, gzip.decompress(answer) if response.getheader("Content-Encoding") == "gzip" else answer


def _unary(channel: grpc.Channel, method: str, body: bytes, *, timeout: float = _PATIENCE_S, **options: Any) -> bytes:
    answer: bytes = channel.unary_unary(method)(body, timeout=timeout, **options)
    return answer


def _refused(channel: grpc.Channel, method: str, request: Any, code: grpc.StatusCode, fault: str) -> str:
    try:
        _unary(channel, method, request.SerializeToString())
    except grpc.RpcError as error:
        if error.code() is not code:
            raise
        return code.name
    raise Wrong(f"{fault}: answered, where {code.name} was due")


def _code(call: Callable[[], Any], allowed: str) -> str:
    """Makes a gRPC call; returns "OK", or the name of its error status if the error is allowed; raises other errors."""
    try:
        call()
    except grpc.FutureCancelledError:
        return "CANCELLED"
    except grpc.RpcError as error:
        if not error.code().name.startswith(allowed):
            raise
        return error.code().name
    return "OK"


def _unversioned(body: bytes) -> Any:
    answer = message_classes()[1].FromString(body)
    answer.ClearField("model_spec")
    return answer


def _with_content(body: bytes) -> bytes:
    """Returns a copy of a request whose tensors have their values in tensor_content."""
    request = message_classes()[0].FromString(body)
    for tensor in request.inputs.values():
        tensor.tensor_content = np.array(tensor.int64_val, "<i8").tobytes()
        tensor.ClearField("int64_val")
    return bytes(request.SerializeToString())
