"""Tables and features get names from columns."""

from __future__ import annotations

from typing import Any

import pytest

from model_export.spec.features import FeatureSpec

pytestmark = pytest.mark.tf


def identity(key: str, rows: int = 4) -> Any:
    """A categorical column."""
    from model_export.tensorflow_setup import tf

    return tf.feature_column.categorical_column_with_identity(key, rows)


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("user_id", "user_id"),
        ("user/id", "user_id"),
        ("user.id", "user_id"),
        ("a__b", "a_b"),
        ("_a_", "a"),
        ("2nd", "feature_2nd"),
        ("été", "t"),
        ("/", "feature"),
        ("Größe 1", "Gr_e_1"),
    ],
)
def test_a_key_becomes_a_name_that_a_feature_may_have(key: str, name: str) -> None:
    from model_export.columns.to_spec import safe_name

    assert safe_name(key, "feature") == name
    FeatureSpec(name, "table")


def test_names_follow_the_columns_in_order() -> None:
    from model_export.columns.embedding_column import embedding_column, shared_embedding_columns
    from model_export.columns.to_spec import feature_names, table_names
    from model_export.tensorflow_setup import tf

    weighted = tf.feature_column.weighted_categorical_column(identity("user/id"), "w")
    columns = [*shared_embedding_columns([identity("b"), identity("a")], 2), embedding_column(weighted, 2)]
    assert dict(feature_names(columns)) == dict(zip(["b", "a", "user_id"], columns, strict=True))
    assert dict(table_names(columns)) == {
        "a_b_shared_embedding": columns[:2],
        "user_id_weighted_by_w": columns[2:],
    }
    assert list(feature_names(columns[2])) == ["user_id"], "one column alone will do"


def test_tensorflows_own_columns_have_names_too() -> None:
    from model_export.columns.to_spec import feature_names
    from model_export.tensorflow_setup import tf

    assert list(feature_names([tf.compat.v1.tpu.experimental.embedding_column(identity("a"), 2)])) == ["a"]


def test_what_would_be_one_name_is_refused() -> None:
    from model_export.columns.embedding_column import embedding_column, shared_embedding_columns
    from model_export.columns.to_spec import feature_names, table_names

    twice = [embedding_column(identity("a"), 2), *shared_embedding_columns([identity("a")], 2)]
    with pytest.raises(ValueError, match="Feature column a is used with multiple embeddings"):
        feature_names(twice)
    alike = [embedding_column(identity("a/b"), 2), embedding_column(identity("a.b"), 2)]
    with pytest.raises(ValueError, match="features 'a/b' and 'a.b' would both be named 'a_b'"):
        feature_names(alike)
    with pytest.raises(ValueError, match="tables of columns 'a/b_embedding' and 'a.b_embedding' would both be named"):
        table_names(alike)
    collections = [
        shared_embedding_columns([identity(key)], 2, shared_embedding_collection_name="t")[0] for key in ("a", "b")
    ]
    with pytest.raises(ValueError, match="would both be named 't'"):
        table_names(collections)


@pytest.mark.parametrize("wrong", ["numeric", "embedding"])
def test_other_columns_are_refused(wrong: str) -> None:
    from model_export.columns.to_spec import checked_columns
    from model_export.tensorflow_setup import tf

    fc = tf.feature_column
    column = fc.numeric_column("x") if wrong == "numeric" else fc.embedding_column(identity("a"), 2)
    with pytest.raises(TypeError, match="must be made by embedding_column or shared_embedding_columns, got"):
        checked_columns([column])
