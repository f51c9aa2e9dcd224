"""Writes docs/faults.md and docs/arguments.md from the claims and their tests in tests/fault_tests.toml and
tests/argument_tests.toml; `--check` only compares the files.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import generated_page

TESTS = Path(__file__).parents[1] / "tests"

FAULTS = """\
# Faults and attacks

What a client sees of each fault or attack. A test checks each row. No data is lost unless the row says so, apart from
the named request, call or connection. "The one before" is the newest undamaged version on disk.
[security.md](security.md#limits) has the limits; `python -m loadtest.attacks` tries the attacks on your server.

This file is generated from `tests/fault_tests.toml` (`make generated`).
"""
ARGUMENTS = """\
# Arguments of model_export

What each argument of `model_export`'s columns, estimators, layers and exports does. A test checks each row.
[export.md](export.md) and [migration.md](migration.md) show how to use them.

This file is generated from `tests/argument_tests.toml` (`make generated`).
"""


def page(head: str, source: str, columns: tuple[str, str]) -> str:
    """Returns a page: its head, and a section with a table for each table of claims in a file of tests/."""
    return head + "".join(_sections(tomllib.loads((TESTS / source).read_text()), columns))


def _sections(claims: dict[str, dict[str, dict[str, str]]], columns: tuple[str, str]) -> Iterator[str]:
    for heading, rows in claims.items():
        about = f"{rows.pop('about')}\n" if "about" in rows else ""
        yield f"\n## {heading}\n\n{about}" + generated_page.row(*columns) + "|---|---|\n"
        for claim, one in rows.items():
            # A row without `says` goes on with the argument of the row above.
            yield "| " + " | ".join((claim, one["says"]) if "says" in one else ("", claim)) + " |\n"


if __name__ == "__main__":
    faults = page(FAULTS, "fault_tests.toml", ("fault or attack", "what a client sees"))
    arguments = page(ARGUMENTS, "argument_tests.toml", ("argument", "what it does"))
    sys.exit(generated_page.run({"faults.md": faults, "arguments.md": arguments}))
