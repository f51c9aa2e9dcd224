"""Answers of the constant servers, by path."""

from __future__ import annotations

import sys
from pathlib import Path


def constant_answers(kind: str) -> dict[str, bytes]:
    """Reads `<workload>.<kind>.answer` of the folder on the command line: "/constant/<workload>" -> bytes."""
    folder = Path(sys.argv[1])
    return {f"/constant/{file.name.split('.')[0]}": file.read_bytes() for file in folder.glob(f"*.{kind}.answer")}


def listening(port: int) -> None:
    """Tells whoever started this program where it listens."""
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()
