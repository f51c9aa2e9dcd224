"""Writes service/artifact/open_inference.pb from open_inference.proto beside it; `--check` only compares the file.

Needs the dev requirements (grpcio-tools has the compiler).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "service" / "artifact" / "open_inference.proto"
TARGET = SOURCE.with_suffix(".pb")


def descriptor_set() -> bytes:
    """Returns the .proto file SOURCE as a serialized FileDescriptorSet, without comments."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / TARGET.name
        # The compiler runs in a process of its own, because it crashes if TensorFlow's copy of protobuf is already
        # loaded.
        command = [sys.executable, "-m", "grpc_tools.protoc", f"--proto_path={SOURCE.parent}"]
        subprocess.run([*command, f"--descriptor_set_out={out}", SOURCE.name], check=True)
        return out.read_bytes()


def main() -> int:
    """Writes or compares the file; returns the exit status: 1 if --check finds a difference."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, fail where the file differs")
    is_check = parser.parse_args().check
    data = descriptor_set()
    if is_check:
        is_same = TARGET.exists() and TARGET.read_bytes() == data
        state = "up to date" if is_same else "differs, run python .ci/make_inference_protos.py"
        sys.stdout.write(f"{TARGET.name}: {state}\n")
        return 0 if is_same else 1
    TARGET.write_bytes(data)
    sys.stdout.write(f"{TARGET.name}: {len(data)} bytes\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
