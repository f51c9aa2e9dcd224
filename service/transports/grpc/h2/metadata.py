"""What a gRPC call says in its headers, and how its status travels in trailers.

Source: gRPC over HTTP2 (PROTOCOL-HTTP2.md), sections Requests, Responses and Status.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from httpunk.http import HeaderMap

from service.core.errors import InvalidRequest
from service.transports.grpc.served import RESPONSE_ENCODING_KEY, TENSOR_ENCODING_KEY

ENCODINGS = ("identity", "deflate", "gzip")

_SECONDS = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_TIMEOUT = re.compile(r"([0-9]{1,8})([HMSmun])")
_ACCEPTED = ("grpc-accept-encoding", ",".join(ENCODINGS))
_CONTENT = ("content-type", "application/grpc")

RESPONSE_HEAD = HeaderMap([_CONTENT, _ACCEPTED])
GZIP_RESPONSE_HEAD = HeaderMap([_CONTENT, ("grpc-encoding", "gzip"), _ACCEPTED])
OK_TRAILERS = HeaderMap([("grpc-status", "0")])
NOT_GRPC = HeaderMap([("content-type", "text/plain")])


@dataclass(frozen=True, slots=True)
class CallOptions:
    """What a client asked for beside the method. timeout_s: None for no deadline; as_content: None for the default."""

    timeout_s: float | None
    encoding: str
    as_content: bool | None
    is_gzip_wanted: bool


def read_options(headers: HeaderMap) -> CallOptions:
    """Returns what headers ask for; raises InvalidRequest for a timeout that is none."""
    tensors = headers.get(TENSOR_ENCODING_KEY)
    return _options(
        headers.get("grpc-timeout", b""),
        headers.get("grpc-encoding", b"identity"),
        tensors,
        headers.get(RESPONSE_ENCODING_KEY) == b"gzip",
    )


@lru_cache(maxsize=256)
def _options(timeout: bytes, encoding: bytes, tensors: bytes | None, is_gzip_wanted: bool) -> CallOptions:
    # Remembered: few clients send many combinations, but for timeouts, which stock clients round to few digits.
    seconds = None
    if timeout:
        match = _TIMEOUT.fullmatch(timeout.decode("latin-1"))
        if match is None:
            raise InvalidRequest(f"grpc-timeout {ascii(timeout.decode('latin-1'))} is not a number and a unit")
        seconds = int(match[1]) * _SECONDS[match[2]]
    return CallOptions(
        seconds, encoding.decode("latin-1"), None if tensors is None else tensors == b"content", is_gzip_wanted
    )


def error_trailers(code: int, text: str) -> HeaderMap:
    """Returns the trailers of a status; they follow an answer's messages."""
    return HeaderMap([("grpc-status", str(code)), ("grpc-message", percent_encoded(text))])


def error_head(code: int, text: str) -> HeaderMap:
    """Returns the head of an answer that is a status alone."""
    status = [("grpc-status", str(code)), ("grpc-message", percent_encoded(text))]
    return HeaderMap([_CONTENT, _ACCEPTED, *status])


def percent_encoded(text: str) -> str:
    """Returns text as grpc-message carries it: printable ASCII but "%" stays.

    >>> percent_encoded("50% of Zoë\\n")
    '50%25 of Zo%C3%AB%0A'
    """
    data = text.encode("utf-8", "replace")
    return "".join(chr(byte) if 0x20 <= byte <= 0x7E and byte != 0x25 else f"%{byte:02X}" for byte in data)
