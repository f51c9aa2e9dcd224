"""Writes service/codecs/open_inference.pb from open_inference.proto beside it; `--check` only compares.

Needs the dev requirements (grpcio-tools has the compiler).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from grpc_tools import protoc  # type: ignore[import-untyped]

SOURCE = Path(__file__).parents[1] / "service" / "codecs" / "open_inference.proto"
TARGET = SOURCE.with_suffix(".pb")


def descriptor_set() -> bytes:
    """Returns SOURCE as a serialized FileDescriptorSet, without comments."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / TARGET.name
        command = ["protoc", f"--proto_path={SOURCE.parent}", f"--descriptor_set_out={out}", SOURCE.name]
        if protoc.main(command) != 0:
            raise SystemExit(f"{SOURCE} does not compile")
        return out.read_bytes()


def main() -> int:
    """Returns the exit status: 1 when --check finds a difference."""
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
