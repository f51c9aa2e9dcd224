"""Tests the limits on pipelined requests, heads and connections of the admin port's server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import uvicorn

from service.http.uvicorn_server import HttpServer, LimitedConnection, surplus_of, uvicorn_config

pytestmark = pytest.mark.anyio
GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
LAST_GET = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
PATIENCE_S = 60.0
Open = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


class App:
    """An ASGI application that waits for `gate`, and then answers with the number of bytes of the request's body."""

    def __init__(self, status: int = 200) -> None:
        self.status = status
        self.gate = asyncio.Event()
        self.count = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.count += 1
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        await self.gate.wait()
        data = b"%d;" % len(body)
        headers = [(b"content-length", b"%d" % len(data))]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": data})


@asynccontextmanager
async def served(app: App, *, max_connections: int = 10, **more: int) -> AsyncIterator[tuple[uvicorn.Server, Open]]:
    """Serves the application on a free port; yields the server and a function that connects."""
    connection: Any = partial(LimitedConnection, max_connections=max_connections)
    where: dict[str, Any] = {"host": "127.0.0.1", "port": 0, "lifespan": "off"}
    server = HttpServer(uvicorn_config(app, drain_timeout_s=1, http=connection, **where, **more))
    serving = asyncio.create_task(server.serve())
    await server.begun.wait()
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield server, lambda: asyncio.open_connection("127.0.0.1", port)
    finally:
        app.gate.set()
        server.should_exit = True
        await serving


def connections_of(server: uvicorn.Server) -> list[LimitedConnection]:
    """Returns the server's open connections."""
    return [one for one in server.server_state.connections if isinstance(one, LimitedConnection)]


async def until(is_true: Callable[[], bool]) -> None:
    """Waits until a condition holds."""
    async with asyncio.timeout(PATIENCE_S):
        while not is_true():  # noqa: ASYNC110 - the server has no event for this condition
            await asyncio.sleep(0.001)


async def test_pipelined_requests_are_parsed_after_the_answers_before_them() -> None:
    app, number = App(), 5000
    async with served(app) as (server, connect):
        reader, writer = await connect()
        writer.write(GET * number)
        await until(lambda: bool(connections_of(server)) and connections_of(server)[0].is_running)
        await asyncio.sleep(0.05)
        (connection,) = connections_of(server)
        assert app.count == 1 and connection.flow.read_paused
        app.gate.set()
        data = b""
        async with asyncio.timeout(PATIENCE_S):
            while data.count(b"0;") < number:
                assert (more := await reader.read(1 << 16))
                data += more
        assert app.count == number
        writer.close()


@pytest.mark.parametrize("is_chunked", [False, True], ids=["length", "chunks"])
async def test_bodies_are_whole_and_requests_after_them_are_answered(is_chunked: bool) -> None:
    app = App()
    app.gate.set()
    size = 300_000
    if is_chunked:
        head, body = b"transfer-encoding: chunked\r\n\r\n", b"%x\r\n%s\r\n0\r\n\r\n" % (size, b"y" * size)
    else:
        head, body = b"content-length: %d\r\n\r\n" % size, b"y" * size
    async with served(app) as (_, connect):
        reader, writer = await connect()
        writer.write((b"POST / HTTP/1.1\r\nhost: x\r\n" + head + body + GET) * 2)
        async with asyncio.timeout(PATIENCE_S):
            for expected in (b"300000;", b"0;", b"300000;", b"0;"):
                assert expected in await reader.readuntil(b";")
        writer.close()


@pytest.mark.parametrize("line", [b"CONNECT / HTTP/1.1", b"POST / HTTP/1.1\r\nconnection: upgrade\r\nupgrade: x"])
async def test_the_body_of_a_request_to_upgrade_is_not_read_as_requests(line: bytes) -> None:
    app = App(status=405)
    app.gate.set()
    body = b"\r\n" * 2000 + GET * 3
    async with served(app) as (_, connect):
        reader, writer = await connect()
        writer.write(line + b"\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body + LAST_GET)
        answer = await asyncio.wait_for(reader.read(), PATIENCE_S)
        writer.close()
    assert answer.count(b"HTTP/1.1 405 ") == 2
    assert app.count == 2


async def test_a_head_over_the_limit_ends_the_connection() -> None:
    app = App()
    app.gate.set()
    async with served(app, h11_max_incomplete_event_size=4096) as (_, connect):
        for size, is_answered in ((2000, True), (10_000, False)):
            reader, writer = await connect()
            writer.write(GET[:-2] + b"x: " + b"y" * size + b"\r\n\r\n")
            async with asyncio.timeout(PATIENCE_S):
                try:
                    data = await reader.read(1000)
                except ConnectionResetError:
                    data = b""
            assert data.startswith(b"HTTP/1.1 200") == is_answered
            writer.close()


async def test_one_connection_too_many_closes_the_longest_idle_one() -> None:
    app = App()
    async with served(app, max_connections=3) as (server, connect):
        everyone = [await connect() for _ in range(3)]
        everyone[0][1].write(GET)
        await until(lambda: app.count == 1)
        everyone.append(await connect())
        async with asyncio.timeout(PATIENCE_S):
            assert await everyone[1][0].read(1) == b""
        await until(lambda: len(connections_of(server)) == 3)
        assert any(one.is_running for one in connections_of(server))
        for _, writer in everyone:
            writer.close()


class Fake:
    """A connection with the attributes that surplus_of() reads."""

    def __init__(self, address: str, idle_since_s: float, *, is_running: bool = False) -> None:
        self.address, self.idle_since_s, self.is_running = address, idle_since_s, is_running


def test_the_address_with_most_connections_loses_one() -> None:
    def closed(*fakes: Fake) -> int:
        everyone: Any = fakes
        found: Any = surplus_of(everyone)
        return fakes.index(found)

    assert closed(Fake("a", 1), Fake("b", 2), Fake("b", 3)) == 1
    assert closed(Fake("a", 1), Fake("b", 2, is_running=True), Fake("b", 3)) == 2
    assert closed(Fake("a", 1), Fake("b", 2, is_running=True), Fake("b", 3, is_running=True)) == 2
