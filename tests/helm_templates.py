"""Renders a Helm chart without Helm. Knows the part of the template language that the chart in examples uses.

Any other construct raises TemplateError. So does a name without a value, for which Helm would render nothing. Where
Helm is
installed, a test compares both renderings.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

# Matches an action of a template, with the white space that a hyphen after the opening braces removes.
PIECE = re.compile(r"\s*\{\{-(?P<left>.*?)(?P<cut>-?\}\})|\{\{(?P<plain>.*?)(?P<end>-?\}\})", re.DOTALL)
WORD = re.compile(r'\s*("(?:[^"\\]|\\.)*"|[()|]|:=|,|\$?[\w.]+|\$)')

# PyYAML's loader in C, if PyYAML was built with it; it is faster.
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class TemplateError(Exception):
    """Error in a template that Helm would refuse, or that uses a construct unknown to this renderer."""


@dataclass
class Block:
    """A part of a template: text, an action with a value, or a condition or loop with its parts."""

    kind: str
    words: list[str] = field(default_factory=list)
    text: str = ""
    body: list[Block] = field(default_factory=list)
    otherwise: list[Block] = field(default_factory=list)


@dataclass
class Scope:
    """The dot and the variables of a part of a template, and the definitions that all parts share."""

    dot: Any
    variables: dict[str, Any]
    definitions: dict[str, list[Block]]


class Chart:
    """A Helm chart with its parsed templates."""

    def __init__(self, folder: Path) -> None:
        about = yaml.safe_load((folder / "Chart.yaml").read_text())
        self._about = {name[0].upper() + name[1:]: value for name, value in about.items()}
        self._values = yaml.safe_load((folder / "values.yaml").read_text())
        self.texts = {file.name: file.read_text() for file in sorted((folder / "templates").iterdir())}
        self._defined: dict[str, dict[str, list[Block]]] = {name: {} for name in self.texts}
        self._parsed = {name: parse(text, self._defined[name]) for name, text in self.texts.items()}

    def render(self, release: str, values: Mapping[str, Any]) -> list[Any]:
        """Renders all templates of the chart; returns the Kubernetes objects that they make."""
        definitions = self._definitions()
        return [
            document
            for blocks in self._parsed.values()
            for document in self._objects(blocks, definitions, release, values)
        ]

    def render_text(self, text: str, release: str, values: Mapping[str, Any], *, replaced: str) -> list[Any]:
        """Renders `text` in place of the template named `replaced`; returns the Kubernetes objects that it makes."""
        definitions = self._definitions(replaced)
        return self._objects(parse(text, definitions), definitions, release, values)

    def _definitions(self, replaced: str = "") -> dict[str, list[Block]]:
        return {
            name: blocks
            for template, defined in self._defined.items()
            if template != replaced
            for name, blocks in defined.items()
        }

    def _objects(
        self, blocks: list[Block], definitions: dict[str, list[Block]], release: str, values: Mapping[str, Any]
    ) -> list[Any]:
        root = {
            "Chart": self._about,
            "Release": {"Name": release, "Service": "Helm"},
            "Values": merged(self._values, values),
        }
        text = "".join(_render(blocks, Scope(root, {"$": root}, definitions)))
        return [document for document in yaml.load_all(text, LOADER) if document is not None]


def merged(defaults: Any, values: Any) -> Any:
    """Returns the values, and the defaults where they say nothing, as Helm merges a user's values over the chart's."""
    if not isinstance(defaults, dict) or not isinstance(values, Mapping):
        return values
    return defaults | {name: merged(defaults.get(name), value) for name, value in values.items()}


def parse(text: str, definitions: dict[str, list[Block]]) -> list[Block]:
    """Returns the blocks of a template, and adds what the template defines to definitions."""
    top = Block("define")
    # The stack of open blocks, each with the list that gets its next part.
    open_blocks = [(top, top.body)]
    place = 0
    for found in PIECE.finditer(text):
        if found.start() < place:
            continue
        _add_text(open_blocks[-1][1], text[place : found.start()])
        action = found["left"] if found["left"] is not None else found["plain"]
        place = found.end()
        if (found["cut"] or found["end"]).startswith("-"):
            place += len(text[place:]) - len(text[place:].lstrip())
        words = _words(action)
        if not words:
            continue
        if words[0] in ("if", "with", "range", "define"):
            block = Block(words[0], words[1:])
            if words[0] != "define":
                open_blocks[-1][1].append(block)
            open_blocks.append((block, block.body))
        elif words == ["else"] and open_blocks[-1][0].kind in ("if", "else if"):
            open_blocks[-1] = (open_blocks[-1][0], open_blocks[-1][0].otherwise)
        elif words[:2] == ["else", "if"] and open_blocks[-1][0].kind in ("if", "else if"):
            # The block ends with the block that it continues.
            block = Block("else if", words[2:])
            open_blocks[-1][0].otherwise.append(block)
            open_blocks[-1] = (open_blocks[-1][0], open_blocks[-1][0].otherwise)
            open_blocks.append((block, block.body))
        elif words == ["end"] and len(open_blocks) > 1:
            ended, _ = open_blocks.pop()
            while ended.kind == "else if":
                ended, _ = open_blocks.pop()
            if ended.kind == "define":
                definitions[json.loads(ended.words[0])] = ended.body
        else:
            open_blocks[-1][1].append(Block("value", words))
    _add_text(open_blocks[-1][1], text[place:])
    if len(open_blocks) > 1:
        raise TemplateError(f"{open_blocks[-1][0].kind} has no end")
    return top.body


def _add_text(blocks: list[Block], text: str) -> None:
    if "{{" in text:
        raise TemplateError(f"an action that does not end: {text!r}")
    blocks.append(Block("text", text=text))


def _words(action: str) -> list[str]:
    if action.strip().startswith("/*"):
        return []
    found, place = [], 0
    while action[place:].strip():
        word = WORD.match(action, place)
        if word is None:
            raise TemplateError(f"unknown words: {action!r}")
        found.append(word[1])
        place = word.end()
    return found


def _render(blocks: list[Block], scope: Scope) -> Iterator[str]:
    for block in blocks:
        if block.kind == "text":
            yield block.text
        elif block.kind == "value":
            yield _as_text(_value(block.words, scope))
        elif block.kind == "range":
            yield from _render_range(block, scope)
        elif value := _value(block.words, scope):
            dot = value if block.kind == "with" else scope.dot
            yield from _render(block.body, Scope(dot, scope.variables, scope.definitions))
        else:
            yield from _render(block.otherwise, scope)


def _render_range(block: Block, scope: Scope) -> Iterator[str]:
    match block.words:
        case [key, ",", value, ":=", *rest]:
            for name, item in sorted(_value(rest, scope).items()):
                variables = scope.variables | {key: name, value: item}
                yield from _render(block.body, Scope(item, variables, scope.definitions))
        case _:
            raise TemplateError(f"range {block.words}")


def _as_text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str | int):
        raise TemplateError(f"not text: {value!r}")
    return str(value)


def _value(words: list[str], scope: Scope) -> Any:
    """Computes a pipeline: each command gets the value of the one before as its last argument."""
    commands: list[list[str]] = [[]]
    depth = 0
    for word in words:
        depth += {"(": 1, ")": -1}.get(word, 0)
        if word == "|" and not depth:
            commands.append([])
        else:
            commands[-1].append(word)
    given: list[Any] = []
    for command in commands:
        given = [_command(_arguments(command, scope), given, scope)]
    return given[0]


def _arguments(words: list[str], scope: Scope) -> list[Any]:
    """Returns the values of a command's words; a function's name remains a Name."""
    found: list[Any] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word == "(":
            depth, inner = 1, []
            while depth:
                if not rest:
                    raise TemplateError(f"a parenthesis has no end: {words}")
                inner.append(rest.pop(0))
                depth += {"(": 1, ")": -1}.get(inner[-1], 0)
            found.append(_value(inner[:-1], scope))
        elif word.startswith('"'):
            found.append(json.loads(word))
        elif word.isdecimal():
            found.append(int(word))
        elif word.startswith((".", "$")):
            found.append(_field(word, scope))
        else:
            found.append(Name(word))
    return found


def _field(word: str, scope: Scope) -> Any:
    start, *names = word.split(".")
    if start not in ("", *scope.variables):
        raise TemplateError(f"unknown variable: {word}")
    value = scope.variables[start] if start else scope.dot
    for name in filter(None, names):
        if not isinstance(value, Mapping) or name not in value:
            raise TemplateError(f"{word} has no value")
        value = value[name]
    return value


class Name(str):
    """A template's argument that is the name of a function."""

    __slots__ = ()


