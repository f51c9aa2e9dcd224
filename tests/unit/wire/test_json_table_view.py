"""Writes the list of a version's tables as JSON."""

from __future__ import annotations

import json

from service.types import TableInfo
from service.wire.json_body import encode_tables


def test_tables_are_listed_with_all_that_is_known() -> None:
    info = TableInfo("t", 3, 2, "float32", 24, ("a", "b"))
    assert json.loads(encode_tables([info])) == {
        "tables": [
            {
                "name": "t",
                "vocabulary_size": 3,
                "embedding_dim": 2,
                "dtype": "float32",
                "nbytes": 24,
                "features": ["a", "b"],
            }
        ]
    }
