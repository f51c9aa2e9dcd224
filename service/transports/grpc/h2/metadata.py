"""What a gRPC call says in its headers, and how its status travels in trailers.

Source: gRPC over HTTP2 (PROTOCOL-HTTP2.md), sections Requests, Responses and Status.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from service.core import request_context
from service.core.errors import InvalidRequest
from service.transports.grpc.h2.header_blocks import header_block
from service.transports.grpc.served import RESPONSE_ENCODING_KEY, TENSOR_ENCODING_KEY

ENCODINGS = ("identity", "deflate", "gzip")

_SECONDS = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_TIMEOUT = re.compile(r"([0-9]{1,8})([HMSmun])")
_REQUEST_ID, _TRACEPARENT = request_context.REQUEST_ID.encode(), request_context.TRACEPARENT.encode()
_TENSOR_ENCODING, _RESPONSE_ENCODING = TENSOR_ENCODING_KEY.encode(), RESPONSE_ENCODING_KEY.encode()
_ACCEPTED = ("grpc-accept-encoding", ",".join(ENCODINGS))
_CONTENT = ("content-type", "application/grpc")

RESPONSE_HEAD = header_block([_CONTENT, _ACCEPTED], 200)
OK_TRAILERS = header_block([("grpc-status", "0")])


@dataclass(frozen=True, slots=True)
class CallOptions:
    """What a client asked for beside the method.

    timeout_s: None for no deadline; as_content: None for the default; head_block: before an answer's messages.
    request_id, traceparent: as in core.request_context.
    """

    timeout_s: float | None
    encoding: str
    as_content: bool | None
    is_gzip_wanted: bool
    head_block: bytes
    request_id: bytes = b""
    traceparent: bytes = b""


def read_options(headers: Mapping[bytes, bytes]) -> CallOptions:
    """Returns what headers ask for; raises InvalidRequest for a timeout that is none."""
    options = _options(
        headers.get(b"grpc-timeout", b""),
        headers.get(b"grpc-encoding", b"identity"),
        headers.get(_TENSOR_ENCODING),
        headers.get(_RESPONSE_ENCODING) == b"gzip",
    )
    parent = headers.get(_TRACEPARENT, b"")
    own_id = request_context.sane_id(headers.get(_REQUEST_ID, b""))
    if parent or own_id:
        head_block = options.head_block + (
            header_block([(request_context.REQUEST_ID, own_id.decode())]) if own_id else b""
        )
        request_id = own_id or request_context.trace_id(parent)
        options = replace(options, head_block=head_block, request_id=request_id, traceparent=parent)
    return options


@lru_cache(maxsize=256)
def _options(timeout: bytes, encoding: bytes, tensors: bytes | None, is_gzip_wanted: bool) -> CallOptions:
    # Remembered: few clients send many combinations, but for timeouts, which stock clients round to few digits.
    seconds = None
    if timeout:
        match = _TIMEOUT.fullmatch(timeout.decode("latin-1"))
        if match is None:
            raise InvalidRequest(f"grpc-timeout {ascii(timeout.decode('latin-1'))} is not a number and a unit")
        seconds = int(match[1]) * _SECONDS[match[2]]
    more = [("grpc-encoding", "gzip")] if is_gzip_wanted else []
    as_content = None if tensors is None else tensors == b"content"
    head_block = header_block([_CONTENT, *more, _ACCEPTED], 200)
    return CallOptions(seconds, encoding.decode("latin-1"), as_content, is_gzip_wanted, head_block)


def not_grpc(status: int) -> bytes:
    """Returns the head of an answer to what is no call."""
    return header_block([("content-type", "text/plain")], status)


def error_trailers(code: int, text: str) -> bytes:
    """Returns the trailers of a status; they follow an answer's messages."""
    return header_block([("grpc-status", str(code)), ("grpc-message", percent_encoded(text))])


def error_head(code: int, text: str, more: Iterable[tuple[str, str]] = ()) -> bytes:
    """Returns the head of an answer that is a status alone."""
    status = [("grpc-status", str(code)), ("grpc-message", percent_encoded(text))]
    return header_block([_CONTENT, _ACCEPTED, *status, *more], 200)


def percent_encoded(text: str) -> str:
    """Returns text as grpc-message carries it: printable ASCII but "%" stays.

    >>> percent_encoded("50% of Zoë\\n")
    '50%25 of Zo%C3%AB%0A'
    """
    data = text.encode("utf-8", "replace")
    return "".join(chr(byte) if 0x20 <= byte <= 0x7E and byte != 0x25 else f"%{byte:02X}" for byte in data)
