"""Writes generated files, or compares them with the present ones, for the scripts .ci/make_*.py."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"


def run(files: Mapping[str, str | bytes], folder: Path = DOCS) -> int:
    """Writes files of a folder, given by name; with the flag `--check` only compares them. Returns the exit status."""
    parser = argparse.ArgumentParser(description=f"Writes {', '.join(f'{folder.name}/{name}' for name in files)}.")
    parser.add_argument("--check", action="store_true", help="write nothing, fail where a file differs")
    is_check = parser.parse_args().check
    status = 0
    for name, content in files.items():
        path, data = folder / name, content.encode() if isinstance(content, str) else content
        if not is_check:
            path.write_bytes(data)
            sys.stdout.write(f"{name}: {len(data)} bytes\n")
        elif path.exists() and path.read_bytes() == data:
            sys.stdout.write(f"{name}: up to date\n")
        else:
            sys.stdout.write(f"{name}: differs, run make generated\n")
            status = 1
    return status


def row(*cells: str) -> str:
    """Returns one row of a Markdown table with these cells."""
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"
