"""Sends mutated requests in batches over raw sockets, and judges whether the server's answers are right.

Request number i depends only on the seed and i, so each can be sent again alone. A small share of the requests also has
mutated HTTP headers or HTTP/2 frames; each of these gets a connection of its own.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import select
import socket
import ssl
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Protocol

import grpc
from google.protobuf.message import DecodeError

from loadtest.attacks import frames
from loadtest.attacks.frames import CONTINUATION, DATA, END_HEADERS, END_STREAM, HEADERS, RST_STREAM, SETTINGS
from loadtest.fuzz.mutations import mutated, mutated_json
from loadtest.fuzz.seeds import (
    PREDICT,
    REFLECTION,
    RELOAD,
    binary_seeds,
    grpc_seeds,
    http_seeds,
    infer_seeds,
    more_routes,
)
from loadtest.live_server import client_context
from loadtest.model_samples import ServedModel
from loadtest.wire import INFER_METHOD, message_class

# gRPC codes by which a server may refuse a mutated request; any other error is a wrong reaction.
REFUSALS = {
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.OUT_OF_RANGE,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.UNIMPLEMENTED,
}
_HTTP_REFUSALS = {400, 404, 413, 501}
_RESPONSES = {
    "Predict": "PredictResponse",
    "Classify": "ClassificationResponse",
    "Regress": "RegressionResponse",
    "MultiInference": "MultiInferenceResponse",
    "GetModelMetadata": "GetModelMetadataResponse",
    "GetModelStatus": "GetModelStatusResponse",
    "HandleReloadConfigRequest": "ReloadConfigResponse",
}
# Maps a DataType number to the TensorProto field of its values, and to its bytes per value in tensor_content.
_VALUES = {
    1: ("float_val", 4),
    2: ("double_val", 8),
    3: ("int_val", 4),
    4: ("int_val", 1),
    5: ("int_val", 2),
    6: ("int_val", 1),
    7: ("string_val", 0),
    9: ("int64_val", 8),
    10: ("bool_val", 1),
    14: ("half_val", 2),
    17: ("int_val", 2),
    19: ("half_val", 2),
    22: ("uint32_val", 4),
    23: ("uint64_val", 8),
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """The status of a server's answer, and a text that says what is wrong with the answer; "" if nothing is wrong."""

    status: str
    problem: str = ""


def of_grpc_answer(method: str, data: bytes) -> Verdict:
    """Judges the message of an OK answer over gRPC: it must parse, and a PredictResponse's tensors fit their shapes."""
    name = _RESPONSES.get(method.rpartition("/")[2])
    if name is None:
        return Verdict("OK")
    try:
        response = message_class(f"tensorflow.serving.{name}").FromString(data)
    except DecodeError as error:
        return Verdict("OK", f"the answer can not be read: {error}")
    if name == "PredictResponse":
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


TIMEOUT_S = 60


@dataclass(frozen=True, slots=True)
class Sent:
    """One request that was sent, its route or method, and the verdict on the server's answer."""

    target: str
    payload: bytes
    verdict: Verdict


class Wire(Protocol):
    """The interface of a connection over which one thread sends mutated requests."""

    batch: int

    def send_all(self, numbers: Sequence[int]) -> list[tuple[int, Sent]]:
        """Makes and sends the requests with these numbers, at most `batch`; returns (number, request) in any order."""

    def close(self) -> None:
        """Closes the connection."""


