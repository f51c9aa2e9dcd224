"""Lookups that come in one read, or for many connections at once, are answered together and each as if by itself."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from service.transports.grpc.h2 import quick_answers

from service.core.engine import Engine
from tests.conftest import RecordingObserver, serving
from tests.grpc_servers import grpc_server
from tests.unit.direct.test_direct import INT64, request, tensor
from tests.unit.transports.h2_client import Answer, H2Client, framed

OK, INVALID_ARGUMENT, NOT_FOUND, RESOURCE_EXHAUSTED = 0, 3, 5, 8


@pytest.fixture
def port(toy_model: Path) -> Iterator[int]:
    """Where a server of the toy model listens."""
    server = grpc_server("h2", Engine(serving(toy_model, name="toy"), RecordingObserver()))
    yield server.start()
    server.stop(0)


def lookup(*ids: int) -> bytes:
    """Returns a PredictRequest of the toy model."""
    return request("toy", "lookup", {"user": tensor(np.array(ids, np.int64), INT64, is_content=False)})


def at_once(client: H2Client, messages: list[bytes]) -> list[int]:
    """Queues whole requests, to leave in one write; returns their streams."""
    streams = []
    for message in messages:
        stream_id = client.begin()
        client.h2.send_data(stream_id, framed(message), end_stream=True)
        streams.append(stream_id)
    return streams


def warm(client: H2Client) -> Answer:
    """Has the server learn the headers of calls, and that the path is a quick one."""
    client.call(lookup(0))
    return client.call(lookup(0))


@pytest.mark.parametrize("window", [1, 1000, 70_000, 3_000_000])
@pytest.mark.parametrize("rows", [1, 3_000, 150_000])
def test_a_client_that_takes_a_little_at_a_time(port: int, window: int, rows: int) -> None:
    rows = min(rows, 10 if window == 1 else 6_000 if window == 1000 else rows)
    data = lookup(*(np.arange(rows) % 3).tolist())
    with H2Client(port) as client:
        expected = client.call(data).message
    assert len(expected) > 8 * rows
    with H2Client(port, window) as client:
        for _ in range(2):
            stream_id = client.begin()
            client.send(stream_id, framed(data))
            answer, taken = client.answers[stream_id], 0
            while not answer.is_over:
                client.receive()
                new = len(answer.data) - taken
                if new and not answer.is_over:
                    assert new <= window
                    client.h2.increment_flow_control_window(new, stream_id)
                    client.h2.increment_flow_control_window(new)
                    taken += new
                    client.flush()
            assert answer.message == expected and answer.status == OK
            # What is left of the connection's window is made whole for the next answer.
            client.h2.increment_flow_control_window(len(answer.data) - taken)
            client.flush()


def test_many_in_one_read(port: int) -> None:
    requests = [lookup(*[i % 3] * (1 + i % 5)) for i in range(200)]
    with H2Client(port) as client:
        warm(client)
        alone = [client.call(data).message for data in requests]
        streams = at_once(client, requests)
        client.flush()
        assert [client.answer(stream_id).message for stream_id in streams] == alone


def test_refusals_among_them(port: int) -> None:
    requests = [lookup(1), lookup(-5), b"rubbish", lookup(2), request("absent", "lookup", {}), lookup(1)]
    with H2Client(port) as client:
        warm(client)
        streams = at_once(client, requests)
        client.flush()
        answers = [client.answer(stream_id) for stream_id in streams]
        statuses = [answer.status for answer in answers]
        assert statuses == [OK, INVALID_ARGUMENT, INVALID_ARGUMENT, OK, NOT_FOUND, OK]
        assert answers[0].message == answers[5].message == client.call(lookup(1)).message


def test_a_window_that_opens_behind_the_request_in_the_same_read(port: int) -> None:
    # All of the windows is needed, and the server learns of it when it has read the request and not answered yet.
    with H2Client(port, 10) as client:
        stream_id = client.begin()
        client.h2.send_data(stream_id, framed(lookup(*[1] * 100)), end_stream=True)
        client.h2.increment_flow_control_window(1 << 20, stream_id)
        client.flush()
        first = client.answer(stream_id).message
        again = client.begin()
        client.h2.send_data(again, framed(lookup(*[1] * 100)), end_stream=True)
        client.h2.increment_flow_control_window(1 << 20, again)
        client.flush()
        assert client.answer(again).message == first and len(first) > 100


def test_a_reset_behind_the_request_in_the_same_read(port: int) -> None:
    with H2Client(port) as client:
        alone = warm(client).message
        first, second = at_once(client, [lookup(0), lookup(0)])
        client.h2.reset_stream(first)
        client.flush()
        assert client.answer(second).message == alone


def test_what_one_client_leaves_for_later_is_bounded(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quick_answers, "_MOST_BYTES", 100)
    requests = [lookup(i % 3, 1) for i in range(50)]
    with H2Client(port) as client:
        warm(client)
        streams = at_once(client, requests)
        client.flush()
        answers = [client.answer(stream_id).message for stream_id in streams]
        assert answers == [client.call(data).message for data in requests]


def test_many_clients_at_once(port: int) -> None:
    random = np.random.default_rng(7)
    requests = [lookup(*random.integers(0, 3, 1 + i).tolist()) for i in range(8)]
    with H2Client(port) as client:
        alone = [client.call(data).message for data in requests]
    wrong: list[int] = []

    def work(number: int) -> None:
        with H2Client(port) as client:
            for i in range(100):
                which = (number * 7 + i) % 8
                if client.call(requests[which]).message != alone[which]:
                    wrong.append(which)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_message_over_the_limit_is_refused_however_quickly_it_could_be_answered(toy_model: Path) -> None:
    engine = Engine(serving(toy_model, name="toy"), RecordingObserver())
    server = grpc_server("h2", engine, max_message_bytes=1024)
    with H2Client(server.start()) as client:
        warm(client)
        largest = lookup(*[1] * 900)
        assert client.call(lookup(*[1] * (900 + 1024 - len(largest)))).status == OK
        for count in (1000, 5_000, 50_000):
            assert client.call(lookup(*[1] * (count + 25))).status == RESOURCE_EXHAUSTED
        assert client.call(lookup(1)).status == OK
    server.stop(0)
