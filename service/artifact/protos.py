"""Makes the protobuf message classes of TensorFlow Serving and of the Open Inference Protocol, without TensorFlow.

`serving_protos.pb` is the serialized FileDescriptorSet of tensorflow-serving-api 2.21.0 and of saved_model.proto, which
`.ci/make_serving_protos.py` writes; `open_inference.pb` is that of open_inference.proto, from
`.ci/make_inference_protos.py`. They are in a descriptor pool of their own, because TensorFlow registers the same file
names in protobuf's default pool. Messages of the two pools differ in type; pass bytes between them.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pool, message_factory

from service.artifact.protobuf_wire import length_prefix

_DESCRIPTORS = tuple(Path(__file__).with_name(name) for name in ("serving_protos.pb", "open_inference.pb"))

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
