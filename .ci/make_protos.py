"""Writes the descriptors of the protocols into service/artifact; `--check` only compares the files.

The server ships those of TensorFlow Serving instead of importing the package tensorflow-serving-api, because this
import loads all of TensorFlow. The others are compiled from the .proto files there. Needs the dev requirements
(grpcio-tools has the compiler).
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import generated_page
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor import FileDescriptor
from tensorflow.core.protobuf import saved_model_pb2, tensor_bundle_pb2  # type: ignore[import-untyped]
from tensorflow_serving.apis import (  # type: ignore[import-untyped]
    model_service_pb2,
    prediction_log_pb2,
    prediction_service_pb2,
)

FOLDER = Path(__file__).parents[1] / "service" / "artifact"
ROOTS = (prediction_service_pb2, model_service_pb2, prediction_log_pb2, saved_model_pb2, tensor_bundle_pb2)


def serving_protos() -> bytes:
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


def compiled(*names: str) -> bytes:
    """Returns .proto files, which may import TensorFlow Serving's, as a FileDescriptorSet without comments."""
    with tempfile.TemporaryDirectory() as folder:
        serving, out = Path(folder) / "serving.pb", Path(folder) / "out.pb"
        serving.write_bytes(serving_protos())
        # The compiler runs in a process of its own, because it crashes if TensorFlow's copy of protobuf is already
        # loaded.
        command = [sys.executable, "-m", "grpc_tools.protoc", f"--proto_path={FOLDER}"]
        command += [f"--descriptor_set_in={serving}", f"--descriptor_set_out={out}"]
        subprocess.run([*command, *names], check=True)
        return out.read_bytes()


if __name__ == "__main__":
    files = {
        "serving_protos.pb": serving_protos(),
        "open_inference.pb": compiled("open_inference.proto"),
        "server_config.pb": compiled("server_config.proto", "model_config.proto"),
    }
    sys.exit(generated_page.run(files, FOLDER))
