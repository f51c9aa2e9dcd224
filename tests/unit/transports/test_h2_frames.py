"""The HTTP/2 transport frame by frame: windows, resets, drains, and clients that do not behave."""

from __future__ import annotations

import gc
import random
import socket
import threading
import time
from collections.abc import Iterator

import grpc
import numpy as np
import pytest
from h2.errors import ErrorCodes
from h2.events import PingAckReceived
from service.transports.grpc.h2.connection import Connection
from service.transports.grpc.h2.server import H2Server

from service.codecs.protos import message_class
from service.core.engine import Engine
from tests.grpc_servers import grpc_server
from tests.unit.transports.conftest import NumpyModel
from tests.unit.transports.h2_client import PREDICT, H2Client, framed
from tests.unit.transports.test_grpc_methods import outputs, predict_request

X = np.array([1, 2.5], np.float32)
REQUEST = predict_request({"x": X}).SerializeToString()
DATA, HEADERS, GOAWAY = 0, 1, 7
INVALID_ARGUMENT, DEADLINE_EXCEEDED, UNIMPLEMENTED, RESOURCE_EXHAUSTED = 3, 4, 12, 8


@pytest.fixture
def server(engine: Engine) -> Iterator[H2Server]:
    """A server that is stopped at the end."""
    server = grpc_server("h2", engine)
    assert isinstance(server, H2Server)
    yield server
    server.stop(0)


@pytest.fixture
def port(server: H2Server) -> int:
    """Where it listens."""
    return server.start()


def y_of(message: bytes) -> list[float]:
    """Returns the output of a Predict of serving_default."""
    return list(outputs(message_class("tensorflow.serving.PredictResponse").FromString(message))["y"])


def large_request(num: int) -> bytes:
    """Returns a Predict of so many numbers."""
    return bytes(predict_request({"x": np.arange(num, dtype=np.float32)}).SerializeToString())


def test_a_call_and_its_trailers(port: int) -> None:
    with H2Client(port) as client:
        answer = client.call(REQUEST)
        assert y_of(answer.message) == [3.0, 6.0]
        assert answer.headers[":status"] == "200" and answer.headers["content-type"] == "application/grpc"
        assert answer.status == 0


def test_large_frames_beside_the_acknowledgement_of_the_settings(port: int) -> None:
    # What comes in one read is decoded before the acknowledgement in it is looked at.
    message = framed(large_request(50_000))
    for _ in range(5):
        with H2Client(port) as client:
            client.until(lambda client=client: client.h2.remote_settings.initial_window_size > 65535)
            acknowledgement = client.h2.data_to_send()
            stream_id = client.begin()
            frame_bytes = client.h2.max_outbound_frame_size
            for at in range(0, 60_000, frame_bytes):
                client.h2.send_data(stream_id, message[at : at + frame_bytes])
                sent = at + frame_bytes
            client.socket.sendall(acknowledgement + client.h2.data_to_send())
            client.send(stream_id, message[sent:])
            assert len(y_of(client.answer(stream_id).message)) == 50_000


@pytest.mark.parametrize("window", [1, 1000, 70_000])
def test_a_client_that_takes_a_little_at_a_time(port: int, window: int) -> None:
    size = 50 if window == 1 else 30_000
    with H2Client(port, window) as client:
        stream_id = client.begin()
        client.send(stream_id, framed(large_request(size)))
        answer = client.answers[stream_id]
        taken = 0
        while not answer.is_over:
            client.receive()
            if len(answer.data) > taken and not answer.is_over:
                assert len(answer.data) - taken <= window
                client.h2.increment_flow_control_window(len(answer.data) - taken, stream_id)
                client.h2.increment_flow_control_window(len(answer.data) - taken)
                taken = len(answer.data)
                client.flush()
        assert y_of(answer.message) == [2.0 * i + 1 for i in range(size)]


def test_a_client_that_opens_its_window_by_a_setting(port: int) -> None:
    with H2Client(port, 0) as client:
        stream_id = client.begin()
        client.send(stream_id, framed(REQUEST))
        client.until(lambda: bool(client.answers[stream_id].headers))
        assert not client.answers[stream_id].data
        client.h2.update_settings({4: 65535})
        client.flush()
        assert y_of(client.answer(stream_id).message) == [3.0, 6.0]


