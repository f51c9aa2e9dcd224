"""Variables of tables, beside the variables that a graph really has."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.model_export.columns.column_cases import sparse

pytestmark = pytest.mark.tf


def columns() -> list[Any]:
    """A table of its own, one shared, one of a sequence; a key that is no scope name."""
    from model_export.columns.embedding_column import embedding_column, shared_embedding_columns
    from model_export.tensorflow_setup import tf

    fc = tf.feature_column
    return [
        embedding_column(fc.categorical_column_with_identity("user/id", 6), 3),
        *shared_embedding_columns([fc.categorical_column_with_identity(key, 6) for key in "ab"], 3),
        embedding_column(fc.sequence_categorical_column_with_identity("s", 5), 2, max_sequence_length=2),
    ]


def variables_of(dense: str, sequence: str) -> dict[str, tuple[int, ...]]:
    """The variables of a graph with those columns in layers of these names."""
    from model_export.tensorflow_setup import tf

    made, v1 = columns(), tf.compat.v1
    with tf.Graph().as_default():
        features = {key: sparse([[1]], tf.int64) for key in ("user/id", "a", "b", "s")}
        v1.keras.layers.DenseFeatures(made[:3], name=dense)(features)
        tf.keras.experimental.SequenceFeatures(made[3:], name=sequence)(features)
        return {variable.op.name: tuple(variable.shape.as_list()) for variable in v1.global_variables()}


@pytest.mark.parametrize(("dense", "sequence"), [("dense_features", "sequence_features"), ("wide", "deep")])
def test_names_and_shapes_are_those_of_the_graph(dense: str, sequence: str) -> None:
    from model_export.columns.table_variables import find_table_variables, table_variables

    graph = variables_of(dense, sequence)
    said = table_variables(columns(), dense_layer=dense, sequence_layer=sequence)
    assert list(said) == ["user_id", "a_b_shared_embedding", "s"]
    assert {variable.name: variable.shape for variable in said.values()} == graph
    slots = {f"{name}/Adagrad": shape for name, shape in graph.items()}
    assert find_table_variables(columns(), {**graph, **slots, "global_step": ()}) == said


def test_a_table_that_is_not_there_or_there_twice_is_refused() -> None:
    from model_export.columns.table_variables import find_table_variables

    graph = variables_of("dense_features", "sequence_features")
    for missing in graph:
        rest = {name: shape for name, shape in graph.items() if name != missing}
        with pytest.raises(ValueError, match="found none among"):
            find_table_variables(columns(), rest)
        with pytest.raises(ValueError, match="found none among"):
            find_table_variables(columns(), {**rest, missing: (9, 9)})
    twice = {**graph, "other/user_id_embedding/embedding_weights": (6, 3)}
    with pytest.raises(ValueError, match="table 'user_id' is a variable .*found .*other"):
        find_table_variables(columns(), twice)