# The share of requests with mutated HTTP headers or HTTP/2 frames.
_HEAD_SHARE = 0.005
# Seconds to wait for the first bytes of the answer to a request with mutated headers or frames.
_ANSWER_S = 0.05
_BINARY_SHARE = 0.15
_PREDICT_SHARE, _INFER_SHARE = 0.6, 0.25
_READ_BYTES = 1 << 18
_SENT_BYTES = 1 << 16
_FRAME_BYTES = 16384
_FIRST_WINDOW, _WINDOW = 65535, 1 << 30
# Errors of a non-blocking socket that can not be read or written now.
_NOT_NOW = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
# The name grpc-status in HPACK's Huffman code, and the codes 0 to 16. The client announces an HPACK table of 0 bytes,
# so a server must send name and value in each answer.
_STATUS_NAME = bytes.fromhex("9acac8b21234da8f")
_STATUS_VALUES = "07 0f 17 67 6b 6f 73 77 7b 7f 083f 087f 08bf 0b3f 0b5f 0b7f 0b9f".split()
_STATUSES = {
    coded: number
    for number, value in enumerate(map(bytes.fromhex, _STATUS_VALUES))
    for coded in (bytes([0x80 | len(value)]) + value, bytes([len(str(number))]) + str(number).encode())
}
# An error needs a text, grpc-message (here in Huffman code).
_MESSAGE_NAME = bytes.fromhex("9acac8b5254207317f")
# An overloaded server refuses a request with the status UNAVAILABLE and with the header grpc-retry-pushback-ms (here in
# Huffman code).
_UNAVAILABLE = 14
_PUSHBACK_NAME = bytes.fromhex("9acac8b5854d9e96aed44f18c9d56a51")
_CODES = {code.value[0]: code for code in REFUSALS}
_Numbered = tuple[int, Sent]
_UNANSWERED = Verdict("no answer", "no answer")


@dataclass(frozen=True, slots=True)
class _Request:
    """One mutated request: its route or method, its body, and its bytes.

    number: of the request in the run; the number and the seed determine the request.
    is_alone: the request's headers or frames are mutated, so it gets its own connection, and perhaps no answer.
    """

    number: int
    target: str
    payload: bytes
    data: bytes
    is_alone: bool
    answers: tuple[str, ...] = ()

    def sent(self, verdict: Verdict) -> _Numbered:
        return self.number, Sent(self.target, self.data if self.is_alone else self.payload, verdict)


class _Closed(Exception):
    """Raised if the server closes the connection."""


