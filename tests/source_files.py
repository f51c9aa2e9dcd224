"""Reads the project's source files (paths, syntax trees, imports), for the tests that check rules about them."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# The client is a separate distribution, so its package is two folders deeper than the other packages; the demo is an
# example.
CLIENT, EXAMPLES = Path("client/src"), Path("examples")


def python_files(*folders: str) -> list[Path]:
    """Returns the Python files below folders of the repository, as paths relative to the repository."""
    return sorted(file.relative_to(ROOT) for folder in folders for file in (ROOT / folder).rglob("*.py"))


SOURCES = python_files("service", "model_export", "examples/movielens", str(CLIENT))


def faultless(faults: Iterable[object]) -> None:
    """Fails the test if there are faults, and lists all of them, one on each line."""
    found = [str(fault) for fault in faults]
    if found:
        pytest.fail("\n".join(found), pytrace=False)


def module_name(file: Path) -> str:
    """Returns the dotted module name of a source file."""
    inner = next((file.relative_to(one) for one in (CLIENT, EXAMPLES) if file.is_relative_to(one)), file)
    return ".".join(inner.with_suffix("").parts).removesuffix(".__init__")


def module_path(name: str) -> Path:
    """Returns the path of one of the project's modules, without the file's ending."""
    folder = {"embedding_client": CLIENT, "movielens": EXAMPLES}.get(name.split(".")[0], Path())
    return ROOT / folder / name.replace(".", "/")


MODULES = {module_name(file): file for file in SOURCES}


@cache
def tree(file: Path) -> ast.Module:
    """Returns the syntax tree of a source file; parses each file once."""
    return ast.parse((ROOT / file).read_text(), str(file))


@cache
def nodes(file: Path) -> list[ast.AST]:
    """Returns all nodes of a source file's syntax tree; walks each tree once."""
    return list(ast.walk(tree(file)))


def imports(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yields every module that the nodes import; `from a import b` yields a.b if a.b is a module."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, f"line {node.lineno}: relative import"
            for alias in node.names:
                as_module = module_path(node.module) / alias.name
                # The native core is a compiled module, so only its stub (.pyi) is among the sources.
                is_module = as_module.is_dir() or any(as_module.with_suffix(end).exists() for end in (".py", ".pyi"))
                yield f"{node.module}.{alias.name}" if is_module else node.module


def run_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Yields the nodes of a syntax tree that Python runs, that is, without `if TYPE_CHECKING:` blocks."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            continue
        yield child
        yield from run_nodes(child)


def is_below(name: str, packages: Iterable[str]) -> bool:
    """Says whether a dotted name is one of the packages, or a module below one of them."""
    return any(name == package or name.startswith(package + ".") for package in packages)


def tracked_files() -> list[Path]:
    """Returns the files that git tracks or would add."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if result.returncode:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in result.stdout.split("\0") if name and (ROOT / name).is_file()]
