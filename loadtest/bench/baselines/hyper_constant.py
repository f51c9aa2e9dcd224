"""Serves constant answers from Rust: compiles `native/examples/constant.rs` if necessary, and runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

_NATIVE = Path(__file__).parents[3] / "native"


def main() -> None:
    """Builds the Rust program and replaces this process by it; the command line gives FOLDER and KIND."""
    build = ["cargo", "build", "--quiet", "--release", "--locked", "--example", "constant"]
    subprocess.run(build, cwd=_NATIVE, check=True, stdout=sys.stderr)
    target = Path(os.environ.get("CARGO_TARGET_DIR", _NATIVE / "target"))
    program = target / "release" / "examples" / "constant"
    os.execv(program, [str(program), *sys.argv[1:]])


if __name__ == "__main__":
    main()