def _command(arguments: list[Any], given: list[Any], scope: Scope) -> Any:
    if not arguments:
        raise TemplateError("an empty command")
    first, *rest = arguments
    if not isinstance(first, Name):
        if rest or given:
            raise TemplateError(f"{first!r} is no function")
        return first
    if first == "include":
        name, dot = rest
        if name not in scope.definitions:
            raise TemplateError(f"no template {name!r} is defined")
        variables = {"$": dot}
        return "".join(_render(scope.definitions[name], Scope(dot, variables, scope.definitions)))
    if first not in FUNCTIONS:
        raise TemplateError(f"unknown function: {first}")
    return FUNCTIONS[first](*rest, *given)


def _first_false(*values: Any) -> Any:
    return next((value for value in values if not value), values[-1])


def _quote(value: Any) -> str:
    return json.dumps(_as_text(value))


def _indented(columns: int, text: str) -> str:
    return "\n" + "\n".join(" " * columns + line for line in text.split("\n"))


def _to_yaml(value: Any) -> str:
    text: str = yaml.safe_dump(value, sort_keys=True)
    return text.removesuffix("\n")


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": lambda *numbers: sum(numbers),
    "and": _first_false,
    "default": lambda instead, value: value or instead,
    "eq": lambda first, second: first == second,
    "mul": lambda first, second: first * second,
    "nindent": _indented,
    "not": lambda value: not value,
    "printf": lambda form, *values: form % values,
    "quote": _quote,
    "sub": lambda first, second: first - second,
    "toYaml": _to_yaml,
}
