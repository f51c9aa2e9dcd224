"""Writes generated files of docs/, or compares them with the present ones, for the scripts .ci/make_*.py."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"


def run(texts: Mapping[str, str]) -> int:
    """Writes files of docs/, given by name; with the flag `--check` only compares them. Returns the exit status."""
    parser = argparse.ArgumentParser(description=f"Writes {', '.join(f'docs/{name}' for name in texts)}.")
    parser.add_argument("--check", action="store_true", help="write nothing, fail where a file differs")
    is_check = parser.parse_args().check
    return max(_compare(name, text) if is_check else _write(name, text) for name, text in texts.items())


def _compare(name: str, text: str) -> int:
    is_same = (DOCS / name).exists() and (DOCS / name).read_text() == text
    sys.stdout.write(f"{name}: {'up to date' if is_same else 'differs, run make generated'}\n")
    return 0 if is_same else 1


def _write(name: str, text: str) -> int:
    (DOCS / name).write_text(text)
    sys.stdout.write(f"{name}: {len(text.splitlines())} lines\n")
    return 0


def row(*cells: str) -> str:
    """Returns one row of a Markdown table with these cells."""
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"
