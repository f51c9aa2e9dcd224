"""Refuses protobuf files whose parsed messages would take far more memory than the files."""

from __future__ import annotations

from functools import cache
from typing import Any

from service.artifact.protos import message_class
from service.errors import ArtifactError

# Most fields, those of nested messages included, that a protobuf file of a version may have. Parsed, an empty message
# takes 88 bytes and its field in the file two, so 120 MB of empty MetaGraphs took 5.3 GB. A graph has some 25 fields
# for each of its nodes.
MAX_FIELDS = 4_000_000
# Fewest bytes of a field: its tag, and the shortest value or the length.
_LEAST_BYTES = 2
_VARINT, _FIXED64, _DELIMITED, _FIXED32 = 0, 1, 2, 5
_MORE = 128


def check_num_fields(what: object, data: bytes, full_name: str) -> None:
    """Raises ArtifactError if a serialized message has more than MAX_FIELDS fields; takes no time for short messages.

    The function does not say whether the bytes are a message.

    Args:
      what: names the file, for the error.
      full_name: name of the message's type.
    """
    if len(data) <= _LEAST_BYTES * MAX_FIELDS:
        return
    if num_fields(data, full_name, MAX_FIELDS) > MAX_FIELDS:
        raise ArtifactError(
            f"{what} has {len(data)} bytes with more than {MAX_FIELDS} protobuf fields, the most that are parsed: "
            "their messages would take many times as much memory. Export the model with a smaller graph"
        )


def num_fields(data: bytes, full_name: str, most: int) -> int:
    """Counts the fields of a serialized message and of all messages in it, up to one more than `most`.

    >>> num_fields(bytes.fromhex("0801 12021200 1200"), "tensorflow.SavedModel", 100)
    4
    """
    count = position = 0
    end, messages = len(data), _messages(message_class(full_name).DESCRIPTOR)
    outer: list[tuple[int, Any]] = []
    while count <= most:
        if position >= end:
            if not outer:
                break
            end, messages = outer.pop()
            continue
        count += 1
        key = data[position]
        position += 1
        if key >= _MORE:
            key, position = _varint(data, position - 1)
        wire_type = key & 7
        if wire_type == _DELIMITED:
            length, position = _varint(data, position)
            nested = messages.get(key >> 3)
            if nested is None:
                position += length
            else:
                outer.append((end, messages))
                end, messages = min(position + length, end), _messages(nested)
        elif wire_type == _VARINT:
            position = _varint(data, position)[1]
        elif wire_type in (_FIXED32, _FIXED64):
            position += 4 if wire_type == _FIXED32 else 8
    return count


@cache
def _messages(descriptor: Any) -> dict[int, Any]:
    """Returns field number -> descriptor of the messages in it, for the fields that hold messages."""
    return {field.number: field.message_type for field in descriptor.fields if field.message_type is not None}


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """Reads a varint; returns its value and the next position, which lies behind the data if they end within it."""
    value = shift = 0
    for place in range(position, min(position + 10, len(data))):
        byte = data[place]
        value |= (byte & 127) << shift
        if byte < _MORE:
            return value, place + 1
        shift += 7
    return 0, len(data) if position + 10 >= len(data) else position + 10
