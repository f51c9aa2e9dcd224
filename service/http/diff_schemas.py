"""Defines the JSON Schemas of a comparison of two versions; the fields are those of service.comparison.document."""

from __future__ import annotations

from service.http.json_schema import BOOLEAN, INTEGER, NUMBER, STRING, Json, an_object, array_of, enum_of, ref

_NUMBER_OR_NULL: Json = {"type": ["number", "null"]}


def _or_null(name: str) -> Json:
    return {"anyOf": [ref(name), {"type": "null"}]}


DIFFS: dict[str, Json] = {
    "DiffHistogram": an_object(
        {
            "edges": array_of(NUMBER, "One more than the bins."),
            "counts": array_of(INTEGER, "The outer bins also count the values beyond."),
        }
    ),
    "DiffRows": an_object(
        {"count": INTEGER, "first": array_of(STRING, "Keys of the first ten; ids without a vocabulary.")}
    ),
    "DriftedRow": an_object(
        {
            "name": STRING,
            "old_id": INTEGER,
            "new_id": INTEGER,
            "cosine": _NUMBER_OR_NULL | {"description": "null: a number of the row is not finite."},
        }
    ),
    "Drift": an_object(
        {
            "rows": INTEGER | {"description": "Compared rows: all common rows, or a sample of them."},
            "is_aligned": BOOLEAN | {"description": "Whether rows are compared after the rotation that fits best."},
            "cosines": ref("DiffHistogram"),
            "norm_ratios": ref("DiffHistogram"),
            "median_cosine": _NUMBER_OR_NULL,
            "median_unaligned_cosine": _NUMBER_OR_NULL,
            "median_norm_ratio": _NUMBER_OR_NULL,
            "outlying": INTEGER
            | {"description": "Rows whose norm changed by more than a factor of 32, or to 0 or NaN."},
            "directions": array_of(NUMBER, "Effective number of dimensions of the old and of the new rows."),
            "equal": INTEGER,
            "drifted": INTEGER | {"description": "Rows whose cosine is below drifted_cosine."},
            "percent": NUMBER,
            "worst": array_of(ref("DriftedRow")),
        }
    ),
    "DiffNeighbours": an_object(
        {
            "k": INTEGER,
            "queries": INTEGER,
            "is_hottest": BOOLEAN | {"description": "Whether the queries are the hottest rows, and not a sample."},
            "pool": INTEGER,
            "overlap": NUMBER | {"description": "Mean share of a row's old neighbours that are new ones too."},
            "chance": NUMBER | {"description": "The overlap of unrelated tables."},
        }
    ),
    "TableDiff": an_object(
        {
            "table": STRING,
            "matched_by": enum_of("key", "id"),
            **dict.fromkeys(("old_rows", "new_rows", "old_dim", "new_dim"), INTEGER),
            **dict.fromkeys(("old_dtype", "new_dtype"), STRING),
            **dict.fromkeys(("added", "removed", "moved"), ref("DiffRows")),
            "common": INTEGER,
            "drift": _or_null("Drift"),
            "neighbours": _or_null("DiffNeighbours"),
            "notes": array_of(STRING),
        }
    ),
    "VersionDiff": an_object(
        {
            **dict.fromkeys(("model", "old", "new"), STRING),
            "tables": array_of(ref("TableDiff"), "The tables of both versions."),
            **dict.fromkeys(("added_tables", "removed_tables"), array_of(STRING)),
            "notes": array_of(STRING),
            "drift_percent": _NUMBER_OR_NULL
            | {"description": "Largest `percent` of an aligned table: the number that --max_drift judges."},
            "drifted_cosine": NUMBER,
        },
        {"predictions": {"type": "null", "description": "Only `model-export diff` runs recorded requests."}},
    ),
}
_NONE: Json = {"count": 0, "first": []}
EXAMPLE: Json = {
    "model": "movielens",
    "old": "1",
    "new": "2",
    "tables": [
        {
            "table": "film",
            "matched_by": "key",
            "old_rows": 1683,
            "new_rows": 1684,
            "old_dim": 32,
            "new_dim": 32,
            "old_dtype": "float32",
            "new_dtype": "float32",
            "added": {"count": 1, "first": ["1683"]},
            "removed": _NONE,
            "moved": _NONE,
            "common": 1682,
            "drift": {
                "rows": 1682,
                "is_aligned": True,
                "cosines": {"edges": [-1.0, 0.0, 1.0], "counts": [2, 1680]},
                "norm_ratios": {"edges": [0.5, 1.0, 2.0], "counts": [800, 882]},
                "median_cosine": 0.93,
                "median_unaligned_cosine": 0.01,
                "median_norm_ratio": 1.02,
                "outlying": 0,
                "directions": [29.4, 29.1],
                "equal": 0,
                "drifted": 2,
                "percent": 0.12,
                "worst": [{"name": "1653", "old_id": 1653, "new_id": 1653, "cosine": -0.2}],
            },
            "neighbours": {
                "k": 10,
                "queries": 200,
                "is_hottest": True,
                "pool": 1682,
                "overlap": 0.71,
                "chance": 0.006,
            },
            "notes": [],
        }
    ],
    "added_tables": [],
    "removed_tables": [],
    "notes": [],
    "drift_percent": 0.12,
    "drifted_cosine": 0.3,
}
