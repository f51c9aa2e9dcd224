"""Tables get their names from layers and variables, and features from inputs."""

from __future__ import annotations

import pytest

from model_export.adoption.roles import Roles, feature_name
from model_export.adoption.spec import table_names, unique, valid

VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"


@pytest.mark.parametrize(
    ("key", "variable", "name"),
    [
        ("_all_variables/4" + VALUE, "user_embedding/embeddings", "user_embedding"),
        ("_all_variables/4" + VALUE, "ranker/items/embeddings", "items"),
        ("layers/0/variables/1" + VALUE, "", "variables"),
        ("user" + VALUE, "Variable_7", "user"),
        ("embedding/film" + VALUE, "Variable", "film"),
        ("dnn/input_from_feature_columns/a_b_shared_embedding", "", "a_b_shared_embedding"),
        ("words" + VALUE, "2nd words", "n2nd_words"),
    ],
)
def test_a_table_is_named_by_what_the_program_called_it(key: str, variable: str, name: str) -> None:
    assert table_names([key], {key: variable}) == {key: name}


def test_two_tables_of_one_name_are_told_apart() -> None:
    variables = {"a": "embeddings", "b": "embeddings"}
    assert table_names(["b", "a"], variables) == {"a": "embeddings", "b": "embeddings_2"}
    assert unique("x", {"x", "x_2"}) == "x_3"


def test_names_hold_letters_digits_and_underscores() -> None:
    assert valid("weiß/1 a") == "weiß_1_a" or valid("weiß/1 a").isidentifier()
    assert valid("") == "table"


@pytest.mark.parametrize(
    ("ids", "splits", "name"),
    [
        ("user", None, "user"),
        ("tag_values", "tag_splits", "tag"),
        ("genres__values", "genres__row_splits", "genres"),
        ("values", "splits", "values"),
    ],
)
def test_a_feature_is_named_by_its_inputs(ids: str, splits: str | None, name: str) -> None:
    assert feature_name(Roles(ids, splits)) == name
