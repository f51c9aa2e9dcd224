"""Each row of TensorFlow Serving's contract has a case, and each case that a row names is there.

cases/contract_rows.json: the first words of a row, and the cases (by name) or tests (file::function) that hold for it.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.conftest import SHARED

FOLDER = Path(__file__).parent
ROWS: dict[str, dict[str, list[str]]] = json.loads((FOLDER / "cases" / "contract_rows.json").read_text())


def known_references() -> set[str]:
    """Returns the names of all cases and test functions of this folder."""
    names = {
        case["name"]
        for file in ("contract", "contract_rest", "tfs_contract")
        for case in json.loads((FOLDER / "cases" / f"{file}.json").read_text())
    }
    for file in FOLDER.glob("test_*.py"):
        names |= {f"{file.name}::{name}" for name in re.findall(r"^def (test_\w+)", file.read_text(), re.MULTILINE)}
    return names


def test_every_row_names_cases_that_are_there() -> None:
    known = known_references()
    for rows in ROWS.values():
        for row, references in rows.items():
            assert references, row
            assert set(references) <= known, row


def test_every_row_of_the_contract_is_named() -> None:
    contract = SHARED / "facts" / "tf-serving-contract.md"
    if not contract.is_file():
        pytest.skip("…/shared is not here")
    sections = re.split(r"^## ", contract.read_text(), flags=re.MULTILINE)
    for title, rows in ROWS.items():
        (section,) = [text for text in sections if text.startswith(title)]
        lines = [line for line in section.splitlines() if line.startswith(("- ", "| "))]
        lines = [line for line in lines if not re.match(r"\| (Case|Route) \|", line)]
        for line in lines:
            assert sum(line.startswith(row) for row in rows) == 1, line
        assert len(lines) == len(rows)
