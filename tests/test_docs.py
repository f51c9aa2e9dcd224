"""What the documents point at is there: files behind links, and a test behind every argument of docs/export.md."""

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


def test_a_list_begins_behind_an_empty_line_and_nests_by_four() -> None:
    # Else a code host shows a list, and the site (Python-Markdown) does not.
    faultless(fault for page in (ROOT / "docs").rglob("*.md") for fault in _hidden_lists(page))


def _hidden_lists(document: Path) -> Iterator[str]:
    before, is_fenced, is_list = "", False, False
    for number, line in enumerate(document.read_text().splitlines(), 1):
        is_fenced ^= line.lstrip().startswith("```")
        item = None if is_fenced else re.match(r"( *)([-*]|\d+\.) ", line)
        if item and ((before.strip() and not is_list) or len(item[1]) % 4):
            yield f"{document.relative_to(ROOT)}:{number}: {line}"
        is_list = bool(item) or (is_list and (not line.strip() or line.startswith(" ")))
        before = line


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
