"""Describes the search for nearest rows in the OpenAPI document."""

from __future__ import annotations

from service.http.json_schema import Json, ref
from service.http.openapi import described


def neighbors(path: str) -> Json:
    """Describes the route POST /tables/{table}:neighbors for the OpenAPI document."""
    examples = {
        "neighbours of a row": {"ids": [50], "k": 3, "metric": "cosine"},
        "of a vector, among some rows": {"vectors": [[0.1, -0.2]], "k": 2, "filter": {"ids": [1, 2, 3]}},
    }
    answers = {"neighbours of a row": {"ids": [[172, 181, 174]], "scores": [[0.97, 0.96, 0.91]]}}
    answer = ("The nearest rows of each query", ref("NeighborsResponse"), answers)
    return described(
        "findNeighbors",
        "Embeddings",
        "Find the nearest rows",
        path + "/tables/{table}",
        answer,
        body=(ref("NeighborsRequest"), examples),
        is_computed=True,
    )
