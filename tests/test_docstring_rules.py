"""Checks rules about docstrings and comments: each exported name has one, and its first words name a subject."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.source_files import CLIENT, ROOT, SOURCES, faultless, nodes, python_files, tracked_files, tree


def test_every_module_and_every_exported_name_has_a_docstring() -> None:
    # Elsewhere a docstring stands where it says more than the signature.
    faultless(f"{file} has no docstring" for file in SOURCES if not ast.get_docstring(tree(file)))
    names = {name for package in PACKAGES for name in exported(package)}
    found = [
        (file, node)
        for file in SOURCES
        if any(file.is_relative_to(package) for package in PACKAGES)
        for node in public_definitions(tree(file), names)
    ]
    assert {node.name for _, node in found} >= names
    faultless(f"{file}:{node.lineno} {node.name} has no docstring" for file, node in found if not documented(node))


# Packages whose names other programs import.
PACKAGES = [Path("model_export"), CLIENT / "embedding_client"]


def exported(package: Path) -> set[str]:
    """Returns the names in the __all__ of a package."""
    (names,) = [
        node.value
        for node in tree(package / "__init__.py").body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "__all__"
    ]
    return {str(name) for name in ast.literal_eval(names)}


Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def public_definitions(module: ast.Module, names: set[str]) -> Iterator[Definition]:
    """Yields a module's classes and functions with one of the names, and the public methods of the classes."""
    for node in module.body:
        if isinstance(node, Definition) and node.name in names:
            yield node
            for child in node.body if isinstance(node, ast.ClassDef) else ():
                if isinstance(child, Definition) and not child.name.startswith("_"):
                    yield child


def documented(node: Definition) -> bool:
    """Says whether a definition has a docstring or needs none, because it is a property in a protocol."""
    body = node.body[-1]
    is_declaration = isinstance(body, ast.Expr) and isinstance(body.value, ast.Constant) and body.value.value is ...
    is_property = any(isinstance(d, ast.Name) and d.id == "property" for d in getattr(node, "decorator_list", []))
    return bool(ast.get_docstring(node)) or (is_declaration and is_property)


# Files whose docstrings must keep all rules that this module tests.
PLAIN_WORDS = python_files("service", "model_export", "client", "loadtest")
# In loadtest/attacks, an attack's docstring is the label of its case in the report, so it need not open with a verb.
ATTACKS = Path("loadtest/attacks")


class Described(NamedTuple):
    """A module, class or function that has a docstring, with its place in the sources."""

    place: str
    name: str
    node: ast.Module | Definition
    text: str


def described(files: Iterable[Path]) -> Iterator[Described]:
    """Yields all modules, classes and functions of files that have a docstring, private ones included."""
    for file in files:
        yield from _described_in(file)


@cache
def _described_in(file: Path) -> list[Described]:
    return [
        Described(f"{file}:{getattr(node, 'lineno', 1)} {name}", name, node, text)
        for node in nodes(file)
        if isinstance(node, ast.Module | Definition) and (text := ast.get_docstring(node))
        for name in [file.stem if isinstance(node, ast.Module) else node.name]
    ]


def is_property(node: Definition) -> bool:
    """Says whether a function is a property, which callers read like an attribute."""
    return any("property" in ast.unparse(decorator) for decorator in node.decorator_list)


def opens_with_a_verb(text: str) -> bool:
    """Says whether a text opens with a verb in the third person, as far as the first word's letters show.

    >>> opens_with_a_verb("Returns a name."), opens_with_a_verb("The name."), opens_with_a_verb("Names of files.")
    (True, False, False)
    """
    return re.match(r"[A-Z][a-z]+s\b(?! (of|whose)\b)", text) is not None


# "What passes between the layers" names nothing: a reader who sees the sentence alone must know its subject.
OPENS_BADLY = re.compile(r"(Who|What|Whoever|Those|That|Of)\b")


def test_a_docstring_names_its_subject() -> None:
    faultless(
        f"{one.place} opens with {found[0]!r}"
        for one in described(PLAIN_WORDS + python_files("tests"))
        if (found := OPENS_BADLY.match(one.text))
    )


