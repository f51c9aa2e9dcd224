"""Makes, parses and prints protobuf messages of TensorFlow Serving and the Open Inference Protocol, without TensorFlow.

`.ci/make_protos.py` writes `serving_protos.pb`, the serialized FileDescriptorSet of tensorflow-serving-api 2.21.0,
saved_model.proto and tensor_bundle.proto, and those of the .proto files here. They are in a descriptor pool of their
own, because TensorFlow registers the same file names in protobuf's default pool. Messages of the two pools differ in
type; pass bytes between them. Messages that are written without the library are made of varints, tags and lengths.

Source: protobuf's encoding guide, "Base 128 Varints" and "Length-Delimited Records".
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pool, message_factory, text_format

from service.errors import ArtifactError

_SMALL = 128


def varint(value: int) -> bytes:
    """Encodes an integer, 0 <= value < 2**64, as a protobuf varint.

    >>> varint(1), varint(300)
    (b'\\x01', b'\\xac\\x02')
    """
    if value < _SMALL:
        return bytes((value,))
    out = bytearray()
    while value >= _SMALL:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


@cache
def tag(field: int, wire_type: int) -> bytes:
    """Encodes the tag of a protobuf field; wire_type 0 is a varint, 2 a length-delimited value."""
    return varint(field << 3 | wire_type)


def length_prefix(data: bytes, position: int) -> tuple[int | None, int]:
    """Reads a varint of up to ten bytes.

    Returns its value and the next position; the value is None if the data end within the varint, or it is longer.
    """
    value = 0
    for shift in range(0, 70, 7):
        if position >= len(data):
            return None, position
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < _SMALL:
            return value, position
    return None, position


_NAMES = ("serving_protos.pb", "open_inference.pb", "server_config.pb")
_DESCRIPTORS = tuple(Path(__file__).with_name(name) for name in _NAMES)

# Lock that lets only one thread build the descriptor pool: messages of two pools can not be used together.
_building = threading.Lock()

# Type of a protobuf message class. It is Any, because the classes are made at run time from a descriptor pool.
MessageClass = Any


def new_pool(extra_files: Iterable[bytes] = ()) -> descriptor_pool.DescriptorPool:
    """Builds a protobuf descriptor pool of all messages whose definitions ship with the server (takes about 1 ms).

    Args:
      extra_files: serialized FileDescriptorProtos to add, such as a health service's; a file comes after the files that
        it imports.
    """
    pool = descriptor_pool.DescriptorPool()
    for descriptors in _DESCRIPTORS:
        for file in _files_of(descriptors.read_bytes()):
            pool.AddSerializedFile(file)
    for extra in extra_files:
        pool.AddSerializedFile(extra)
    return pool


def _files_of(descriptor_set: bytes) -> Iterator[bytes]:
    """Yields the files of a serialized FileDescriptorSet, whose one field is `repeated FileDescriptorProto file = 1`.

    The set is parsed by hand, because importing descriptor_pb2 would add 7 ms to the server's start.
    """
    position = 0
    while position < len(descriptor_set):
        # Before each file of the descriptor set is the tag of field 1, which is one byte: position + 1 skips it.
        size, start = length_prefix(descriptor_set, position + 1)
        assert size is not None  # not None: the descriptor set ships with the server, and is complete
        position = start + size
        yield descriptor_set[start:position]


@cache
def message_class(full_name: str) -> MessageClass:
    """Returns the protobuf message class of the given name, such as "tensorflow.TensorProto".

    All classes come from one pool, built on first use.

    Concurrency: any thread.

    Raises:
      KeyError: the shipped descriptors have no such message.
    """
    with _building:
        return message_factory.GetMessageClass(_shared_pool().FindMessageTypeByName(full_name))


@cache
def _shared_pool() -> descriptor_pool.DescriptorPool:
    return new_pool()


# Most fields, those of nested messages included, that a protobuf file of a version may have. Parsed, an empty message
# takes 88 bytes and its field in the file two, so 120 MB of empty MetaGraphs took 5.3 GB. A graph has some 25 fields
# for each of its nodes.
MAX_FIELDS = 4_000_000
# Digests of the last messages that were not too large: a load reads its graph several times.
_COUNTED: deque[int] = deque(maxlen=16)
# Fewest bytes of a field: its tag, and the shortest value or the length.
_LEAST_BYTES = 2
_VARINT, _FIXED64, _DELIMITED, _FIXED32 = 0, 1, 2, 5


def check_num_fields(what: object, data: bytes, full_name: str) -> None:
    """Raises ArtifactError if a serialized message has more than MAX_FIELDS fields; takes no time for short messages.

    The function does not say whether the bytes are a message.
    """
    if len(data) <= _LEAST_BYTES * MAX_FIELDS or (digest := hash((data, full_name))) in _COUNTED:
        return
    if num_fields(data, full_name, MAX_FIELDS) > MAX_FIELDS:
        raise ArtifactError(
            f"{what} has {len(data)} bytes with more than {MAX_FIELDS} protobuf fields, the most that are parsed: "
            "their messages would take many times as much memory. Export the model with a smaller graph"
        )
    _COUNTED.append(digest)


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
        if key >= _SMALL:
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
    return {field.number: field.message_type for field in descriptor.fields if field.message_type is not None}


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value, behind = length_prefix(data, position)
    return value or 0, behind


class TextFormError(Exception):
    """The error that a text is no valid text form of a protobuf message; the error's message may quote the text.

    line: the number of the line at fault, if it is known.
    """

    def __init__(self, text: str, line: int | None) -> None:
        super().__init__(text)
        self.line = line


def fill_from_text(message: Any, text: str) -> None:
    try:
        text_format.Parse(text, message)
    except text_format.ParseError as error:
        raise TextFormError(str(error), error.GetLine()) from error


def text_of(full_name: str, data: bytes) -> str:
    return text_format.MessageToString(message_class(full_name).FromString(data))