def test_many_streams_whose_frames_come_mixed(port: int) -> None:
    with H2Client(port) as client:
        messages = [framed(large_request(1000 + i)) for i in range(50)]
        streams = [client.begin() for _ in messages]
        client.flush()
        client.until(lambda: client.h2.remote_settings.initial_window_size > 65535)
        for at in range(0, len(messages[-1]), 500):
            for stream_id, message in zip(streams, messages, strict=True):
                if message[at : at + 500]:
                    client.h2.send_data(stream_id, message[at : at + 500], end_stream=at + 500 >= len(message))
        client.flush()
        for i, stream_id in enumerate(streams):
            assert len(y_of(client.answer(stream_id).message)) == 1000 + i


def test_a_reset_ends_one_call_alone(port: int, model: NumpyModel) -> None:
    model.gate = threading.Event()
    with H2Client(port) as client:
        first, second = client.begin(), client.begin()
        client.send(first, framed(REQUEST))
        client.send(second, framed(REQUEST))
        for _ in range(2):
            assert model.entered.acquire(timeout=20)
        client.h2.reset_stream(first, ErrorCodes.CANCEL)
        client.flush()
        model.gate.set()
        assert y_of(client.answer(second).message) == [3.0, 6.0]
        assert not client.answers[first].headers


def test_what_waits_for_a_thread_is_dropped_with_its_client(port: int, model: NumpyModel) -> None:
    model.gate = threading.Event()
    with H2Client(port) as client:
        running = [client.begin() for _ in range(2)]
        for stream_id in running:
            client.send(stream_id, framed(REQUEST))
            assert model.entered.acquire(timeout=20)
        waiting = client.begin()
        client.send(waiting, framed(REQUEST))
        client.h2.reset_stream(waiting, ErrorCodes.CANCEL)
        client.h2.ping(b"12345678")
        client.flush()
        # The server has seen the reset once it answers what was sent behind it.
        client.until(lambda: bool(client.of_kind(PingAckReceived)))
        model.gate.set()
        for stream_id in running:
            assert client.answer(stream_id).status == 0
        assert client.call(REQUEST).status == 0
    assert len(model.threads) == 3


def test_a_deadline_ends_a_call_that_runs(port: int, model: NumpyModel) -> None:
    model.gate = threading.Event()
    with H2Client(port) as client:
        answer = client.call(REQUEST, grpc_timeout="50m")
        assert (answer.status, answer.headers["grpc-message"]) == (DEADLINE_EXCEEDED, "Deadline Exceeded")
        model.gate.set()
        assert client.call(REQUEST, grpc_timeout="20S").status == 0


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"grpc_timeout": "soon"}, INVALID_ARGUMENT),
        ({"grpc_timeout": "123456789S"}, INVALID_ARGUMENT),
        ({"grpc_encoding": "br"}, UNIMPLEMENTED),
        ({"path": "/nothing/Nothing"}, UNIMPLEMENTED),
    ],
)
def test_headers_that_can_not_be_served(port: int, headers: dict[str, str], status: int) -> None:
    with H2Client(port) as client:
        assert client.call(REQUEST, **headers).status == status
        assert client.call(REQUEST).status == 0


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"", INVALID_ARGUMENT),
        (b"\0\0\0", INVALID_ARGUMENT),
        (framed(REQUEST)[:-1], INVALID_ARGUMENT),
        (framed(REQUEST) * 2, INVALID_ARGUMENT),
        (b"\2" + framed(REQUEST)[1:], INVALID_ARGUMENT),
        (b"\0\x7f\xff\xff\xff", RESOURCE_EXHAUSTED),
    ],
    ids=["nothing", "half a prefix", "a byte less", "twice", "an unknown flag", "a length over the limit"],
)
def test_bodies_that_are_not_one_message(port: int, data: bytes, status: int) -> None:
    with H2Client(port) as client:
        stream_id = client.begin()
        client.send(stream_id, data)
        assert client.answer(stream_id).status == status
        assert client.call(REQUEST).status == 0


@pytest.mark.parametrize(("more", "status"), [({"content_type": "text/html"}, "415"), ({":method": "GET"}, "405")])
def test_what_is_not_grpc_is_told_so_in_http(port: int, more: dict[str, str], status: str) -> None:
    with H2Client(port) as client:
        assert client.call(b"", **more).headers[":status"] == status


def test_pings_are_answered(port: int) -> None:
    with H2Client(port) as client:
        client.h2.ping(b"keepaliv")
        client.flush()
        client.until(lambda: bool(client.of_kind(PingAckReceived)))
        assert client.of_kind(PingAckReceived)[0].ping_data == b"keepaliv"


