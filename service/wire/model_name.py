"""Finds the model's name in a gRPC request's first bytes, as bytes in flight are counted by model before parsing."""

from __future__ import annotations

from collections.abc import Callable

from service.artifact.protos import length_prefix

# The byte that is protobuf's tag of field 1 with a length-delimited value.
_FIRST = 0x0A
# Largest number of first fields to open until the model's name is found: the model spec, and the name in it.
_DEPTH = 2
_MAX_NAME_BYTES = 512


def first_model(message: bytes, is_model: Callable[[str], bool]) -> str:
    r"""Returns the model's name, if it is the first field of a request, or the first field of messages nested in that.

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
