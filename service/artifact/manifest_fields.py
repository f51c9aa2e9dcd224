"""Builds dataclasses from the manifest's JSON objects, and checks each field against the dataclass."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

from service.errors import ArtifactError

T = TypeVar("T")

_JSON_TYPES: Mapping[str, tuple[type, ...]] = {
    "int": (int,),
    "str": (str,),
    "int | None": (int, type(None)),
    "str | None": (str, type(None)),
    "float | None": (float, int, type(None)),
}


def build(cls: type[T], data: Any, where: str) -> T:
    """Builds a dataclass from the fields of a JSON object; raises ArtifactError naming the field at fault."""
    if not isinstance(data, dict):
        raise ArtifactError(f"manifest: {where} is not an object")
    fields = {f.name: f for f in dataclasses.fields(cast(Any, cls))}
    unknown = sorted(set(data) - set(fields))
    missing = sorted(n for n, f in fields.items() if f.default is dataclasses.MISSING and n not in data)
    if unknown or missing:
        raise ArtifactError(f"manifest: {where} has unknown fields {unknown} and lacks {missing}")
    for name, value in data.items():
        wanted = _JSON_TYPES.get(str(fields[name].type))
        if wanted and (not isinstance(value, wanted) or isinstance(value, bool)):
            raise ArtifactError(f"manifest: {where}.{name} is {value!r}, expected {fields[name].type}")
        if isinstance(value, int) and value < 0:
            raise ArtifactError(f"manifest: {where}.{name} is negative")
    return cls(**data)


def json_object(data: Mapping[str, Any], name: str, *, required: bool = True) -> Mapping[str, Any]:
    """Returns the value of a manifest's field that must be a JSON object; raises ArtifactError if it is none."""
    value = data.get(name, None if required else {})
    if not isinstance(value, dict):
        raise ArtifactError(f"manifest: {name} is {'missing' if value is None else 'not an object'}")
    return cast(Mapping[str, Any], value)


def entries(
    data: Mapping[str, Any], name: str, build_one: Callable[[Any, str], T], *, required: bool = True
) -> dict[str, T]:
    """Builds each entry of a manifest's field that maps names to entries; raises ArtifactError."""
    return {key: build_one(value, f"{name}.{key}") for key, value in json_object(data, name, required=required).items()}


@dataclasses.dataclass(frozen=True, slots=True)
class LabelEntry:
    """The files with the labels of a table's rows, which people see in place of row ids (format 5).

    file: UTF-8 text; line i is the label of row i, and an empty line is no label. starts: [V + 1] int64, little-endian:
    the place where each line begins, and the size of the text.
    """

    file: str
    starts: str
