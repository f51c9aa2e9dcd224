"""Reads the constant answers that the baseline servers send."""

from __future__ import annotations

import sys
from pathlib import Path


def constant_answers(kind: str) -> dict[str, bytes]:
    """Reads the files `<workload>.<kind>.answer` in the folder sys.argv[1]; returns bytes by "/constant/<workload>"."""
    folder = Path(sys.argv[1])
    return {f"/constant/{file.name.split('.')[0]}": file.read_bytes() for file in folder.glob(f"*.{kind}.answer")}


def listening(port: int) -> None:
    """Prints the port on which this program listens, for the parent process."""
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()