def test_a_stop_ends_what_runs_and_takes_nothing_new(server: H2Server, port: int, model: NumpyModel) -> None:
    model.gate = threading.Event()
    with H2Client(port) as client, H2Client(port) as idle:
        stream_id = client.begin()
        client.send(stream_id, framed(REQUEST))
        assert model.entered.acquire(timeout=20)
        stopping = threading.Thread(target=server.stop, args=(20,))
        stopping.start()
        # The library takes nothing any more once it has seen a GOAWAY.
        goaway = next(frame for frame in client.frames() if frame[3] == GOAWAY)
        assert int.from_bytes(goaway[13:17], "big") == ErrorCodes.NO_ERROR
        idle.until(lambda: idle.is_closed)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))
        model.gate.set()
        kinds = [frame[3] for frame in client.frames() if int.from_bytes(frame[5:9], "big") == stream_id]
        assert kinds == [HEADERS, DATA, HEADERS]
        stopping.join(20)
        assert not stopping.is_alive()


def test_grpcio_sees_a_drain_as_a_drain(server: H2Server, port: int, model: NumpyModel) -> None:
    model.gate = threading.Event()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        running = channel.unary_unary(PREDICT).future(REQUEST)
        assert model.entered.acquire(timeout=20)
        stopping = threading.Thread(target=server.stop, args=(20,))
        stopping.start()
        stopping.join(0.1)
        model.gate.set()
        assert y_of(running.result()) == [3.0, 6.0]
        stopping.join(20)
        assert not stopping.is_alive()


@pytest.mark.parametrize("opening", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00" + b"\0" * 40, b"\0" * 4000])
def test_strangers_are_shown_out(port: int, opening: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=30) as stranger:
        stranger.sendall(opening)
        try:
            while stranger.recv(4096):
                pass
        except ConnectionError:
            pass
    with H2Client(port) as client:
        assert client.call(REQUEST).status == 0


def test_headers_without_end_do_not_pile_up(port: int) -> None:
    with H2Client(port) as client:
        client.begin(**{f"x_{i}": "v" * 1000 for i in range(5000)})
        # The last of it is not sent, so that nothing but its size ends the connection.
        headers = client.h2.data_to_send()[:-2000]
        try:
            for at in range(0, len(headers), 8192):
                client.socket.sendall(headers[at : at + 8192])
            client.until(lambda: client.is_closed)
        except ConnectionError:
            pass
    with H2Client(port) as client:
        assert client.call(REQUEST, x_much="v" * 8000).status == 0


def test_streams_that_are_reset_at_once_do_not_pile_up(port: int) -> None:
    with H2Client(port) as other, H2Client(port) as client:
        try:
            for _ in range(3000):
                stream_id = client.begin()
                client.h2.reset_stream(stream_id, ErrorCodes.CANCEL)
                client.flush()
        except ConnectionError:
            pass
        assert other.call(REQUEST).status == 0


def test_a_closed_connection_is_freed_at_once(port: int) -> None:
    def connections() -> int:
        return sum(isinstance(thing, Connection) for thing in gc.get_objects())

    gc.collect()
    gc.disable()
    try:
        before = connections()
        for _ in range(5):
            with H2Client(port) as client:
                assert client.call(large_request(10_000)).status == 0
        end_s = time.monotonic() + 20
        while connections() > before and time.monotonic() < end_s:
            time.sleep(0.01)
        assert connections() == before
    finally:
        gc.enable()


def test_rubbish_behind_a_good_start(port: int, caplog: pytest.LogCaptureFixture) -> None:
    rng = random.Random(7)
    for _ in range(150):
        with H2Client(port) as client:
            stream_id = client.begin()
            client.h2.send_data(stream_id, framed(REQUEST), end_stream=True)
            frames = bytearray(client.h2.data_to_send())
            for _ in range(rng.randrange(1, 6)):
                frames[rng.randrange(len(frames))] = rng.randrange(256)
            if rng.random() < 0.3:
                del frames[rng.randrange(len(frames)) :]
            client.socket.sendall(frames)
            client.socket.shutdown(socket.SHUT_WR)
            try:
                while client.socket.recv(1 << 16):
                    pass
            except ConnectionError:
                pass
    with H2Client(port) as client:
        assert y_of(client.call(REQUEST).message) == [3.0, 6.0]
    assert not [record for record in caplog.records if record.levelname in ("ERROR", "CRITICAL")]
