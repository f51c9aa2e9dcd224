"""What a request's headers must be, and what is kept of them.

Source: RFC 9113, sections 8.2 and 8.3.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from service.transports.grpc.h2.frames import PROTOCOL_ERROR, StreamFault

_NAME = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+")
_NOT_IN_VALUES = re.compile(rb"[\0\r\n]")
_PSEUDO = frozenset((b":method", b":scheme", b":path", b":authority"))
_NEEDED = frozenset((b":method", b":scheme", b":path"))
_OF_CONNECTIONS = frozenset((b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade"))


@dataclass(frozen=True, slots=True)
class RequestHead:
    """A request's headers.

    headers: without those of HTTP/2 itself; values of a name that came more than once are joined by commas.
    content_length: what the body must have; None where it is not said.
    """

    method: str
    path: str
    headers: Mapping[bytes, bytes]
    content_length: int | None


def read_request_head(fields: Iterable[tuple[bytes, bytes]]) -> RequestHead:
    """Returns a request's headers; raises StreamFault where they are malformed."""
    pseudo: dict[bytes, bytes] = {}
    headers: dict[bytes, bytes] = {}
    for name, value in fields:
        if _NOT_IN_VALUES.search(value):
            raise StreamFault(PROTOCOL_ERROR)
        if name[:1] == b":":
            if headers or name in pseudo or name not in _PSEUDO:
                raise StreamFault(PROTOCOL_ERROR)
            pseudo[name] = value
        elif not _NAME.fullmatch(name) or name in _OF_CONNECTIONS or (name == b"te" and value != b"trailers"):
            raise StreamFault(PROTOCOL_ERROR)
        else:
            headers[name] = headers[name] + b"," + value if name in headers else value
    if not pseudo.keys() >= _NEEDED or not pseudo[b":path"]:
        raise StreamFault(PROTOCOL_ERROR)
    length = headers.get(b"content-length")
    if length is not None and not length.isdigit():
        raise StreamFault(PROTOCOL_ERROR)
    method, path = pseudo[b":method"].decode("latin-1"), pseudo[b":path"].decode("latin-1")
    return RequestHead(method, path, headers, None if length is None else int(length))


def check_trailers(fields: Iterable[tuple[bytes, bytes]]) -> None:
    """Raises StreamFault where a request's trailers are malformed; nothing in them is used."""
    for name, value in fields:
        if not _NAME.fullmatch(name) or _NOT_IN_VALUES.search(value):
            raise StreamFault(PROTOCOL_ERROR)
