"""Sends mutated requests over gRPC and HTTP, and judges whether the server's answers are right.

Request number i depends only on the seed and i, so each can be sent again alone. A small share of the requests also has
mutated HTTP headers or HTTP/2 frames; each of these is sent over a raw connection of its own.
"""

from __future__ import annotations

import http.client
import json
import math
import re
import select
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from loadtest.attacks import frames
from loadtest.fuzz.mutations import mutated, mutated_binary, mutated_json
from loadtest.fuzz.seeds import binary_seeds, grpc_seeds, http_seeds, infer_path
from loadtest.live_server import client_context
from loadtest.model_samples import ServedModel
from loadtest.wire import ANSWERS, INFER_METHOD, PREDICT_METHOD, RELOAD_METHOD, framed, message_class

# gRPC codes by which a server may refuse a mutated request; any other error is a wrong reaction.
_REFUSALS = {"INVALID_ARGUMENT", "NOT_FOUND", "FAILED_PRECONDITION", "OUT_OF_RANGE", "RESOURCE_EXHAUSTED"}
_REFUSALS |= {"UNIMPLEMENTED"}
_HTTP_REFUSALS = {400, 404, 413, 501}
# Maps a DataType number to the TensorProto field of its values, and to its bytes per value in tensor_content.
_VALUES = {
    **{1: ("float_val", 4), 2: ("double_val", 8), 3: ("int_val", 4), 7: ("string_val", 0), 9: ("int64_val", 8)},
    **dict.fromkeys((4, 6), ("int_val", 1)) | dict.fromkeys((5, 17), ("int_val", 2)),
    **{10: ("bool_val", 1), **dict.fromkeys((14, 19), ("half_val", 2)), 22: ("uint32_val", 4), 23: ("uint64_val", 8)},
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """The status of a server's answer, and a text that says what is wrong with the answer; "" if nothing is wrong."""

    status: str
    problem: str = ""


def of_grpc_answer(method: str, data: bytes) -> Verdict:
    """Judges the message of an OK answer over gRPC: it must parse, and a PredictResponse's tensors fit their shapes."""
    if method not in ANSWERS:
        return Verdict("OK")
    try:
        response = message_class(ANSWERS[method]).FromString(data)
    except DecodeError as error:
        return Verdict("OK", f"the answer can not be read: {error}")
    if method == PREDICT_METHOD:
        problems = [f"output {key!r}: {p}" for key, tensor in response.outputs.items() if (p := tensor_problem(tensor))]
        return Verdict("OK", "; ".join(problems))
    return Verdict("OK")


def tensor_problem(tensor: Any) -> str:
    """Describes why a TensorProto in an answer does not fit its own dtype and shape; "" if it fits."""
    if tensor.dtype not in _VALUES:
        return f"dtype {tensor.dtype}"
    sizes = [dim.size for dim in tensor.tensor_shape.dim]
    if tensor.tensor_shape.unknown_rank or min(sizes, default=0) < 0:
        return f"shape {sizes} is not known"
    field, itemsize = _VALUES[tensor.dtype]
    count = math.prod(sizes)
    held = len(getattr(tensor, field))
    if tensor.tensor_content:
        held = len(tensor.tensor_content) / itemsize if itemsize else -1
    return "" if held == count else f"{held:g} values of shape {sizes}"


def of_http(status: int, content_type: str, body: bytes, answers: Sequence[str]) -> Verdict:
    """Judges an answer over HTTP; answers: keys of which a good answer has one, unless its body is binary."""
    label = str(status)
    if status == 503 and body.startswith(b'{"error":"The server is overloaded'):
        # On a busy machine the server's queues may be full when a batch arrives.
        return Verdict(label)
    if status != 200 and status not in _HTTP_REFUSALS:
        return Verdict(label, f"{status}: {body[:300]!r}")
    if status == 200 and content_type == "application/octet-stream":
        return Verdict(label)
    if content_type != "application/json":
        return Verdict(label, f"{status} with Content-Type {content_type!r}")
    try:
        document = json.loads(body.decode())
    except ValueError as error:
        return Verdict(label, f"{status}, not JSON ({error}): {body[:300]!r}")
    if not isinstance(document, dict):
        is_good = False
    elif status == 200:
        is_good = any(key in document for key in answers)
    else:
        is_good = [*document] == ["error"] and isinstance(document["error"], str) and document["error"] != ""
    return Verdict(label, "" if is_good else f"{status}: {body[:300]!r}")


def of_grpc_error(code: grpc.StatusCode, text: str) -> Verdict:
    """Judges an error over gRPC: it must blame the request, and say why."""
    if code is grpc.StatusCode.UNAVAILABLE and text.startswith("The server is overloaded"):
        # On a busy machine the server's queues may be full.
        return Verdict(code.name)
    if code.name not in _REFUSALS:
        return Verdict(code.name, f"{code.name}: {text}")
    return Verdict(code.name, "" if text else f"{code.name} without an error text")


_TIMEOUT_S = 60
# The share of requests with mutated HTTP headers or HTTP/2 frames.
_HEAD_SHARE = 0.005
# Seconds to wait for the first bytes of the answer to a request with mutated headers or frames.
_ANSWER_S = 0.05
_BINARY_SHARE = 0.15
_PREDICT_SHARE, _INFER_SHARE = 0.6, 0.25
# The name grpc-status in HPACK's Huffman code, and the statuses by which a server takes the blame, plain and in Huffman
# code: UNKNOWN, INTERNAL and DATA_LOSS. The client announces an HPACK table of 0 bytes, so a server must send name and
# value in each answer.
_STATUS_NAME = bytes.fromhex("9acac8b21234da8f")
_BLAMES = tuple(_STATUS_NAME + value for value in (b"\1\x32", b"\2\x31\x33", b"\2\x31\x35")) + tuple(
    _STATUS_NAME + bytes.fromhex(value) for value in ("8117", "820b3f", "820b7f")
)


@dataclass(frozen=True, slots=True)
class Sent:
    """One request that was sent, its route or method, and the verdict on the server's answer."""

    target: str
    payload: bytes
    verdict: Verdict


def _raw(address: str, protocol: str, data: bytes) -> bytes:
    """Sends bytes on a new connection, with TLS if a protocol is given for ALPN; returns all bytes of the answer."""
    host, _, port = address.partition(":")
    found = bytearray()
    with socket.create_connection((host, int(port)), _TIMEOUT_S) as plain:
        sock = client_context(protocol).wrap_socket(plain) if protocol else plain
        try:
            sock.sendall(data)
            # Wait for the answer before the shutdown: a server may drop a request whose client closes its sending half
            # earlier.
            select.select([sock], [], [], _ANSWER_S)
            if protocol:
                # A connection with TLS can not be closed in one direction only, so the client waits for a short time.
                sock.settimeout(_ANSWER_S)
            else:
                sock.shutdown(socket.SHUT_WR)
            while got := sock.recv(1 << 18):
                found += got
        except TimeoutError:
            return bytes(found) if protocol else b"HTTP/1.1 504 the fuzzer waited too long\r\n\r\n"
        except OSError:
            # The server has closed the connection, so its answer is the bytes that were received before.
            pass
    return bytes(found)


class HttpWire:
    """Sender of HTTP/1.1 requests, to all routes that accept a body. Concurrency: one caller at a time."""

    def __init__(self, address: str, model: ServedModel, seed: int, *, certificate: Path | None = None) -> None:
        self._address, self._protocol = address.partition("://")[2], "http/1.1" if certificate else ""
        self._connection: http.client.HTTPConnection = (
            http.client.HTTPSConnection(self._address, timeout=_TIMEOUT_S, context=client_context("http/1.1"))
            if certificate
            else http.client.HTTPConnection(self._address, timeout=_TIMEOUT_S)
        )
        self._source, self._seed = Random(), seed
        self._routes, self._binary = http_seeds(model), binary_seeds(model)
        self._infer_path = infer_path(model)

    def send(self, number: int) -> Sent:
        """Makes and sends the request with this number."""
        source = self._source
        source.seed(self._seed << 40 | number)
        if source.random() < _BINARY_SHARE and self._binary:
            target, answers = self._infer_path, ("outputs",)
            head, tensors = mutated_binary(source, *source.choice(self._binary))
            length = len(head) + (source.choice((-1, 1, 1000, -len(head))) if source.random() < 0.1 else 0)
            body, headers = head + tensors, {"Inference-Header-Content-Length": str(length)}
        else:
            route = source.choice(self._routes)
            target, answers = route.path, route.answers
            body, headers = mutated_json(source, route.documents)
        if source.random() < _HEAD_SHARE:
            lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
            start = f"POST {target} HTTP/1.1\r\nhost: fuzz\r\n{lines}content-length: {len(body)}\r\n\r\n".encode()
            data = mutated(source, [start]) + body
            return Sent(target, data, self._of_raw(_raw(self._address, self._protocol, data)))
        return Sent(target, body, self._exchanged(target, body, headers, answers))

    def _exchanged(self, path: str, body: bytes, headers: dict[str, str], answers: Sequence[str]) -> Verdict:
        # A server may close an idle connection just when the client sends on it, so a request without an answer is sent
        # once more on a new connection.
        for is_last in (False, True):
            try:
                self._connection.request("POST", path, body, headers)
                answer = self._connection.getresponse()
                return of_http(answer.status, answer.headers.get("Content-Type", ""), answer.read(), answers)
            except (OSError, http.client.HTTPException) as error:
                self._connection.close()
                if is_last:
                    return Verdict("no answer", f"no answer: {error!r}")
        raise AssertionError

    def _of_raw(self, found: bytes) -> Verdict:
        statuses = [int(status) for status in re.findall(rb"HTTP/1\.[01] (\d\d\d)", found)]
        # 501 and 505 are right answers: a mutated request may have a method or a version of HTTP that the server does
        # not know.
        wrong = [status for status in statuses if status >= 500 and status not in (501, 505)]
        label = f"head {statuses[0] if statuses else 'closed'}"
        return Verdict(label, f"{wrong}: {found[:300]!r}" if wrong else "")

    def close(self) -> None:
        self._connection.close()


class GrpcWire:
    """Sender of gRPC messages, mostly of Predict. Concurrency: one caller at a time.

    Args:
      only: the method of all requests; a reload may change the served models.
      certificate: of a server with TLS.
    """

    def __init__(
        self, address: str, model: ServedModel, seed: int, *, certificate: Path | None = None, only: str = ""
    ) -> None:
        self._only, self._address, self._protocol = only, address, "h2" if certificate else ""
        # The option makes grpcio open a separate connection for each channel.
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
        if certificate:
            trusted = grpc.ssl_channel_credentials(certificate.read_bytes())
            named = ("grpc.ssl_target_name_override", "localhost")
            self._channel = grpc.secure_channel(address, trusted, [*options, named])
        else:
            self._channel = grpc.insecure_channel(address, options)
        self._source, self._seed = Random(), seed
        self._seeds = grpc_seeds(model)
        self._others = [method for method in self._seeds if method not in (PREDICT_METHOD, RELOAD_METHOD, INFER_METHOD)]

    def send(self, number: int) -> Sent:
        source = self._source
        source.seed(self._seed << 40 | number)
        kind = source.random()
        if kind < _PREDICT_SHARE:
            method = PREDICT_METHOD
        else:
            method = INFER_METHOD if kind < _PREDICT_SHARE + _INFER_SHARE else source.choice(self._others)
        method = self._only or method
        message = mutated(source, self._seeds[method])
        if source.random() < _HEAD_SHARE:
            sent = frames.settings((frames.HEADER_TABLE_SIZE, 0)) + _request_frames(method, framed(message))
            data = frames.PREFACE + mutated(source, [sent])
            found = _raw(self._address, self._protocol, data)
            wrong = any(blame in found for blame in _BLAMES)
            label = "frames answered" if _STATUS_NAME in found else "frames closed"
            return Sent(method, data, Verdict(label, repr(found[:300]) if wrong else ""))
        try:
            answer = self._channel.unary_unary(method)(message, timeout=_TIMEOUT_S)
        except grpc.RpcError as error:
            return Sent(method, message, of_grpc_error(error.code(), error.details() or ""))
        return Sent(method, message, of_grpc_answer(method, answer))

    def close(self) -> None:
        self._channel.close()


# A connection over which one thread sends mutated requests.
Wire = HttpWire | GrpcWire


def _request_frames(method: str, body: bytes) -> bytes:
    fields = ((b":method", b"POST"), (b":scheme", b"http"), (b":path", method.encode()), (b":authority", b"fuzz"))
    grpc_fields = ((b"te", b"trailers"), (b"content-type", b"application/grpc"))
    head = frames.frame(frames.HEADERS, frames.END_HEADERS, 1, frames.block(fields + grpc_fields))
    return head + frames.data_frames(1, body)
