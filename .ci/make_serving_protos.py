"""Writes service/artifact/serving_protos.pb from the package tensorflow-serving-api; `--check` only compares the file.

The server ships descriptors instead of importing the package, because that import loads all of TensorFlow. Needs the
dev requirements.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from google.protobuf import descriptor_pb2
from google.protobuf.descriptor import FileDescriptor
from tensorflow.core.protobuf import saved_model_pb2, tensor_bundle_pb2  # type: ignore[import-untyped]
from tensorflow_serving.apis import (  # type: ignore[import-untyped]
    model_service_pb2,
    prediction_log_pb2,
    prediction_service_pb2,
)

TARGET = Path(__file__).parents[1] / "service" / "artifact" / "serving_protos.pb"
ROOTS = (prediction_service_pb2, model_service_pb2, prediction_log_pb2, saved_model_pb2, tensor_bundle_pb2)


def descriptor_set() -> bytes:
    """Returns the descriptors of ROOTS and of their imports, each after its imports; the bytes are always the same."""
    files: dict[str, FileDescriptor] = {}

    def add(file: FileDescriptor) -> None:
        for dependency in sorted(file.dependencies, key=lambda d: d.name):
            add(dependency)
        files.setdefault(file.name, file)

    for root in ROOTS:
        add(root.DESCRIPTOR)
    result = descriptor_pb2.FileDescriptorSet()
    for file in files.values():
        result.file.add().MergeFromString(file.serialized_pb)
    return result.SerializeToString(deterministic=True)


def main() -> int:
    """Writes or compares the file; returns the script's exit status: 1 if --check finds a difference."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, fail where the file differs")
    is_check = parser.parse_args().check
    data = descriptor_set()
    if is_check:
        is_same = TARGET.exists() and TARGET.read_bytes() == data
        sys.stdout.write(
            f"{TARGET.name}: {'up to date' if is_same else 'differs, run python .ci/make_serving_protos.py'}\n"
        )
        return 0 if is_same else 1
    TARGET.write_bytes(data)
    sys.stdout.write(f"{TARGET.name}: {len(data)} bytes\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
