"""Defines the JSON Schemas of the search for nearest rows, by name."""

from __future__ import annotations

from service.engine.neighbors import METRICS
from service.http.json_schema import BOOLEAN, INTEGER, NUMBER, STRING, Json, an_object, array_of, enum_of, ref

_KEYS: Json = {"anyOf": [array_of(STRING), array_of(INTEGER), array_of(ref("Base64"))]}
_QUERIES: dict[str, Json] = {
    "ids": array_of(INTEGER, "Rows whose neighbours are wanted."),
    "keys": _KEYS | {"description": "The same by keys of the table's vocabulary."},
    "vectors": array_of(array_of(NUMBER), "Vectors whose neighbours are wanted, as long as the table's rows."),
    "labels": array_of(STRING, "The same by labels of rows, such as titles; the answer has labels then."),
}
_OPTIONS: dict[str, Json] = {
    "k": INTEGER | {"description": "Most neighbours of each query; 10 if there is none."},
    "metric": enum_of(*METRICS)
    | {"description": "dot if there is none. l2 is the squared Euclidean distance, and smaller is nearer."},
    "filter": an_object(
        {},
        {
            "ids": array_of(INTEGER, "Only these rows, and those of keys, may be neighbours."),
            "keys": _KEYS,
            "exclude_ids": array_of(INTEGER, "These rows, and those of exclude_keys, may not."),
            "exclude_keys": _KEYS,
        },
    ),
    "feature": STRING | {"description": "The feature whose vocabulary has the keys, if the table has several."},
    "include_self": BOOLEAN | {"description": "Whether a row may be its own neighbour; false if there is none."},
    "exact": BOOLEAN
    | {"description": "Whether all rows are compared, although the table has an index; false if there is none."},
}
_LABELS: dict[str, Json] = {"labels": BOOLEAN | {"description": "Whether the answer has the labels of the rows."}}
NEIGHBORS: dict[str, Json] = {
    "NeighborsRequest": {
        "anyOf": [
            an_object({name: query}, _OPTIONS | ({} if name == "labels" else _LABELS)) | {"title": f"By {name}"}
            for name, query in _QUERIES.items()
        ]
    },
    "NeighborsResponse": an_object(
        {
            "ids": array_of(array_of(INTEGER), "For each query the nearest rows, the nearest first."),
            "scores": array_of(array_of({"type": ["number", "null"]}), "Their scores; null if infinite."),
        },
        {
            "keys": array_of(
                array_of({"anyOf": [STRING, INTEGER, ref("Base64"), {"type": "null"}]}),
                "Their keys, if the table has a vocabulary; null for a row without a key.",
            ),
            "labels": array_of(
                array_of({"type": ["string", "null"]}), "Their labels, if the request asks for them; null without one."
            ),
            "recall": NUMBER
            | {"description": "Share of the ten nearest rows that the index finds; without it all rows were compared."},
        },
    ),
}
