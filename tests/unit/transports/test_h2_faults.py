"""What ends a stream or a connection of the HTTP/2 transport, and what does not, frame by frame.

Frames are made by the hyperframe package. The cases are those that RFC 9113 names; its sections stand with them.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hpack import Encoder
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    PriorityFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)
from service.transports.grpc.h2 import connection, server
from service.transports.grpc.h2.server import H2Server

from service.core.engine import Engine
from tests.grpc_servers import grpc_server
from tests.unit.transports.conftest import NumpyModel
from tests.unit.transports.h2_client import PREDICT, H2Client, framed
from tests.unit.transports.test_h2_frames import DEADLINE_EXCEEDED, REQUEST, RESOURCE_EXHAUSTED, large_request, y_of

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
UNAVAILABLE = 14
HEADS = {":method": "POST", ":scheme": "http", ":path": PREDICT, "te": "trailers", "content-type": "application/grpc"}
PROTOCOL_ERROR, FLOW_CONTROL_ERROR, STREAM_CLOSED, FRAME_SIZE_ERROR, COMPRESSION_ERROR, CALM = 1, 3, 5, 6, 9, 11


@pytest.fixture
def port(engine: Engine) -> Iterator[int]:
    """Where a server listens."""
    server = grpc_server("h2", engine)
    assert isinstance(server, H2Server)
    yield server.start()
    server.stop(0)


class RawClient:
    """Sends frames as they are told, and reads what comes."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        self.encoder = Encoder()
        self.data = b""
        self.socket.sendall(PREFACE + SettingsFrame(0).serialize())

    def block(self, **more: str) -> bytes:
        """Returns a call's header block."""
        return bytes(self.encoder.encode({**HEADS, **{name.replace("_", "-"): value for name, value in more.items()}}))

    def call(self, stream_id: int, data: bytes = framed(REQUEST)) -> bytes:
        """Returns the frames of a call."""
        head = HeadersFrame(stream_id, self.block(), flags=["END_HEADERS"])
        return bytes(head.serialize() + DataFrame(stream_id, data, flags=["END_STREAM"]).serialize())

    def send(self, *frames: Frame | bytes) -> None:
        """Sends frames."""
        self.socket.sendall(b"".join(f if isinstance(f, bytes) else f.serialize() for f in frames))

    def frames(self) -> Iterator[Frame]:
        """Yields what comes until the server closes."""
        while True:
            while len(self.data) >= 9:
                frame, length = Frame.parse_frame_header(memoryview(self.data[:9]))
                if len(self.data) < 9 + length:
                    break
                frame.parse_body(memoryview(self.data[9 : 9 + length]))
                self.data = self.data[9 + length :]
                yield frame
            try:
                more = self.socket.recv(1 << 16)
            except ConnectionError:
                return
            if not more:
                return
            self.data += more

    def first(self, kind: type[Frame]) -> Frame:
        """Returns the next frame of a kind."""
        return next(frame for frame in self.frames() if isinstance(frame, kind))


@contextmanager
def raw_client(port: int) -> Iterator[RawClient]:
    client = RawClient(port)
    try:
        yield client
    finally:
        client.socket.close()


