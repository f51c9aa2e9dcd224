"""Messages between the supervising process and a worker: JSON objects, each behind its length, over a socket pair."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

Message = dict[str, Any]

LENGTH_BYTES = 4
# Far above any exposition; more is not a message but something else on the socket.
_MAX_BYTES = 256 << 20


class BadFrame(Exception):
    """What came over the socket is no message."""


def encode(kind: str, **fields: Any) -> bytes:
    """Returns a message as it travels.

    >>> encode("reload", id=7)[4:]
    b'{"kind":"reload","id":7}'
    """
    data = json.dumps({"kind": kind, **fields}, separators=(",", ":")).encode()
    return len(data).to_bytes(LENGTH_BYTES, "big") + data


class Frames:
    """Cuts a stream of bytes into messages, however they arrive. Concurrency: one caller at a time."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> Iterator[Message]:
        """Yields the messages that are complete now; raises BadFrame."""
        self._rest += data
        while len(self._rest) >= LENGTH_BYTES:
            length = int.from_bytes(self._rest[:LENGTH_BYTES], "big")
            if length > _MAX_BYTES:
                raise BadFrame(f"a message of {length} bytes")
            end = LENGTH_BYTES + length
            if len(self._rest) < end:
                return
            body = bytes(self._rest[LENGTH_BYTES:end])
            del self._rest[:end]
            yield _parsed(body)


def _parsed(body: bytes) -> Message:
    try:
        message = json.loads(body)
    except ValueError as error:
        raise BadFrame(f"not JSON: {body[:40]!r}") from error
    if not isinstance(message, Mapping) or not isinstance(message.get("kind"), str):
        raise BadFrame(f"no kind in {body[:40]!r}")
    return dict(message)
