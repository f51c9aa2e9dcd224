"""Reads a request's body under a hard limit, also where it is compressed."""

from __future__ import annotations

import zlib

from starlette.requests import ClientDisconnect, Request

from service.core.errors import MalformedPayload, PayloadTooLarge

# zlib's window size for a gzip header and trailer; "deflate" is zlib's own form.
_GZIP = 16 + zlib.MAX_WBITS
_DECODERS = {b"gzip": ("gzip", _GZIP), b"x-gzip": ("gzip", _GZIP), b"deflate": ("deflate", zlib.MAX_WBITS)}


async def read_body(request: Request, max_bytes: int) -> bytes:
    """Returns the decompressed body.

    The limit holds for what was declared, for what arrives and for what it decompresses to, so that no body costs more
    memory than max_bytes and a chunk.

    Raises:
      PayloadTooLarge: over the limit.
      MalformedPayload: not the gzip or deflate data that its header says, or another encoding.
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
        # Nearly every body comes in one piece.
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
    room = max_bytes
    is_last = False
    try:
        while not is_last:
            data, is_last = await _next_chunk(request)
            while data:
                # One byte more than there is room for tells a full body from one that is too long.
                piece = decoder.decompress(data, room + 1)
                room -= len(piece)
                if room < 0:
                    raise PayloadTooLarge(f"The decompressed body is over the limit of {max_bytes} bytes.")
                pieces.append(piece)
                data = decoder.unconsumed_tail
                if decoder.eof and decoder.unused_data:
                    # A gzip file may consist of several members, one after the other.
                    data, decoder = decoder.unused_data, zlib.decompressobj(window)
    except zlib.error as error:
        raise MalformedPayload(f"The body is not valid {name} data: {error}") from error
    if not decoder.eof:
        raise MalformedPayload(f"The body is not valid {name} data: it ends early")
    return b"".join(pieces)


async def _next_chunk(request: Request) -> tuple[bytes, bool]:
    message = await request.receive()
    if message["type"] == "http.disconnect":
        raise ClientDisconnect()
    return message.get("body", b""), not message.get("more_body", False)
