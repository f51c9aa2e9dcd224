"""Which model a gRPC request is for, told from its first bytes: what waits for a thread waits by model."""

from __future__ import annotations

from collections.abc import Callable

from service.artifact.protobuf_wire import length_prefix

# Field 1, length-delimited.
_FIRST = 0x0A
# A MultiInferenceRequest's first task's model spec's name.
_DEPTH = 3
_MAX_NAME_BYTES = 512


def first_model(message: bytes, is_model: Callable[[str], bool]) -> str:
    r"""Returns the model that the first field of a request names, or that of the first field in it, and so on.

    Every writer that is known puts fields in order; "" where one did not, or the model is none.

    >>> first_model(b"\n\x05\n\x03abc", {"abc"}.__contains__)
    'abc'
    >>> first_model(b"\x12\x00", {"abc"}.__contains__)
    ''
    """
    start, end = 0, len(message)
    for _ in range(_DEPTH):
        if start >= end or message[start] != _FIRST:
            return ""
        length, begin = length_prefix(message, start + 1)
        if length is None or begin + length > end:
            return ""
        start, end = begin, begin + length
        if length <= _MAX_NAME_BYTES:
            name = message[start:end].decode("utf-8", "replace")
            if is_model(name):
                return name
    return ""
