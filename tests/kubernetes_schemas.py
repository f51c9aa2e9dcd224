"""Compares objects with strict schemas, from the package kubernetes-validate and from tests/data/kubernetes."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import kubernetes_validate
from jsonschema import Draft202012Validator
from referencing import Registry, Resource

NEWEST, OLDEST = "1.37", "1.31"
DATA = Path(__file__).parent / "data" / "kubernetes"
# Keys of Kubernetes objects whose values are maps with names of the user's choice, which are not checked.
FREE = {
    *("labels", "matchLabels", "annotations", "selector", "data", "requests", "limits", "pairs"),
    *("settings", "clientLabels", "serviceAccountAnnotations", "nodeSelector", "podLabels"),
}


def object_faults(document: Any, version: str = NEWEST, *, partial: bool = False) -> list[str]:
    """Returns what a version of Kubernetes, or the API of an object, would refuse in it.

    Args:
        partial: the object is a patch, so that a field that is required may be missing.
    """
    try:
        validator = _validator(str(document["apiVersion"]), str(document["kind"]), version, partial)
    except (KeyError, FileNotFoundError):
        return [f"no such object: {document.get('apiVersion')} {document.get('kind')}"]
    return [f"{'.'.join(map(str, error.path))}: {error.message}" for error in validator.iter_errors(document)]


def file_faults(schema: str, document: Any) -> list[str]:
    """Returns what a schema in tests/data/kubernetes refuses in the content of a file that is no object."""
    return [f"{'.'.join(map(str, error.path))}: {error.message}" for error in _own(schema).iter_errors(document)]


@cache
def _own(schema: str) -> Draft202012Validator:
    return Draft202012Validator(json.loads((DATA / f"{schema}.json").read_text()))


@cache
def _validator(api: str, kind: str, version: str, partial: bool) -> Draft202012Validator:
    own = DATA / f"{kind.lower()}.json"
    # The name of a schema file, such as autoscaling-v2: the API group without its domain, and the version.
    name = re.sub(r"^([^./]*)(?:\.[^/]*)?/", r"\1-", api)
    schema = json.loads(own.read_text()) if own.exists() else _kubernetes(f"{kind.lower()}-{name}.json", version)
    definitions = _kubernetes("_definitions.json", version)
    if partial:
        schema, definitions = _without_required(schema), _without_required(definitions)
    registry: Registry[Any] = Resource.from_contents(definitions) @ Registry()
    return Draft202012Validator(schema, registry=registry)


@cache
def _kubernetes(name: str, version: str) -> Any:
    folder = files(kubernetes_validate) / "kubernetes-json-schema" / f"v{version}.0-local-strict"
    return json.loads((folder / name).read_text())


def _without_required(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_required(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    # Only the keyword `required` has a list as its value; a property may have the same name, and then its value is a
    # schema.
    return {
        name: _without_required(value)
        for name, value in schema.items()
        if name != "required" or not isinstance(value, list)
    }


def misspelt(node: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yields each map below a node with one key changed, with the path of that key."""
    if isinstance(node, list):
        for place, item in enumerate(node):
            for where, changed in misspelt(item, (*path, str(place))):
                yield where, [*node[:place], changed, *node[place + 1 :]]
    if isinstance(node, dict):
        for key, value in node.items():
            rest = {name: other for name, other in node.items() if name != key}
            if not FREE & set(path):
                yield (*path, key), {**rest, f"{key}x": value}
            for where, changed in misspelt(value, (*path, key)):
                yield where, {**node, key: changed}


def patched(document: Any, patch: list[dict[str, Any]]) -> Any:
    """Returns an object after a JSON patch (RFC 6902: add, remove, replace); raises LookupError if a path is absent."""
    document = copy.deepcopy(document)
    for change in patch:
        *parents, last = (part.replace("~1", "/").replace("~0", "~") for part in change["path"].split("/")[1:])
        node = document
        for part in parents:
            node = node[int(part) if isinstance(node, list) else part]
        match node, change["op"]:
            case list(), "add" if last == "-":
                node.append(change["value"])
            case dict(), "add":
                node[last] = change["value"]
            case dict(), "replace" if last in node:
                node[last] = change["value"]
            case dict(), "remove":
                del node[last]
            case _:
                raise LookupError(change)
    return document