def raw(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    """Returns a frame that hyperframe would not make."""
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream_id.to_bytes(4, "big") + payload


def setting(number: int, value: int) -> bytes:
    return raw(4, 0, 0, struct.pack(">HI", number, value))


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        pytest.param(raw(0, 1, 1, b"x"), PROTOCOL_ERROR, id="5.1 DATA on an idle stream"),
        pytest.param(raw(3, 0, 1, b"\0\0\0\0"), PROTOCOL_ERROR, id="5.1 RST_STREAM on an idle stream"),
        pytest.param(raw(8, 0, 1, b"\0\0\0\1"), PROTOCOL_ERROR, id="5.1 WINDOW_UPDATE on an idle stream"),
        pytest.param(raw(1, 5, 2, b"\x82"), PROTOCOL_ERROR, id="5.1.1 an even stream"),
        pytest.param(raw(0, 0, 0, b"x"), PROTOCOL_ERROR, id="6.1 DATA of the connection"),
        pytest.param(raw(1, 5, 0, b"\x82"), PROTOCOL_ERROR, id="6.2 HEADERS of the connection"),
        pytest.param(raw(1, 0xD, 1, b"\x09\x82"), PROTOCOL_ERROR, id="6.2 padding longer than HEADERS"),
        pytest.param(raw(2, 0, 0, b"\0\0\0\1\0"), PROTOCOL_ERROR, id="6.3 PRIORITY of the connection"),
        pytest.param(raw(3, 0, 0, b"\0\0\0\0"), PROTOCOL_ERROR, id="6.4 RST_STREAM of the connection"),
        pytest.param(raw(3, 0, 1, b"\0\0\0"), FRAME_SIZE_ERROR, id="6.4 RST_STREAM of 3 bytes"),
        pytest.param(raw(4, 1, 0, b"\0\1\0\0\0\0"), FRAME_SIZE_ERROR, id="6.5 an acknowledgement with settings"),
        pytest.param(raw(4, 0, 1), PROTOCOL_ERROR, id="6.5 SETTINGS on a stream"),
        pytest.param(raw(4, 0, 0, b"\0\1\0"), FRAME_SIZE_ERROR, id="6.5 SETTINGS of 3 bytes"),
        pytest.param(setting(2, 2), PROTOCOL_ERROR, id="6.5.2 ENABLE_PUSH of 2"),
        pytest.param(setting(4, 1 << 31), FLOW_CONTROL_ERROR, id="6.5.2 INITIAL_WINDOW_SIZE of 2^31"),
        pytest.param(setting(5, 16383), PROTOCOL_ERROR, id="6.5.2 MAX_FRAME_SIZE of 16383"),
        pytest.param(setting(5, 1 << 24), PROTOCOL_ERROR, id="6.5.2 MAX_FRAME_SIZE of 2^24"),
        pytest.param(raw(5, 4, 1, b"\0\0\0\2\x82"), PROTOCOL_ERROR, id="6.6 PUSH_PROMISE of a client"),
        pytest.param(raw(6, 0, 1, b"12345678"), PROTOCOL_ERROR, id="6.7 PING on a stream"),
        pytest.param(raw(6, 0, 0, b"1234567"), FRAME_SIZE_ERROR, id="6.7 PING of 7 bytes"),
        pytest.param(raw(7, 0, 1, b"\0" * 8), PROTOCOL_ERROR, id="6.8 GOAWAY on a stream"),
        pytest.param(raw(8, 0, 0, b"\0\0\0\0"), PROTOCOL_ERROR, id="6.9 WINDOW_UPDATE of nothing"),
        pytest.param(raw(8, 0, 0, b"\0\0\1"), FRAME_SIZE_ERROR, id="6.9 WINDOW_UPDATE of 3 bytes"),
        pytest.param(raw(8, 0, 0, b"\x7f\xff\xff\xff") * 2, FLOW_CONTROL_ERROR, id="6.9.1 a window over 2^31-1"),
        pytest.param(raw(9, 4, 1, b"\x82"), PROTOCOL_ERROR, id="6.10 CONTINUATION of nothing"),
        pytest.param(raw(1, 0, 1, b"\x82") + raw(0, 1, 1), PROTOCOL_ERROR, id="6.10 DATA inside a header block"),
        pytest.param(raw(1, 0, 1, b"\x82") + raw(9, 4, 3), PROTOCOL_ERROR, id="6.10 another's CONTINUATION"),
        pytest.param(raw(1, 0, 1) + raw(9, 0, 1) * 100, CALM, id="6.10 CONTINUATION without end"),
        pytest.param(raw(0, 0, 1, b"x" * 16385), FRAME_SIZE_ERROR, id="4.2 a frame of 16385 bytes"),
        pytest.param(raw(1, 5, 1, b"\x80"), COMPRESSION_ERROR, id="4.3 a header block that is none"),
    ],
)
def test_what_ends_a_connection(port: int, frames: bytes, code: int) -> None:
    with raw_client(port) as client:
        client.send(frames)
        goaway = client.first(GoAwayFrame)
        assert goaway.error_code == code and goaway.additional_data
        # And it is closed, behind it.
        assert not list(client.frames())


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        pytest.param(raw(2, 0, 1, b"\0"), FRAME_SIZE_ERROR, id="6.3 PRIORITY of a byte"),
        pytest.param(raw(8, 0, 1, b"\0\0\0\0"), PROTOCOL_ERROR, id="6.9 WINDOW_UPDATE of nothing"),
        pytest.param(raw(8, 0, 1, b"\x7f\xff\xff\xff"), FLOW_CONTROL_ERROR, id="6.9.1 a window over 2^31-1"),
        pytest.param(raw(1, 4, 1, b"\x00\x01x\x011"), PROTOCOL_ERROR, id="8.1 trailers that do not end"),
        pytest.param(raw(1, 5, 1, b"\x00\x01X\x011"), PROTOCOL_ERROR, id="8.2.1 trailers in capitals"),
    ],
)
def test_what_ends_a_stream_alone(port: int, frames: bytes, code: int) -> None:
    with raw_client(port) as client:
        client.send(HeadersFrame(1, client.block(), flags=["END_HEADERS"]), frames)
        reset = client.first(RstStreamFrame)
        assert (reset.stream_id, reset.error_code) == (1, code)
        client.send(client.call(3))
        assert client.first(DataFrame).stream_id == 3


