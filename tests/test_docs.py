"""Checks that the documents' links lead to files, and that every argument in docs/export.md has a test."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCUMENTS = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
ARGUMENTS = (ROOT / "docs/export.md").read_text().partition("## Every argument, and the test that shows it\n")[2]
ROWS = [line for line in ARGUMENTS.splitlines() if line.startswith("| ") and not line.startswith("| argument")]


@cache
def test_names(file: Path) -> set[str]:
    """Returns the names of a file's test functions."""
    return {node.name for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.FunctionDef)}


test_names.__test__ = False  # type: ignore[attr-defined]


def test_there_are_arguments() -> None:
    assert len(ROWS) > 80


def faultless(faults: Iterable[str]) -> None:
    """Fails with all faults, one a line."""
    if found := list(faults):
        pytest.fail("\n".join(found), pytrace=False)


def test_an_argument_has_its_test() -> None:
    faultless(fault for row in ROWS for fault in _untested(row))


def _untested(row: str) -> Iterator[str]:
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", row.split("|")[-2])
    if not named:
        yield f"no test: {row}"
    for path, name in named:
        file = ROOT / path if path.startswith("tests/") else ROOT / "tests/unit/model_export" / path
        if not file.exists():
            yield f"{path} is not there"
        elif name not in test_names(file):
            yield f"{path} has no {name}"


def test_links_lead_somewhere() -> None:
    faultless(fault for document in DOCUMENTS for fault in _dead_links(document))


def _dead_links(document: Path) -> Iterator[str]:
    where = document.relative_to(ROOT)
    for target in re.findall(r"\]\(([^)\s]+)\)", document.read_text()):
        path, _, anchor = target.partition("#")
        if "://" in target:
            continue
        file = (document.parent / path).resolve() if path else document
        if not file.exists():
            yield f"{where}: {target} is not there"
        elif anchor and file.suffix == ".md":
            headings = re.findall(r"^#+ (.+)$", file.read_text(), re.MULTILINE)
            if anchor not in {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}:
                yield f"{where}: {target} names no heading"
