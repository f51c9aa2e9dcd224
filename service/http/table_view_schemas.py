"""Defines the JSON Schemas of the answers that show a table to people, by name."""

from __future__ import annotations

from service.http.json_schema import BOOLEAN, INTEGER, STRING, Json, an_object, array_of, enum_of, map_of, ref

_NUMBERS = array_of({"type": ["number", "null"]})
_LABEL: Json = {"type": ["string", "null"], "description": "What people call the row; null: it has no label."}
_KEY: Json = {"type": ["string", "integer", "null"], "description": "null: the row has no key."}

TABLE_VIEW: dict[str, Json] = {
    "TablePage": an_object(
        {
            "version": INTEGER,
            "start": INTEGER | {"description": "Id of the first row."},
            "total": INTEGER | {"description": "Rows of the table."},
            "keys": array_of(_KEY, "Empty for a table without a vocabulary."),
            "labels": array_of(_LABEL, "Empty for a table without labels."),
            "norms": _NUMBERS | {"description": "Euclidean length of each row; null is NaN or infinite."},
        }
    ),
    "TableRow": an_object(
        {
            "version": INTEGER,
            "id": INTEGER,
            "keys": map_of(_KEY, "The row's key, by feature with a vocabulary."),
            "label": _LABEL,
            "is_known": BOOLEAN | {"description": "false: the key led to a row for unknown keys."},
            "values": _NUMBERS,
            "norm": {"type": ["number", "null"]},
            "delta": {
                "anyOf": [ref("RowDelta"), {"type": "null"}],
                "description": "The delta that wrote the row last; null: the row is as the version was saved.",
            },
        }
    ),
    "RowDelta": an_object(
        {
            "sequence": INTEGER,
            "time_s": {"type": ["number", "null"], "description": "When the delta was made, since 1970."},
        }
    ),
    "TableMap": an_object(
        {
            "version": INTEGER,
            "total": INTEGER | {"description": "Rows of the table; a large table is sampled."},
            "explained": array_of({"type": "number"}, "Shares of the variance along x and y."),
            "ids": array_of(INTEGER),
            "x": _NUMBERS,
            "y": _NUMBERS,
            "norms": _NUMBERS,
        }
    ),
    "TableDrift": an_object(
        {
            "version": INTEGER,
            "from": INTEGER | {"description": "The older version."},
            "is_aligned": BOOLEAN | {"description": "A rotation between the versions was undone."},
            "values": _NUMBERS | {"description": "null: the older version lacks the row, or the row has no direction."},
        }
    ),
    "TableNames": an_object(
        {
            "version": INTEGER,
            "keys": map_of(array_of(_KEY), "The rows' keys, by feature with a vocabulary."),
            "labels": array_of(_LABEL, "Empty for a table without labels."),
        }
    ),
    "FoundRows": an_object({"rows": array_of(an_object({"id": INTEGER, "label": STRING}))}),
    "MapState": an_object({"state": enum_of("computing")}),
}
