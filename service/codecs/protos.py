"""TensorFlow Serving's messages without TensorFlow, and the Open Inference Protocol's.

`serving_protos.pb` is the serialized FileDescriptorSet of tensorflow-serving-api 2.21.0 and of saved_model.proto, which
`.ci/make_serving_protos.py` writes; `open_inference.pb` is that of open_inference.proto, from
`.ci/make_inference_protos.py`. They go into a pool of their own: TensorFlow registers the same file names in protobuf's
default pool, before or after us, and neither may notice the other. Messages of the two pools differ in type; pass bytes
between them.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_DESCRIPTORS = tuple(Path(__file__).with_name(name) for name in ("serving_protos.pb", "open_inference.pb"))

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
    for descriptors in _DESCRIPTORS:
        for file in descriptor_pb2.FileDescriptorSet.FromString(descriptors.read_bytes()).file:
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
