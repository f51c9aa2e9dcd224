"""Builds pieces of JSON Schemas for the OpenAPI document, such as objects and lists."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]

STRING: Json = {"type": "string"}
INTEGER: Json = {"type": "integer"}
NUMBER: Json = {"type": "number"}
BOOLEAN: Json = {"type": "boolean"}


def ref(name: str) -> Json:
    """Returns a JSON schema that refers to a named schema of openapi_schemas."""
    return {"$ref": f"#/components/schemas/{name}"}


def an_object(required: Json, optional: Json | None = None, *, description: str = "") -> Json:
    """Returns a JSON schema for an object that may have only the given fields."""
    schema: Json = {"type": "object", "properties": required | (optional or {}), "additionalProperties": False}
    if required:
        schema["required"] = list(required)
    return schema | ({"description": description} if description else {})


def array_of(items: Json, description: str = "") -> Json:
    """Returns a JSON schema for a list whose items have the given schema."""
    return {"type": "array", "items": items} | ({"description": description} if description else {})


def map_of(values: Json, description: str = "") -> Json:
    """Returns a JSON schema for an object with any field names, whose values have the given schema."""
    return {"type": "object", "additionalProperties": values} | ({"description": description} if description else {})


def enum_of(*values: str) -> Json:
    return {"type": "string", "enum": list(values)}
