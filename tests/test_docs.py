"""What the documents point at is there: files behind links, and a test behind every argument of docs/export.md."""

from __future__ import annotations

import ast
import re
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


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split("|")[1].strip())
def test_an_argument_has_its_test(row: str) -> None:
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", row.split("|")[-2])
    assert named, "no row without a test"
    for path, name in named:
        file = ROOT / path if path.startswith("tests/") else ROOT / "tests/unit/model_export" / path
        assert file.exists(), path
        assert name in test_names(file), f"{path} has no {name}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", document.read_text()):
        path, _, anchor = target.partition("#")
        if "://" in target:
            continue
        file = (document.parent / path).resolve() if path else document
        assert file.exists(), target
        if anchor and file.suffix == ".md":
            headings = re.findall(r"^#+ (.+)$", file.read_text(), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}, (
                target
            )