@pytest.mark.parametrize("length", ["1", "9999"])
def test_a_body_that_is_not_as_long_as_it_says(port: int, length: str) -> None:
    with raw_client(port) as client:
        client.send(HeadersFrame(1, client.block(content_length=length), flags=["END_HEADERS"]))
        client.send(DataFrame(1, framed(REQUEST), flags=["END_STREAM"]))
        assert client.first(RstStreamFrame).error_code == PROTOCOL_ERROR


def test_what_is_said_to_a_stream_that_has_ended(port: int) -> None:
    with raw_client(port) as client:
        client.send(client.call(1))
        assert client.first(DataFrame).stream_id == 1
        client.send(RstStreamFrame(1), WindowUpdateFrame(1, window_increment=5), PriorityFrame(1), DataFrame(1, b"x"))
        client.send(HeadersFrame(1, client.block(), flags=["END_HEADERS"]))
        assert client.first(RstStreamFrame).error_code == STREAM_CLOSED
        # What its block put into the table is known nevertheless.
        client.send(client.call(3))
        assert client.first(DataFrame).stream_id == 3


def test_what_means_nothing_is_let_pass(port: int) -> None:
    with raw_client(port) as client:
        client.send(
            raw(99, 255, 7, b"of a later version"), setting(0x99, 7), PriorityFrame(5), SettingsFrame(0, flags=["ACK"])
        )
        client.send(PingFrame(0, b"12345678", flags=["ACK"]), GoAwayFrame(0))
        client.send(client.call(1))
        assert client.first(DataFrame).stream_id == 1


def test_padding_priorities_and_pieces(port: int) -> None:
    with raw_client(port) as client:
        block = client.block(x_long="v" * 3000)
        head = HeadersFrame(1, block[:10], flags=["PADDED", "PRIORITY"], pad_length=7)
        client.send(head, ContinuationFrame(1, block[10:500]), ContinuationFrame(1, block[500:], flags=["END_HEADERS"]))
        message = framed(REQUEST)
        for byte in message:
            client.send(DataFrame(1, bytes([byte]), flags=["PADDED"], pad_length=200))
        client.send(DataFrame(1, b"", flags=["END_STREAM"]))
        data = client.first(DataFrame)
        assert y_of(bytes(data.data)[5:]) == [3.0, 6.0]


def test_the_same_head_says_something_else_once_the_table_has_changed(port: int) -> None:
    # The same bytes: once for a call, then, with another entry in front, for a header that is none of a call's.
    with raw_client(port) as client:
        first, again = client.block(), client.block()
        client.send(HeadersFrame(1, first, flags=["END_HEADERS"]), DataFrame(1, framed(REQUEST), flags=["END_STREAM"]))
        client.send(HeadersFrame(3, again, flags=["END_HEADERS"]), DataFrame(3, framed(REQUEST), flags=["END_STREAM"]))
        # Two threads answer them, whichever is first.
        assert {frame.stream_id for frame in (client.first(DataFrame), client.first(DataFrame))} == {1, 3}
        client.send(HeadersFrame(5, client.block(x_new="1"), flags=["END_HEADERS", "END_STREAM"]))
        client.send(HeadersFrame(7, again, flags=["END_HEADERS"]), DataFrame(7, framed(REQUEST), flags=["END_STREAM"]))
        assert client.first(RstStreamFrame).stream_id == 7


def test_headers_over_the_limit_are_told_so(port: int) -> None:
    with H2Client(port) as client:
        answer = client.call(REQUEST, x_large="v" * 20_000)
        assert answer.status == RESOURCE_EXHAUSTED and "16384 bytes" in answer.headers["grpc-message"]
        assert client.call(REQUEST).status == 0


