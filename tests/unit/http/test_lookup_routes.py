"""The server's own routes list the tables of a model."""

from __future__ import annotations

import pytest

from tests.unit.http.conftest import Http


@pytest.mark.parametrize("where", ["", "/versions/3"])
def test_tables(http: Http, where: str) -> None:
    (table,) = http.get(f"/v1/models/m{where}/tables").json()["tables"]
    assert (table["name"], table["vocabulary_size"], table["features"]) == ("t", 4, ["tags", "user"])
