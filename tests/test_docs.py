"""Checks that documents refer to files, headings and tests that exist."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCUMENTS = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
# Maps a page of claims to the file from which `make generated` writes it, with the tests of each row. Users do not need
# the tests' names.
TESTED = {"arguments.md": "argument_tests.toml", "faults.md": "fault_tests.toml"}


@cache
def test_names(file: Path) -> set[str]:
    """Returns the names of all functions in a file of Python or Rust, among them its tests."""
    if file.suffix == ".rs":
        return set(re.findall(r"\bfn (\w+)\(", file.read_text()))
    return {node.name for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.FunctionDef)}


test_names.__test__ = False  # type: ignore[attr-defined]


def faultless(faults: Iterable[str]) -> None:
    """Fails the test if there are faults, and lists all of them, one a line."""
    if found := list(faults):
        pytest.fail("\n".join(found), pytrace=False)


@pytest.mark.parametrize(("page", "file"), TESTED.items())
def test_a_claim_has_its_tests(page: str, file: str) -> None:
    tables = tomllib.loads((ROOT / "tests" / file).read_text()).values()
    claims = [(claim, one["tests"]) for table in tables for claim, one in table.items() if claim != "about"]
    assert len(claims) > 50
    written = (ROOT / "docs" / page).read_text()
    assert all(claim in written for claim, _ in claims)
    faultless(fault for claim, names in claims for fault in _untested(page, claim, names))


def _untested(page: str, claim: str, names: list[str]) -> Iterator[str]:
    if not names:
        yield f"{page}: no test: {claim}"
    folder = "tests/unit/model_export" if page == "arguments.md" else "tests"
    for path, _, name in (name.partition("::") for name in names):
        file = ROOT / path if path.startswith(("tests/", "native/")) else ROOT / folder / path
        if not file.exists():
            yield f"{page}: {path} is not there"
        elif name not in test_names(file):
            yield f"{page}: {path} has no {name}"


def test_pip_install_names_what_a_registry_or_the_checkout_has() -> None:
    extras = {
        "": tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"],
        "client": tomllib.loads((ROOT / "client/pyproject.toml").read_text())["project"]["optional-dependencies"],
    }
    files = [*DOCUMENTS, ROOT / "client/README.md", ROOT / "Makefile"]
    for folder in ("service", "model_export", "client/src", "examples"):
        files += (ROOT / folder).rglob("*.py")
    lines = [(file, line) for file in files for line in file.read_text().splitlines() if "pip install" in line]
    assert len(lines) > 15
    for file, line in lines:
        # Neither package is in a registry; a file's name goes on behind the package's.
        assert not re.search(r"pip install [^#]*embedding[-_](server|client)(?!-\*|[-_]native)", line), (
            f"{file}: {line}"
        )
        for folder, names in re.findall(r"'(?:\./)?(\.|client)\[([a-z,]+)\]'", line):
            assert {*names.split(",")} <= {*extras[folder.strip(".")]}, f"{file}: {line}"


def test_a_list_begins_behind_an_empty_line_and_nests_by_four() -> None:
    # Python-Markdown, which builds the site, needs a blank line before a list; a code host would show the list without
    # it too.
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


def test_the_first_page_lists_all_pages_by_their_titles() -> None:
    listed = " ".join((ROOT / "docs/README.md").read_text().split())
    pages = {page.name: page.read_text().partition("\n")[0].lstrip("# ") for page in (ROOT / "docs").glob("*.md")}
    del pages["README.md"]
    faultless(f"{page}: not listed" for page, title in pages.items() if f"[{title}]({page})" not in listed)


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
