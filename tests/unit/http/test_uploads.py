"""The middleware counts the bytes of bodies while their requests run, and closes the connections of unread bodies."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from service.errors import DeadlineExceeded, Overloaded, PayloadTooLarge
from service.http.uploads import UploadsMiddleware

_KB = 1024
_CLOSE = (b"connection", b"close")


class Request:
    """A request to the layer `read`, which answers when it has the body. Its parts come by send_part()."""

    def __init__(self, *, has_body: bool = True) -> None:
        self.has_body = has_body
        self._parts: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.error: type[Exception] | None = None
        self.closes = False

    def send_part(self, size: int, *, is_last: bool = False) -> None:
        """Sends bytes of the body."""
        self._parts.put_nowait({"type": "http.request", "body": bytes(size), "more_body": not is_last})

    async def run(self, layer: UploadsMiddleware) -> None:
        """Runs the request; sets `error` if its body is not read to the end, and `closes` if the answer says so."""

        async def send(message: Any) -> None:
            self.closes = _CLOSE in message["headers"]

        headers = [(b"transfer-encoding", b"chunked")] if self.has_body else []
        await layer({"type": "http", "headers": headers, "request": self}, self._parts.get, send)


async def _read(scope: Any, receive: Any, send: Any) -> None:
    try:
        while (await receive())["more_body"]:
            pass
    except Exception as error:
        scope["request"].error = type(error)
    await send({"type": "http.response.start", "headers": []})


async def _told(layer: UploadsMiddleware, *sizes: int) -> tuple[type[Exception] | None, bool]:
    request = Request()
    for number, size in enumerate(sizes, 1):
        request.send_part(size, is_last=number == len(sizes))
    await request.run(layer)
    return request.error, request.closes


def test_bodies_of_requests_that_run_are_counted_together() -> None:
    async def run() -> None:
        layer = UploadsMiddleware(_read, 100 * _KB, 60)
        first = Request()
        first.send_part(60 * _KB)
        running = asyncio.create_task(first.run(layer))
        await asyncio.sleep(0)
        assert await _told(layer, 20 * _KB, 20 * _KB) == (None, False)
        assert await _told(layer, 30 * _KB, 20 * _KB, 1) == (Overloaded, True)
        first.send_part(0, is_last=True)
        await running
        assert (first.error, first.closes) == (None, False)
        assert await _told(layer, 60 * _KB) == (None, False)

    asyncio.run(run())


@pytest.mark.parametrize(("size", "error"), [(64, None), (70, None), (100, PayloadTooLarge)])
def test_a_large_body_counts_ten_times(size: int, error: type[Exception] | None) -> None:
    async def run() -> None:
        held: list[int] = []
        layer = UploadsMiddleware(_read, 900 * _KB, 60, held.append)
        for _ in range(3):
            assert await _told(layer, size * _KB, 1) == (error, error is not None)
        assert sum(held) == (0 if error else 3 * 10 * (size * _KB + 1))

    asyncio.run(run())


@pytest.mark.parametrize("has_body", [False, True])
def test_an_answer_before_the_body_closes_the_connection(has_body: bool) -> None:
    async def answer(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "headers": []})

    request = Request(has_body=has_body)
    asyncio.run(request.run(UploadsMiddleware(answer, 100 * _KB, 60)))
    assert request.closes == has_body


def test_a_body_must_come_at_a_pace_and_an_answer_need_not() -> None:
    async def run() -> None:
        layer = UploadsMiddleware(_read, 100 * _KB, 2)
        slow, steady = Request(), Request()
        for part in range(12):
            # 2 KB in 0.2 s are fast enough, one byte is not.
            asyncio.get_running_loop().call_later(0.2 * part, steady.send_part, 2 * _KB)
            asyncio.get_running_loop().call_later(0.2 * part, slow.send_part, 1)
        asyncio.get_running_loop().call_later(2.4, lambda: steady.send_part(0, is_last=True))
        await asyncio.gather(slow.run(layer), steady.run(layer))
        assert (slow.error, slow.closes) == (DeadlineExceeded, True)
        assert (steady.error, steady.closes) == (None, False)

    asyncio.run(run())
