"""Who takes a connection: two listeners on one socket pair of ends, counts set by hand."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from service.workers.counts import ConnectionCounts
from service.workers.fair_listener import FairListener


class Held(asyncio.Protocol):
    """Counts the connections that are open."""

    open: list[Held] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Counts one."""
        self.open.append(self)


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """A socket that listens, which the test's clients connect to."""
    with socket.create_server(("127.0.0.1", 0)) as one:
        yield one


class Worker:
    """One worker's listener with its connections."""

    def __init__(self, listener: socket.socket, counts: ConnectionCounts, place: int) -> None:
        self.is_ready = True
        self.held: Any = type("Mine", (Held,), {"open": []})
        self._listener = FairListener(
            asyncio.get_running_loop(),
            self.held,
            listener.dup(),
            lambda: self.num,
            counts=counts,
            worker=place,
            wire="http",
            is_ready=lambda: self.is_ready,
        )

    @property
    def num(self) -> int:
        """How many connections it holds."""
        return len(list(self.held.open))

    def close(self) -> None:
        """Takes no more."""
        self._listener.close()


async def settled(is_so: object) -> None:
    """Waits until a callable gives true."""
    assert callable(is_so)
    while not is_so():  # noqa: ASYNC110
        await asyncio.sleep(0.001)


@pytest.mark.anyio
async def test_two_workers_hold_as_many_and_a_late_one_catches_up(listener: socket.socket) -> None:
    counts = ConnectionCounts.create(2)
    first = Worker(listener, counts, 0)
    clients = [socket.create_connection(listener.getsockname()) for _ in range(4)]
    await settled(lambda: first.num == 4)
    second = Worker(listener, counts, 1)
    for total in range(5, 9):
        clients.append(socket.create_connection(listener.getsockname()))
        await settled(lambda total=total: first.num + second.num == total)
    assert (first.num, second.num) == (4, 4)
    first.close()
    clients += [socket.create_connection(listener.getsockname()) for _ in range(3)]
    await settled(lambda: second.num == 7)
    second.close()
    for client in clients:
        client.close()


@pytest.mark.anyio
async def test_one_that_is_busy_does_not_hold_up_a_connection(listener: socket.socket) -> None:
    counts = ConnectionCounts.create(2)
    first = Worker(listener, counts, 0)
    # The other holds none and never looks.
    counts.set(1, "http", 0)
    clients = [socket.create_connection(listener.getsockname()) for _ in range(3)]
    await settled(lambda: first.num == 3)
    first.close()
    for client in clients:
        client.close()


@pytest.mark.anyio
async def test_one_that_is_not_ready_leaves_connections_to_one_that_is(listener: socket.socket) -> None:
    counts = ConnectionCounts.create(2)
    first = Worker(listener, counts, 0)
    first.is_ready = False
    alone = socket.create_connection(listener.getsockname())
    await settled(lambda: first.num == 1)
    second = Worker(listener, counts, 1)
    clients = [socket.create_connection(listener.getsockname()) for _ in range(5)]
    await settled(lambda: second.num == 5)
    assert first.num == 1
    for worker in (first, second):
        worker.close()
    for client in (alone, *clients):
        client.close()
