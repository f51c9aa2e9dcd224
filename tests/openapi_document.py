"""Compares answers with what the OpenAPI document says of them."""

from __future__ import annotations

from typing import Any

import httpx
import jsonschema_rs


def documented_answer(document: dict[str, Any], operation: dict[str, Any], status: int) -> Any:
    """Returns the description of an operation's answer with a status."""
    answer = operation["responses"][str(status)]
    # Operations share the descriptions of refusals.
    return document["components"]["responses"][answer["$ref"].rpartition("/")[2]] if "$ref" in answer else answer


def validator(document: dict[str, Any], schema: dict[str, Any]) -> Any:
    """Returns an object whose validate() raises if a JSON value is not of a type in the document."""
    return jsonschema_rs.validator_for(schema | {"components": document["components"]})


def check_documented(document: dict[str, Any], operation: dict[str, Any], response: httpx.Response) -> None:
    """Compares an answer's JSON and headers with what the document says of an answer with its status."""
    documented = documented_answer(document, operation, response.status_code)
    for name, header in documented.get("headers", {}).items():
        assert name in response.headers or not header["required"], name
        if name in response.headers and "$ref" in header["schema"]:
            validator(document, header["schema"]).validate(response.headers[name])
    media = documented.get("content", {}).get("application/json")
    if media is not None and "schema" in media:
        validator(document, media["schema"]).validate(response.json())
