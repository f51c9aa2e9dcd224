"""TensorFlow Serving's messages without TensorFlow.

`serving_protos.pb` is the serialized FileDescriptorSet of tensorflow-serving-api 2.21.0 and of saved_model.proto, which
`.ci/make_serving_protos.py` writes. It goes into a pool of its own: TensorFlow registers the same file names in
protobuf's default pool, before or after us, and neither may notice the other. Messages of the two pools differ in type;
pass bytes between them.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_DESCRIPTORS = Path(__file__).with_name("serving_protos.pb")

# Without it two threads that come first at once would get two pools, and their messages would not mix.
_building = threading.Lock()

# Generated classes have no static type here: every message comes from the pool at run time.
MessageClass = Any


def new_pool(extra_files: Iterable[bytes] = ()) -> descriptor_pool.DescriptorPool:
    """Builds a pool of the shipped descriptors (about 1 ms).

    Args:
      extra_files: serialized FileDescriptorProtos to add, such as a health service's; imports go first.
    """
    pool = descriptor_pool.DescriptorPool()
    files = descriptor_pb2.FileDescriptorSet.FromString(_DESCRIPTORS.read_bytes())
    for file in files.file:
        pool.AddSerializedFile(file.SerializeToString())
    for extra in extra_files:
        pool.AddSerializedFile(extra)
    return pool


@cache
def message_class(full_name: str) -> MessageClass:
    """Returns a message class by its proto name, such as "tensorflow.TensorProto".

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
