"""A gRPC client that sends HTTP/2 frame by frame, with a library that the server does not use."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import (
    DataReceived,
    Event,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
)
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes, Settings

PREDICT = "/tensorflow.serving.PredictionService/Predict"


@dataclass
class Answer:
    """The answer on one stream: headers, data, trailers, or a reset."""

    headers: dict[str, str] = field(default_factory=dict)
    data: bytes = b""
    is_over: bool = False
    reset: int | None = None

    @property
    def message(self) -> bytes:
        """The answer's only message, which must be uncompressed."""
        assert self.data[:1] == b"\0" and int.from_bytes(self.data[1:5], "big") == len(self.data) - 5
        return self.data[5:]

    @property
    def status(self) -> int:
        """Returns the status code of gRPC in the answer."""
        return int(self.headers["grpc-status"])


def framed(message: bytes) -> bytes:
    """Returns a message with gRPC's prefix, which says that it is not compressed, and its length."""
    return b"\0" + len(message).to_bytes(4, "big") + message


class H2Client:
    """A gRPC client of one HTTP/2 connection. window: initial receive window of its streams; None: the largest."""

    def __init__(self, port: int, window: int | None = None) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        self.h2 = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        first = {SettingCodes.INITIAL_WINDOW_SIZE: (1 << 31) - 1 if window is None else window}
        self.h2.local_settings = Settings(client=True, initial_values=first)
        self.h2.initiate_connection()
        if window is None:
            self.h2.increment_flow_control_window((1 << 31) - 1 - 65535)
        self.answers: dict[int, Answer] = {}
        self.events: list[Event] = []
        self.is_closed = False
        self.flush()

    def flush(self) -> None:
        """Sends the queued frames."""
        self.socket.sendall(self.h2.data_to_send())

    def begin(self, path: str = PREDICT, **more: str) -> int:
        """Queues the HEADERS frame of a gRPC call; returns the stream's id. more: further headers, with "_" for "-"."""
        stream_id = self.h2.get_next_available_stream_id()
        headers = {
            ":method": "POST",
            ":scheme": "http",
            ":path": path,
            ":authority": "test",
            "te": "trailers",
            "content-type": "application/grpc",
        } | {name.replace("_", "-"): value for name, value in more.items()}
        self.h2.send_headers(stream_id, list(headers.items()))
        self.answers[stream_id] = Answer()
        return stream_id

    def send(self, stream_id: int, data: bytes, *, is_last: bool = True) -> None:
        """Sends data within the flow-control windows; stops early if the server ends the stream."""
        at = 0
        while at < len(data):
            if self.answers[stream_id].is_over:
                return
            room = min(self.h2.local_flow_control_window(stream_id), self.h2.max_outbound_frame_size)
            if room <= 0:  # A server may take back what it has granted.
                self.flush()
                self.receive()
                continue
            self.h2.send_data(stream_id, data[at : at + room])
            at += room
        if is_last:
            self.h2.end_stream(stream_id)
        self.flush()

    def call(self, message: bytes, path: str = PREDICT, **more: str) -> Answer:
        """Calls a method with one message and returns the whole answer."""
        stream_id = self.begin(path, **more)
        self.send(stream_id, framed(message))
        return self.answer(stream_id)

    def answer(self, stream_id: int) -> Answer:
        """Waits for the end of a stream's answer and returns it."""
        answer = self.answers[stream_id]
        self.until(lambda: answer.is_over)
        return answer

    def until(self, is_so: Callable[[], bool]) -> None:
        """Reads frames until a condition is true; fails if the connection ends before."""
        while not is_so() and not self.is_closed:
            self.receive()
        assert is_so(), "the connection ended before"

    def receive(self) -> None:
        """Reads from the socket once and handles the received frames."""
        try:
            data = self.socket.recv(1 << 20)
        except ConnectionError:
            data = b""
        if not data:
            self.is_closed = True
            return
        try:
            events = self.h2.receive_data(data)
        except ProtocolError:
            # The h2 library raises ProtocolError for frames after a GOAWAY, which here means that the connection is
            # over.
            self.is_closed = True
            return
        for event in events:
            self._take(event)
        if not self.is_closed:
            self.flush()

    def _take(self, event: Event) -> None:
        self.events.append(event)
        answer: Any = self.answers.get(getattr(event, "stream_id", 0) or 0, Answer())
        if isinstance(event, ResponseReceived | TrailersReceived):
            answer.headers |= dict(event.headers)
        elif isinstance(event, DataReceived):
            answer.data += event.data
        elif isinstance(event, StreamReset):
            answer.is_over, answer.reset = True, event.error_code
        elif isinstance(event, StreamEnded):
            answer.is_over = True

    def frames(self) -> Iterator[bytes]:
        """Yields received frames until the end of the connection, parsed without the h2 library."""
        data = b""
        while chunk := self.socket.recv(1 << 20):
            data += chunk
            while len(data) >= 9 and len(data) >= 9 + int.from_bytes(data[:3], "big"):
                length = 9 + int.from_bytes(data[:3], "big")
                yield data[:length]
                data = data[length:]

    def of_kind(self, kind: type[Event]) -> list[Any]:
        """Returns the h2 events of a kind that were received so far."""
        return [event for event in self.events if isinstance(event, kind)]

    def __enter__(self) -> H2Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()