def rust_openings(source: str) -> Iterator[tuple[int, str]]:
    """Yields the line number and the text of each line that opens a paragraph of a Rust doc comment.

    >>> list(rust_openings("/// Of a row.\\n/// Of two.\\n///\\n/// What.\\nstruct A; // Of\\n//! That."))
    [(1, 'Of a row.'), (4, 'What.'), (6, 'That.')]
    """
    before = ""
    for number, line in enumerate(source.splitlines(), 1):
        comment = re.match(r"\s*//[/!] ?(.*)", line)
        text = comment[1].strip() if comment else ""
        if text and not before:
            yield number, text
        before = text


def test_a_rust_doc_comment_names_its_subject() -> None:
    files = sorted(file for file in tracked_files() if file.suffix == ".rs")
    assert files
    faultless(
        f"{file.relative_to(ROOT)}:{number} opens with {found[0]!r}"
        for file in files
        for number, text in rust_openings(file.read_text())
        if (found := OPENS_BADLY.match(text))
    )


def test_a_docstring_is_more_than_a_reference() -> None:
    faultless(f"{one.place} opens with 'See'" for one in described(PLAIN_WORDS) if re.match(r"See\b", one.text))


def test_a_class_says_what_it_is_before_its_docstring_has_a_section() -> None:
    section = re.compile(r"(Attributes|Args|Raises|Returns|Yields|Concurrency|Examples?|Source):")
    faultless(
        f"{one.place} opens with the section {found[0]!r}"
        for one in described(PLAIN_WORDS)
        if isinstance(one.node, ast.ClassDef) and (found := section.match(one.text))
    )


def test_a_functions_docstring_opens_with_a_verb() -> None:
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    faultless(
        f"{one.place} opens with {one.text.split()[0]!r}"
        for one in described(file for file in PLAIN_WORDS if file.parent != ATTACKS)
        if isinstance(one.node, functions) and not is_property(one.node) and not opens_with_a_verb(one.text)
    )


# Words that say nothing about a function by themselves.
EMPTY_WORDS = """a all an and are as at be been by each every for from gives given had has have in is it its makes
    object of on one or own reads returns says sets text that the these this to value values was were what where whether
    which with writes yields"""


def stems(text: str) -> set[str]:
    """Returns the words of a text without their common endings; a name such as `KeyIndex.of_rows` has three.

    >>> sorted(stems("Encodes rows, KeyIndex"))
    ['encod', 'index', 'key', 'row']
    """
    words = re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+", text)
    return {re.sub(r"(?<=..[a-z])(ings?|ied|ies|e?d|e?s|e)$", "", word.lower()) for word in words}


def says_nothing(function: ast.FunctionDef | ast.AsyncFunctionDef, context: str) -> bool:
    """Says whether each word of a function's docstring is in the function's signature or in `context`, or is empty.

    >>> def parsed(text): return ast.parse(text).body[0]
    >>> says_nothing(parsed("def encode(delta: Delta) -> bytes: 'Encodes a delta as bytes.'"), "")
    True
    >>> says_nothing(parsed("def encode(delta: Delta) -> bytes: 'Encodes a delta; raises DeltaFault.'"), "")
    False
    """
    returned = ast.unparse(function.returns) if function.returns else ""
    known = f"{function.name} {ast.unparse(function.args)} {returned} {context} {EMPTY_WORDS}"
    return stems(ast.get_docstring(function) or "") <= stems(known)


def test_a_functions_docstring_says_more_than_its_signature() -> None:
    classes = {
        method: node.name
        for file in PLAIN_WORDS
        for node in nodes(file)
        if isinstance(node, ast.ClassDef)
        for method in node.body
    }
    faultless(
        f"{one.place}: {one.text!r}"
        for file in PLAIN_WORDS
        for one in described([file])
        if isinstance(one.node, ast.FunctionDef | ast.AsyncFunctionDef)
        and says_nothing(one.node, f"{classes.get(one.node, '')} {file.parent.name} {file.stem}")
    )


def test_no_two_names_have_the_same_first_line() -> None:
    # Methods of the same name in several classes may share a first line, because they do the same.
    found: dict[str, dict[str, str]] = {}
    for one in described(PLAIN_WORDS):
        found.setdefault(one.text.splitlines()[0], {}).setdefault(one.name, one.place)
    faultless(f"{', '.join(places.values())}: {line!r}" for line, places in found.items() if len(places) > 1)


def test_every_other_file_says_what_it_is_for() -> None:
    files = python_files("tests", "loadtest", "examples", ".ci")
    faultless(f"{file} has no docstring" for file in files if not ast.get_docstring(tree(file)))
