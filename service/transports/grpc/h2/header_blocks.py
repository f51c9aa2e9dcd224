"""Answers' headers as header blocks. They name nothing in the client's table, so each is the same on every connection.

Source: RFC 7541, sections 5 and 6.2.2.
"""

from __future__ import annotations

from collections.abc import Iterable

# The statuses that have a number of their own.
_STATUSES = {200: b"\x88", 404: b"\x8d", 400: b"\x8c", 500: b"\x8e"}


def header_block(headers: Iterable[tuple[str, str]], status: int | None = None) -> bytes:
    """Returns headers as a block.

    Args:
      status: of HTTP, in front; None for trailers.

    >>> header_block([("grpc-status", "0")]).hex()
    '000b677270632d7374617475730130'
    """
    parts = []
    if status is not None:
        parts.append(_STATUSES.get(status) or _literal(":status", str(status)))
    parts += [_literal(name, value) for name, value in headers]
    return b"".join(parts)


def _literal(name: str, value: str) -> bytes:
    return b"\0" + _text(name) + _text(value)


def _text(text: str) -> bytes:
    data = text.encode("latin-1")
    length = len(data)
    if length < 0x7F:
        return bytes([length]) + data
    head, length = bytearray([0x7F]), length - 0x7F
    while length >= 0x80:
        head.append(length & 0x7F | 0x80)
        length >>= 7
    head.append(length)
    return bytes(head) + data
