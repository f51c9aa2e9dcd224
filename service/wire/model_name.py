"""Finds the model of a gRPC request in its first bytes, because requests wait for a thread by model."""

from __future__ import annotations

from collections.abc import Callable

from service.artifact.protobuf_wire import length_prefix

# The protobuf tag of a length-delimited field 1.
_FIRST = 0x0A
# The depth of the name in a MultiInferenceRequest: first task, model spec, name.
_DEPTH = 3
_MAX_NAME_BYTES = 512


def first_model(message: bytes, is_model: Callable[[str], bool]) -> str:
    r"""Returns the model named by a request's first field, or by the first field nested in it, up to _DEPTH levels.

    All known writers put fields in order. Returns "" if a request's fields are not in order, or no model has the name.

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
