"""Reads which file of the Rust core uses which, from the paths that its files name, for tests/test_house_rules.py."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

# What may hold any words: comments, strings and characters. Of a lifetime's apostrophe, no part matches.
_TEXT = re.compile(r"""//[^\n]*|/\*.*?\*/|b?r(#*)".*?"\1|b?"(?:\\.|[^"\\])*"|b?'(?:\\[^\n]+?|[^'\\\n])'""", re.DOTALL)
_USE = re.compile(r"(pub(?:\([a-z ]+\))?\s+)?\buse\s+([^;]+);")
_PATH = re.compile(r"(?<![:\w$])[A-Za-z_]\w*(?:::[A-Za-z_]\w*)+")
_MODULE = re.compile(r"\bmod\s+(\w+)\s*\{")
_TEST_MODULE = re.compile(r"#\[cfg\((?:all\()?test\b[^\]]*\]\s*(?:pub(?:\([a-z ]+\))?\s+)?mod\s+(\w+)\s*;")

# The name of a module, in parts, from the crate's root: ("plan", "routes").
Module = tuple[str, ...]


class RustFile(NamedTuple):
    """The names of one file.

    paths: all that it uses. exports: what it passes on, by name. tests: its modules for tests.
    """

    paths: list[Module]
    exports: dict[str, Module]
    tests: list[Module]


def module_of(file: Path) -> Module:
    """Returns the module of a file, given by its path below src."""
    parts = file.with_suffix("").parts
    return parts[:-1] if parts[-1] in ("mod", "lib") else parts


def uses(sources: dict[Path, str]) -> dict[Path, set[Path]]:
    """Returns the files that each file uses, by their paths below src.

    A name that a module of a folder passes on (`pub use`) counts as the file's that defines it.
    """
    by_module = {module_of(file): file for file in sources}
    files = _files(sources)
    return {
        file: {by_module[found] for path in files[module].paths for found in _defining(path, files)} - {file}
        for module, file in by_module.items()
    }


def test_files(sources: dict[Path, str]) -> set[Path]:
    """Returns the files that are compiled for tests only."""
    tests = {module for read in _files(sources).values() for module in read.tests}
    return {file for file in sources if any(module_of(file)[: len(test)] == test for test in tests)}


def circles(graph: dict[Path, set[Path]]) -> list[list[Path]]:
    """Returns the sets of files that use each other in a circle."""
    reached = {file: _reachable(graph, file) for file in graph}
    found = {frozenset(other for other in reached[file] if file in reached[other]) for file in graph}
    return sorted(sorted(circle) for circle in found if circle)


def _reachable(graph: dict[Path, set[Path]], start: Path) -> set[Path]:
    reached: set[Path] = set()
    waiting = [start]
    while waiting:
        new = graph.get(waiting.pop(), set()) - reached
        reached |= new
        waiting.extend(new)
    return reached


def _files(sources: dict[Path, str]) -> dict[Module, RustFile]:
    modules = frozenset(map(module_of, sources))
    return {module_of(file): _read(source, module_of(file), modules) for file, source in sources.items()}


# Of the files that a test gets, at most one differs from those of the test before.
@cache
def _read(source: str, module: Module, modules: frozenset[Module]) -> RustFile:
    text = _TEXT.sub(lambda match: " " * len(match[0]), source)
    inner = list(_inline_modules(text))
    read = RustFile([], {}, [(*module, name) for name in _TEST_MODULE.findall(text)])
    names: dict[str, Module] = {}

    def absolute(path: Module, at: int) -> Module:
        here = module + tuple(name for name, start, end in inner if start <= at < end)
        if path[0] in ("crate", "self", "super"):
            here, path = ((), path[1:]) if path[0] == "crate" else (here, path)
            while path and path[0] in ("self", "super"):
                here, path = here if path[0] == "self" else here[:-1], path[1:]
            return here + path
        if path[0] in names:
            return names[path[0]] + path[1:]
        # A module of the file is named without any prefix, in an inline module too if that has `use super::*`.
        return module + path if (*module, path[0]) in modules else here + path

    for match in _USE.finditer(text):
        for path, name in _leaves(match[2]):
            found = absolute(path, match.start())
            if match[1]:
                read.exports[name] = found
            elif name != "*":
                names[name] = found
            # A module that passes on the names of its own modules does not use them.
            if not match[1] or found[: len(module)] != module:
                read.paths.append(found)
    names.update(read.exports)
    rest = _USE.sub(lambda match: " " * len(match[0]), text)
    read.paths.extend(absolute(tuple(match[0].split("::")), match.start()) for match in _PATH.finditer(rest))
    return read


def _inline_modules(text: str) -> Iterator[tuple[str, int, int]]:
    for match in _MODULE.finditer(text):
        depth, at = 1, match.end()
        while depth and at < len(text):
            depth += {"{": 1, "}": -1}.get(text[at], 0)
            at += 1
        yield match[1], match.end(), at


def _leaves(tree: str) -> Iterator[tuple[Module, str]]:
    """Yields each path of a `use` with the name that it gives; `a::{self}` gives a."""
    tree = " ".join(tree.split())
    before, brace, inner = tree.partition("{")
    if not brace:
        path, _, name = tree.partition(" as ")
        parts = tuple(path.strip().split("::"))
        yield parts, name or parts[-1]
        return
    prefix = tuple(part for part in before.strip().split("::") if part)
    for branch in _branches(inner[: inner.rindex("}")]):
        for path, name in _leaves(branch):
            is_self = path == ("self",)
            yield prefix if is_self else prefix + path, prefix[-1] if name == "self" else name


def _branches(text: str) -> Iterator[str]:
    depth = start = 0
    for at, character in enumerate(text):
        depth += {"{": 1, "}": -1}.get(character, 0)
        if character == "," and depth == 0:
            yield text[start:at].strip()
            start = at + 1
    if text[start:].strip():
        yield text[start:].strip()


def _defining(path: Module, files: dict[Module, RustFile]) -> Iterator[Module]:
    """Yields the module that defines what a path names, and each of another folder that passes it on.

    Yields nothing for a path that leads out of the crate.
    """
    length = next(size for size in range(len(path), -1, -1) if path[:size] in files)
    module, rest = path[:length], path[length:]
    passed = files[module].exports.get(rest[0]) if rest else None
    if passed is not None and passed[: len(module) + 1] != path[: len(module) + 1]:
        if passed[:1] != module[:1]:
            yield module
        yield from _defining(passed + rest[1:], files)
    elif module:
        yield module
