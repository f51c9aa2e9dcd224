"""Describes for the OpenAPI document the routes that show a table to people: rows with their norms, and 2-D maps."""

from __future__ import annotations

from service.http.json_schema import Json, ref
from service.http.openapi import described


def page(path: str) -> Json:
    """Describes GET :page."""
    example = {"version": 2, "start": 0, "total": 1683, "keys": [], "labels": [None], "norms": [1.25]}
    answer = ("The rows' keys and norms", ref("TablePage"), {"one row": example})
    route = described("pageRows", "Embeddings", "Rows of a table, by page", path + "/tables/{table}", answer)
    return _with(route, _query("start", "integer", "First row id"), _query("count", "integer", "Rows, 1 to 1000"))


def row(path: str) -> Json:
    """Describes GET :row."""
    example = {
        "version": 2,
        "id": 50,
        "keys": {},
        "label": "Star Wars (1977)",
        "is_known": True,
        "values": [0.5, -0.25],
        "norm": 0.559,
        "delta": {"sequence": 7, "time_s": 1760000000.0},
    }
    answer = ("The row", ref("TableRow"), {"a row that a delta wrote": example})
    route = described("showRow", "Embeddings", "One row, by id or key", path + "/tables/{table}", answer)
    keys = _query("key", "string", "A key of the vocabulary"), _query("feature", "string", "Whose vocabulary")
    return _with(route, _query("id", "integer", "Row id") | {"example": 1}, *keys)


def projection(path: str) -> Json:
    """Describes GET :projection."""
    example = {
        "version": 2,
        "total": 3,
        "explained": [0.9, 0.1],
        "ids": [0, 1, 2],
        "x": [-1.0, 0.0, 1.0],
        "y": [0.1, -0.2, 0.1],
        "norms": [1.0, 0.5, 1.0],
    }
    answer = ("The points of the table's map, at most 100,000", ref("TableMap"), {"three rows": example})
    route = described("projectTable", "Embeddings", "Map of a table", path + "/tables/{table}", answer)
    return _may_wait(route)


def drift(path: str) -> Json:
    """Describes GET :drift."""
    example = {"version": 2, "from": 1, "is_aligned": True, "values": [0.0, 0.25, None]}
    answer = ("1 - cosine for each point of the map", ref("TableDrift"), {"three rows, one of them new": example})
    route = described("driftOfTable", "Embeddings", "Drift of the rows of a map", path + "/tables/{table}", answer)
    older = _query("from", "integer", "The older version") | {"required": True, "example": 1}
    return _with(_may_wait(route), older)


def names(path: str) -> Json:
    """Describes GET :names."""
    titles = ["", "Toy Story (1995)", "GoldenEye (1995)"]
    example = {"version": 2, "keys": {"film_id": [None, 1, 2]}, "labels": titles}
    answer = ("The keys and the label of each point of the map", ref("TableNames"), {"three rows": example})
    return _may_wait(
        described("namesOfMap", "Embeddings", "Names of the rows of a map", path + "/tables/{table}", answer)
    )


def find(path: str) -> Json:
    """Describes GET :find."""
    example = {"rows": [{"id": 50, "label": "Star Wars (1977)"}]}
    answer = ("The rows; those whose labels begin with the text come first", ref("FoundRows"), {"a film": example})
    route = described("findRows", "Embeddings", "Rows whose labels contain a text", path + "/tables/{table}", answer)
    text = _query("label", "string", "The text") | {"required": True, "example": "Star Wars"}
    return _with(route, text, _query("count", "integer", "Most rows, 1 to 1000; 50 without it"))


def _may_wait(route: Json) -> Json:
    content = {"schema": ref("MapState"), "examples": {"computing": {"value": {"state": "computing"}}}}
    route["responses"][202] = {
        "description": "The server computes the answer; ask again",
        "content": {"application/json": content},
    }
    return route


def _query(name: str, kind: str, description: str) -> Json:
    return {"name": name, "in": "query", "required": False, "schema": {"type": kind}, "description": description}


def _with(route: Json, *parameters: Json) -> Json:
    route["parameters"] = [*route["parameters"], *parameters]
    return route