@dataclass(frozen=True, slots=True)
class _Port:
    """A server's port: its address, and the protocol offered by ALPN if the port has TLS ("" if it has no TLS)."""

    address: str
    protocol: str = ""

    def connect(self) -> socket.socket:
        host, _, port = self.address.partition("://")[2].partition(":")
        sock = socket.create_connection((host, int(port)), TIMEOUT_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return client_context(self.protocol).wrap_socket(sock) if self.protocol else sock


def _exchange(sock: socket.socket, out: bytearray) -> Iterator[bytes]:
    """Sends and removes the bytes in `out`, to which the caller may add more; yields the received bytes.

    Raises:
      _Closed: the server closed the connection, or sent nothing for too long.
    """
    while True:
        # select() does not know of bytes that the TLS connection has decrypted and not yet returned.
        has_more = isinstance(sock, ssl.SSLSocket) and sock.pending() > 0
        readable, writable, _ = select.select([sock], [sock] if out else [], [], 0.0 if has_more else TIMEOUT_S)
        if not (readable or writable or has_more):
            raise _Closed
        got = None
        try:
            sock.settimeout(0.0)
            if readable or has_more:
                with contextlib.suppress(*_NOT_NOW):
                    got = sock.recv(_READ_BYTES)
            if writable:
                with contextlib.suppress(*_NOT_NOW):
                    del out[: sock.send(bytes(out[:_SENT_BYTES]))]
            sock.settimeout(TIMEOUT_S)
        except OSError as error:
            raise _Closed from error
        if got == b"":
            raise _Closed
        if got:
            yield got


def _last_words(port: _Port, data: bytes) -> bytes:
    found = bytearray()
    with port.connect() as sock:
        try:
            sock.sendall(data)
            # Wait for the answer before the shutdown: a server may drop a request whose client closes its sending half
            # earlier.
            select.select([sock], [], [], _ANSWER_S)
            if port.protocol:
                # A connection with TLS can not be closed in one direction only, so the client waits for a short time.
                sock.settimeout(_ANSWER_S)
            else:
                sock.shutdown(socket.SHUT_WR)
            while got := sock.recv(_READ_BYTES):
                found += got
        except TimeoutError:
            return bytes(found) if port.protocol else b"HTTP/1.1 504 the fuzzer waited too long\r\n\r\n"
        except OSError:
            # The server has closed the connection, so its answer is the bytes that were received before.
            pass
    return bytes(found)


class HttpWire:
    """Sender of pipelined HTTP/1.1 requests, to all routes that accept a body. Concurrency: one caller at a time."""

    batch = 128

    def __init__(self, address: str, model: ServedModel, seed: int, *, is_tls: bool = False) -> None:
        self._port = _Port(address, "http/1.1" if is_tls else "")
        self._sock: socket.socket | None = None
        self._source = Random()
        self._seed = seed
        self._routes = http_seeds(model) + more_routes(model)
        self._binary = binary_seeds(model)

    def send_all(self, numbers: Sequence[int]) -> list[_Numbered]:
        made = [self._made(number) for number in numbers]
        alone = [self._judged_alone(request) for request in made if request.is_alone]
        waiting = [request for request in made if not request.is_alone]
        found: list[_Numbered] = []
        is_again = False
        while waiting:
            done = self._pipelined(waiting)
            # A server may close an idle connection just when the client sends on it, so a batch without any answer is
            # sent once more.
            if not done and is_again:
                done = [waiting[0].sent(_UNANSWERED)]
            is_again = not done
            found += done
            waiting = waiting[len(done) :]
        return alone + found

    def _made(self, number: int) -> _Request:
        source = self._source
        source.seed(self._seed << 40 | number)
        headers: dict[str, str]
        if source.random() < _BINARY_SHARE and self._binary:
            target, answers = self._binary[0].path, self._binary[0].answers
            head, tensors = source.choice(self._binary[0].documents)
            which = source.randrange(3)
            head = mutated(source, [head]) if which else head
            tensors = mutated(source, [tensors]) if which != 1 else tensors
            length = len(head) + (source.choice((-1, 1, 1000, -len(head))) if source.random() < 0.1 else 0)
            body, headers = head + tensors, {"Inference-Header-Content-Length": str(length)}
        else:
            route = source.choice(self._routes)
            target, answers = route.path, route.answers
            body, headers = mutated_json(source, route.documents)
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        start = f"POST {target} HTTP/1.1\r\nhost: fuzz\r\n{lines}content-length: {len(body)}\r\n\r\n".encode()
        is_alone = source.random() < _HEAD_SHARE
        if is_alone:
            start = mutated(source, [start])
        return _Request(number, target, body, start + body, is_alone, answers)

    def _pipelined(self, requests: Sequence[_Request]) -> list[_Numbered]:
        """Sends requests on the connection; returns the requests that got an answer before the server closed it."""
        done: list[_Numbered] = []
        waiting = bytearray()
        try:
            self._sock = self._sock or self._port.connect()
            for got in _exchange(self._sock, bytearray().join(request.data for request in requests)):
                waiting += got
                at = 0
                while len(done) < len(requests) and (answer := _answer(waiting, at)):
                    request = requests[len(done)]
                    done.append(request.sent(of_http(answer.status, answer.content_type, answer.body, request.answers)))
                    at = answer.end
                del waiting[:at]
                if len(done) == len(requests):
                    return done
        except (_Closed, OSError):
            self.close()
        return done

    def _judged_alone(self, request: _Request) -> _Numbered:
        found = _last_words(self._port, request.data)
        statuses = [int(status) for status in re.findall(rb"HTTP/1\.[01] (\d\d\d)", found)]
        # 501 and 505 are right answers: a mutated request may have a method or a version of HTTP that the server does
        # not know.
        wrong = [status for status in statuses if status >= 500 and status not in (501, 505)]
        label = f"head {statuses[0] if statuses else 'closed'}"
        return request.sent(Verdict(label, f"{wrong}: {found[:300]!r}" if wrong else ""))

    def close(self) -> None:
        if self._sock is not None:
            self._sock.close()
        self._sock = None


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    content_type: str
    body: bytes
    end: int


_HEADERS = re.compile(rb"\r\n(content-length|content-type): *([^\r\n]*)", re.IGNORECASE)


def _answer(data: bytearray, at: int) -> _Answer | None:
    """Parses the HTTP/1.1 answer at a position in the received bytes; None if the answer is not whole yet."""
    middle = data.find(b"\r\n\r\n", at)
    if middle < 0:
        return None
    headers = {name.lower(): value for name, value in _HEADERS.findall(data, at, middle)}
    end = middle + 4 + int(headers.get(b"content-length", b"0"))
    if len(data) < end:
        return None
    content_type = headers.get(b"content-type", b"").decode("latin-1")
    return _Answer(int(data[at + 9 : at + 12]), content_type, bytes(data[middle + 4 : end]), end)


@dataclass(slots=True)
class _Stream:
    request: _Request
    headers: bytearray = field(default_factory=bytearray)
    data: bytearray = field(default_factory=bytearray)
    reset: int | None = None


class GrpcWire:
    """Sender of gRPC messages on many streams of a connection, mostly of Predict. Concurrency: one caller at a time."""

    def __init__(self, address: str, model: ServedModel, seed: int, *, is_tls: bool = False, only: str = "") -> None:
        """Opens nothing yet; only: the method of all requests, one at a time; a reload may change the served models."""
        self.batch = 1 if only else 96
        self._only = only
        self._port = _Port(f"http://{address}", "h2" if is_tls else "")
        self._sock: socket.socket | None = None
        self._source = Random()
        self._seed = seed
        self._seeds = grpc_seeds(model) | {INFER_METHOD: infer_seeds(model)}
        self._others = [method for method in self._seeds if method not in (PREDICT, RELOAD, INFER_METHOD)]
        self._fields = {method: _fields(method) for method in self._seeds}

    def send_all(self, numbers: Sequence[int]) -> list[_Numbered]:
        made = [self._made(number) for number in numbers]
        found = [self._judged_alone(request) for request in made if request.is_alone]
        waiting = [request for request in made if not request.is_alone]
        is_again = False
        while waiting:
            done, left = self._streams(waiting)
            if not done and is_again:
                done, left = [waiting[0].sent(_UNANSWERED)], waiting[1:]
            is_again = not done
            found += done
            waiting = left
        return found

    def _made(self, number: int) -> _Request:
        source = self._source
        source.seed(self._seed << 40 | number)
        kind = source.random()
        if kind < _PREDICT_SHARE:
            method = PREDICT
        else:
            method = INFER_METHOD if kind < _PREDICT_SHARE + _INFER_SHARE else source.choice(self._others)
        method = self._only or method
        message = mutated(source, self._seeds[method])
        body = b"\0" + len(message).to_bytes(4) + message
        is_alone = source.random() < _HEAD_SHARE
        if is_alone:
            sent = frames.settings() + _request_frames(self._fields[method], 1, body)
            body = frames.PREFACE + mutated(source, [sent])
        return _Request(number, method, message, body, is_alone)

    def _judged_alone(self, request: _Request) -> _Numbered:
        found = _last_words(self._port, request.data)
        # gRPC codes by which a server takes the blame: UNKNOWN, INTERNAL, DATA_LOSS.
        wrong = [code for code in _statuses(found) if code in (2, 13, 15)]
        label = "frames answered" if _STATUS_NAME in found else "frames closed"
        return request.sent(Verdict(label, f"{wrong}: {found[:300]!r}" if wrong else ""))

    def _open(self) -> socket.socket:
        sock = self._port.connect()
        pairs = (frames.INITIAL_WINDOW_SIZE, frames.MAX_WINDOW), (frames.HEADER_TABLE_SIZE, 0)
        sock.sendall(frames.PREFACE + frames.settings(*pairs) + frames.window_update(0, _WINDOW))
        self._next, self._window, self._received = 1, _FIRST_WINDOW, 0
        self._waiting, self._out = bytearray(), bytearray()
        self._sock = sock
        return sock

    def _streams(self, requests: Sequence[_Request]) -> tuple[list[_Numbered], list[_Request]]:
        """Sends as many requests as the window allows; returns the answered requests, and the unanswered ones."""
        done: list[_Numbered] = []
        streams: dict[int, _Stream] = {}
        left = list(requests)
        try:
            sock = self._sock or self._open()
            out = self._out
            taken = 0
            for request in left:
                # A message longer than the whole flow-control window is not held back: it goes alone, on a new
                # connection.
                if len(request.data) > self._window and taken:
                    break
                out += _request_frames(self._fields[request.target], self._next, request.data)
                streams[self._next] = _Stream(request)
                self._window -= len(request.data)
                self._next += 2
                taken += 1
            left = left[taken:]
            for got in _exchange(sock, out):
                self._waiting += got
                done += self._read(streams)
                if not streams:
                    break
        except (_Closed, OSError):
            self.close()
            left = [stream.request for stream in streams.values()] + left
        return done, left

    def _read(self, streams: dict[int, _Stream]) -> list[_Numbered]:
        """Handles the frames that have arrived; removes finished streams, and returns the requests of these streams."""
        done: list[_Numbered] = []
        data, at = self._waiting, 0
        while len(data) - at >= 9 and len(data) >= (end := at + 9 + int.from_bytes(data[at : at + 3])):
            kind, flags, number = data[at + 3], data[at + 4], int.from_bytes(data[at + 5 : at + 9])
            payload = data[at + 9 : end]
            at = end
            if kind == SETTINGS and not flags & frames.ACK:
                self._out += frames.frame(SETTINGS, frames.ACK, 0)
            elif kind == frames.WINDOW_UPDATE and not number:
                self._window += int.from_bytes(payload)
            elif kind == frames.GOAWAY:
                raise _Closed
            stream = streams.get(number)
            if stream is None:
                continue
            if kind == DATA:
                stream.data += payload
                self._received += len(payload)
            elif kind in (HEADERS, CONTINUATION):
                stream.headers += payload
            elif kind == RST_STREAM:
                stream.reset = int.from_bytes(payload)
            if kind == RST_STREAM or (kind in (DATA, HEADERS) and flags & END_STREAM):
                done.append(_judged_stream(streams.pop(number)))
        del data[:at]
        if self._received > _WINDOW // 2:
            self._out += frames.window_update(0, self._received)
            self._received = 0
        return done

    def close(self) -> None:
        if self._sock is not None:
            self._sock.close()
        self._sock = None


def _fields(method: str) -> bytes:
    return frames.block(
        (
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", method.encode()),
            (b":authority", b"fuzz"),
            (b"te", b"trailers"),
            (b"content-type", b"application/grpc"),
        )
    )


def _request_frames(fields: bytes, stream: int, body: bytes) -> bytes:
    return frames.frame(HEADERS, END_HEADERS, stream, fields) + frames.data_frames(stream, body)


def _statuses(data: bytes | bytearray) -> Iterator[int]:
    """Yields the gRPC statuses in HPACK blocks of an HPACK table of 0 bytes; -1 for a value that is no status."""
    at = data.find(_STATUS_NAME)
    while at >= 0:
        at += len(_STATUS_NAME)
        value = bytes(data[at : at + 1 + (data[at] & 0x7F)])
        yield _STATUSES.get(value, -1)
        at = data.find(_STATUS_NAME, at)


def _judged_stream(stream: _Stream) -> _Numbered:
    request = stream.request
    status = next(_statuses(stream.headers), -1)
    if stream.reset not in (None, 0):
        verdict = Verdict(f"reset {stream.reset}", f"RST_STREAM {stream.reset}")
    elif status == 0:
        is_framed = request.target == REFLECTION or int.from_bytes(stream.data[1:5]) == len(stream.data) - 5
        verdict = of_grpc_answer(request.target, bytes(stream.data[5:]))
        verdict = verdict if is_framed else Verdict("OK", "the answer is not one message")
    elif status in _CODES:
        has_text = _MESSAGE_NAME in stream.headers
        name = _CODES[status].name
        verdict = Verdict(name, "" if has_text else f"{name} without an error text")
    elif status == _UNAVAILABLE and _PUSHBACK_NAME in stream.headers:
        # On a busy machine the server's queues may be full when a batch arrives, so it may refuse requests of the
        # batch.
        verdict = Verdict("UNAVAILABLE")
    else:
        verdict = Verdict(f"status {status}", f"status {status}: {bytes(stream.headers)!r}")
    return request.sent(verdict)
