"""The server compresses some answers for clients that accept it, and not others."""

from __future__ import annotations

import asyncio
import gzip
from typing import Any

import pytest

from service.http.middleware import GzipMiddleware, accepts_gzip

MIN_BYTES = 100


def exchange(pieces: list[bytes], accepted: bytes = b"gzip", **headers: str) -> tuple[dict[bytes, bytes], list[bytes]]:
    """Sends an answer in pieces through the middleware; returns headers and pieces as a client gets them."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        given = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": 200, "headers": given})
        for i, piece in enumerate(pieces):
            await send({"type": "http.response.body", "body": piece, "more_body": i + 1 < len(pieces)})

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "headers": [(b"accept-encoding", accepted)]}
    asyncio.run(GzipMiddleware(app, MIN_BYTES)(scope, None, send))  # type: ignore[arg-type]
    start, *bodies = sent
    return dict(start["headers"]), [body["body"] for body in bodies]


# The sizes are below and above the one from which an answer is compressed in a thread beside the event loop.
@pytest.mark.parametrize("size", [MIN_BYTES, 100_000])
def test_a_large_answer_is_compressed(size: int) -> None:
    headers, (body,) = exchange([b"x" * size], content_length=str(size))
    assert gzip.decompress(body) == b"x" * size
    assert headers == {
        b"content-length": str(len(body)).encode(),
        b"content-encoding": b"gzip",
        b"vary": b"Accept-Encoding",
    }


@pytest.mark.parametrize(
    ("pieces", "accepted", "headers"),
    [
        ([b"x" * (MIN_BYTES - 1)], b"gzip", {}),
        ([b"x" * MIN_BYTES], b"br", {}),
        ([b"x" * MIN_BYTES, b"y"], b"gzip", {}),
        ([b"x" * MIN_BYTES], b"gzip", {"content_encoding": "deflate"}),
    ],
    ids=["small", "not accepted", "in pieces", "compressed already"],
)
def test_what_is_left_as_it_is(pieces: list[bytes], accepted: bytes, headers: dict[str, str]) -> None:
    given = {name.replace("_", "-").encode(): value.encode() for name, value in headers.items()}
    assert exchange(pieces, accepted, **headers) == (given, pieces)


def test_large_json_that_is_sent_plain_says_on_what_it_depends() -> None:
    for size, more in ((MIN_BYTES, {b"vary": b"Accept-Encoding"}), (MIN_BYTES - 1, {})):
        headers, pieces = exchange([b"1" * size], b"br", content_type="application/json")
        assert (headers, pieces) == ({b"content-type": b"application/json", **more}, [b"1" * size])


@pytest.mark.parametrize(
    ("accepted", "expected"),
    [
        (b"gzip", True),
        (b"deflate, GZIP ; q=0.1", True),
        (b"gzip;q=0", False),
        (b"gzip; q=0.000", False),
        (b"*", False),
        (b"", False),
    ],
)
def test_what_a_client_accepts(accepted: bytes, expected: bool) -> None:
    assert accepts_gzip({"headers": [(b"accept-encoding", accepted)]}) is expected
