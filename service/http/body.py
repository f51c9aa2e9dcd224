"""Reads an HTTP request's body, with limits on its received and on its decompressed size."""

from __future__ import annotations

import asyncio
import zlib

from starlette.requests import ClientDisconnect, Request

from service.errors import MalformedPayload, PayloadTooLarge

# zlib's window size that selects gzip's format; HTTP's "deflate" is zlib's own format.
_GZIP = 16 + zlib.MAX_WBITS
_DECODERS = {b"gzip": ("gzip", _GZIP), b"x-gzip": ("gzip", _GZIP), b"deflate": ("deflate", zlib.MAX_WBITS)}
# Bytes that are decompressed in one step; between steps the event loop serves other requests, because kilobytes may
# expand to gigabytes.
_PIECE_BYTES = 256 << 10
# A body that decompresses to more than _FREE_BYTES may have at most _MAX_RATIO times its received bytes. JSON of ids
# has about 10 times, an attack up to 1032.
_FREE_BYTES, _MAX_RATIO = 4 << 20, 100
# Largest number of members of a gzip body, which may be a sequence of gzip files: each costs time, even if it is empty.
_MAX_MEMBERS = 1000


async def read_body(request: Request, max_bytes: int) -> bytes:
    """Reads a request's body, and decompresses it if Content-Encoding says so.

    The limit holds for the declared size, the received size and the decompressed size, so that no body costs more
    memory than max_bytes and a chunk. The native core has counted the bodies that it forwards as bytes in flight.

    Raises:
      PayloadTooLarge: the body is over the limit, or compressed far better than requests are.
      MalformedPayload: the body is not the gzip or deflate data that its header says, or has another encoding.
    """
    declared, encoding = _headers(request)
    if declared > max_bytes:
        raise PayloadTooLarge(f"The body of {declared} bytes is over the limit of {max_bytes} bytes.")
    if encoding in (b"", b"identity"):
        return await _read_plain(request, max_bytes)
    if encoding in _DECODERS:
        return await _read_compressed(request, max_bytes, *_DECODERS[encoding])
    shown = ascii(encoding.decode("latin-1"))
    raise MalformedPayload(f"Content-Encoding {shown} is not supported; send gzip, deflate or none.")


def _headers(request: Request) -> tuple[int, bytes]:
    declared, encoding = 0, b""
    for name, value in request.scope["headers"]:
        if name == b"content-length" and value.isdigit():
            declared = int(value[:20])
        elif name == b"content-encoding":
            encoding = value.strip().lower()
    return declared, encoding


async def _read_plain(request: Request, max_bytes: int) -> bytes:
    chunk, is_last = await _next_chunk(request)
    if is_last and len(chunk) <= max_bytes:
        # A request's body in one chunk, the usual case, is returned without a copy.
        return chunk
    chunks, size = [chunk], len(chunk)
    while not is_last and size <= max_bytes:
        chunk, is_last = await _next_chunk(request)
        chunks.append(chunk)
        size += len(chunk)
    if size > max_bytes:
        raise PayloadTooLarge(f"The body is over the limit of {max_bytes} bytes.")
    return b"".join(chunks)


async def _read_compressed(request: Request, max_bytes: int, name: str, window: int) -> bytes:
    decoder = zlib.decompressobj(window)
    pieces: list[bytes] = []
    left, received, num_members = max_bytes, 0, 1
    is_last = False
    try:
        while not is_last:
            data, is_last = await _next_chunk(request)
            received += len(data)
            is_full = False
            while data or is_full:
                # The decompressor may return one byte more than the decompressed body may have, so that a body above
                # the limit is noticed.
                size = min(left + 1, _PIECE_BYTES)
                piece = decoder.decompress(data, size)
                left -= len(piece)
                if left < 0:
                    raise PayloadTooLarge(f"The decompressed body is over the limit of {max_bytes} bytes.")
                _check_ratio(max_bytes - left, received)
                pieces.append(piece)
                # If the decompressor returned as many bytes as it may, it can have more output for the same input.
                is_full = len(piece) == size
                if is_full:
                    await asyncio.sleep(0)
                data = decoder.unconsumed_tail
                if decoder.eof and decoder.unused_data:
                    # Another gzip member follows the first: a gzip body may consist of several, one after the other.
                    data, decoder = decoder.unused_data, zlib.decompressobj(window)
                    num_members += 1
                    if num_members > _MAX_MEMBERS:
                        raise MalformedPayload(f"The body consists of more than {_MAX_MEMBERS} {name} members.")
    except zlib.error as error:
        raise MalformedPayload(f"The body is not valid {name} data: {error}") from error
    if not decoder.eof:
        raise MalformedPayload(f"The body is not valid {name} data: it ends early")
    return b"".join(pieces)


def _check_ratio(size: int, received: int) -> None:
    if size > _FREE_BYTES and size > _MAX_RATIO * received:
        raise PayloadTooLarge(
            f"The body decompresses to more than {_MAX_RATIO} times its size; send it less compressed, or plain."
        )


async def _next_chunk(request: Request) -> tuple[bytes, bool]:
    message = await request.receive()
    if message["type"] == "http.disconnect":
        raise ClientDisconnect()
    return message.get("body", b""), not message.get("more_body", False)
