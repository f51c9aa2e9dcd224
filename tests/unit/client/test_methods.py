"""Both clients refuse wrong arguments in the same way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from embedding_client.errors import InvalidRequest
from embedding_client.methods import Methods

METHODS = Methods("h:1", "m", None, None)
ONE: dict[str, Any] = {"version": None, "label": None, "signature": "lookup", "outputs": None}


def test_where_each_method_goes() -> None:
    assert Methods("h:1", "m", None, None).tables_target is None
    assert Methods("http://h:1", "m", None, None).tables_target is None
    methods = Methods("h:1", "m", None, "http://h:2")
    assert (str(methods.target), str(methods.tables_target)) == ("h:1", "http://h:2")


@pytest.mark.parametrize(
    ("target", "model", "http_target", "problem"),
    [
        ("h:1", "", None, "model is empty"),
        ("h:1", "m", "h:2", "expected http://host:port"),
        ("http://h:1", "m", "http://h:2", "speaks HTTP itself"),
    ],
)
def test_arguments_of_the_constructor(target: str, model: str, http_target: str | None, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        Methods(target, model, None, http_target)


def test_a_version_or_a_label() -> None:
    with pytest.raises(InvalidRequest, match="version 1 and label 'stable' were both given"):
        METHODS.lookup({"user": [1]}, None, **ONE | {"version": 1, "label": "stable"})


def test_outputs_are_a_list() -> None:
    with pytest.raises(InvalidRequest, match="expected a list of names, got the string 'user'"):
        METHODS.predict({"user": [1]}, **ONE | {"outputs": "user"})


@pytest.mark.parametrize("ids", [5, [[1]], ["a"], [1.5], np.zeros((1, 1), int)])
def test_rows_take_a_list_of_ids(ids: Any) -> None:
    with pytest.raises(InvalidRequest, match="ids: expected a list or an array of integers"):
        METHODS.rows("t", ids, version=None, label=None)