def test_a_window_that_is_ignored_ends_the_stream(port: int) -> None:
    with raw_client(port) as client:
        client.send(HeadersFrame(1, client.block(), flags=["END_HEADERS"]))
        # Its length says that much more comes, so that all of it is kept, and no WINDOW_UPDATE is waited for.
        data = b"\0\0\x50\0\0" + b"x" * 16379
        client.send(*[DataFrame(1, data if not i else b"x" * 16384) for i in range(100)])
        client.send(DataFrame(1, b"x", flags=["END_STREAM"]))
        assert client.first(HeadersFrame).stream_id == 1


def test_more_streams_than_allowed_are_refused(port: int, model: NumpyModel) -> None:
    model.gate = threading.Event()
    with raw_client(port) as client:
        client.send(WindowUpdateFrame(0, window_increment=1 << 20), *[client.call(2 * i + 1) for i in range(1001)])
        reset = client.first(RstStreamFrame)
        assert (reset.stream_id, reset.error_code) == (2001, 7)
        model.gate.set()
        assert len({client.first(DataFrame).stream_id for _ in range(1000)}) == 1000


def test_resetting_what_runs_does_not_make_room_for_more(port: int, model: NumpyModel) -> None:
    model.gate = threading.Event()
    with raw_client(port) as client:
        # Two threads; what waits for one is dropped with its stream, what runs is not.
        client.send(client.call(1), client.call(3))
        for _ in range(2):
            assert model.entered.acquire(timeout=20)
        client.send(RstStreamFrame(1), RstStreamFrame(3), *[client.call(2 * i + 5) for i in range(999)])
        assert client.first(RstStreamFrame).stream_id == 2 * 998 + 5
        model.gate.set()


def test_answers_that_nobody_reads_are_not_piled_up(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_UNREAD_BYTES", 4 << 20)
    request = framed(large_request(100_000))
    with H2Client(port, 0) as client:
        num_sent = 0
        client.socket.settimeout(3)
        try:
            # 1000 answers would be 400 MB.
            while num_sent < 1000:
                stream_id = client.begin()
                client.send(stream_id, request)
                num_sent += 1
        except TimeoutError:
            pass
        assert 10 < num_sent < 1000, "the server reads no more while so much is unread"
        client.socket.settimeout(30)
        with H2Client(port) as other:
            assert other.call(REQUEST).status == 0


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that waits a moment where others wait a minute."""
    monkeypatch.setattr(server, "_CHECK_S", 0.05)
    monkeypatch.setattr(connection, "_HANDSHAKE_S", 0.3)
    monkeypatch.setattr(connection, "_STALLED_S", 0.3)


def reads_to_the_end(client: socket.socket) -> bool:
    client.settimeout(30)
    try:
        while client.recv(1 << 16):
            pass
    except ConnectionError:
        pass
    return True


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("start", [b"", PREFACE[:5], PREFACE, PREFACE + raw(4, 0, 0)[:5]])
def test_who_does_not_say_what_he_wants_is_shown_out(port: int, start: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(start)
        assert reads_to_the_end(client)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    "rest", [raw(6, 0, 0, b"12345678")[:12], raw(1, 0, 1, b"\x82")], ids=["a frame", "a header block"]
)
def test_who_stops_in_the_middle_is_shown_out(port: int, rest: bytes) -> None:
    with raw_client(port) as client:
        client.send(rest)
        assert reads_to_the_end(client.socket)


@pytest.mark.usefixtures("impatient")
def test_who_does_not_read_is_shown_out(port: int) -> None:
    with raw_client(port) as client:
        client.send(setting(4, 0), client.call(1))
        assert client.first(HeadersFrame).stream_id == 1
        assert reads_to_the_end(client.socket)


@pytest.mark.usefixtures("impatient")
def test_a_request_that_does_not_go_on_ends_alone(port: int) -> None:
    with H2Client(port) as client:
        stream_id = client.begin()
        client.send(stream_id, framed(REQUEST)[:7], is_last=False)
        assert client.answer(stream_id).status == DEADLINE_EXCEEDED
        assert "did not arrive whole" in client.answers[stream_id].headers["grpc-message"]
        assert client.call(REQUEST).status == 0


@pytest.mark.usefixtures("impatient")
def test_who_is_only_silent_may_stay(port: int) -> None:
    with H2Client(port) as client:
        assert client.call(REQUEST).status == 0
        time.sleep(1)
        assert client.call(REQUEST).status == 0
