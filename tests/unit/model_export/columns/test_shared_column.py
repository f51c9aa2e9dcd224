"""Shared columns have one table, whatever is done to the columns."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.model_export.columns.column_cases import TABLE, sparse, table_initializer
from tests.unit.model_export.columns.test_single_column import rate

pytestmark = pytest.mark.tf


def columns() -> list[Any]:
    """Returns two shared columns with none of their fields at its default."""
    from model_export.columns.embedding_column import shared_embedding_columns
    from model_export.tensorflow_setup import tf

    fc = tf.feature_column
    weighted = fc.weighted_categorical_column(fc.categorical_column_with_identity("b", 6), "w")
    return shared_embedding_columns(
        [weighted, fc.categorical_column_with_identity("a", 6)],
        3,
        "sum",
        table_initializer,
        "words",
        learning_rate_fn=rate,
        embedding_lookup_device="tpu_tensor_core",
        tensor_core_shape=[None, 4],
        use_safe_embedding_lookup=False,
    )


def every_field(column: Any) -> tuple[Any, ...]:
    """Returns the fields that hold the arguments of shared_embedding_columns."""
    return (
        column.categorical_column,
        column.get_embedding_table_size(),
        column.get_combiner(),
        column.get_initializer(),
        column.shared_embedding_collection_name,
        column.max_sequence_length,
        column.learning_rate_fn,
        column.embedding_lookup_device,
        column.tensor_core_shape,
        column.use_safe_embedding_lookup,
        column.name,
    )


def table_of(column: Any) -> Any:
    """Returns the object that makes the variable of a column's table."""
    return column.shared_embedding_column_creator


def test_copies_keep_every_argument_and_share_among_themselves() -> None:
    from model_export.tensorflow_setup import tf

    made = columns()
    features = {key: sparse([[1]], tf.int64) for key in "ab"} | {"w": sparse([[1.0]], tf.float32)}
    # the layer creates the table, and a deep copy of a column works all the same but does not copy the table
    tf.keras.layers.DenseFeatures(made)(features)
    twins = copy.deepcopy(made)
    assert [every_field(twin) for twin in twins] == [every_field(column) for column in made]
    assert table_of(twins[0]) is table_of(twins[1]) is not table_of(made[0])
    np.testing.assert_array_equal(tf.keras.layers.DenseFeatures(twins)(features), np.hstack([TABLE[[1]], TABLE[[1]]]))


def test_a_layers_configuration_keeps_every_argument_and_the_sharing() -> None:
    from model_export.tensorflow_setup import tf

    made = sorted(columns(), key=lambda column: str(column.name))
    layer = tf.keras.layers.DenseFeatures(made)
    restored = tf.keras.layers.DenseFeatures.from_config(layer.get_config())._feature_columns
    assert [every_field(column) for column in restored] == [every_field(column) for column in made]
    assert table_of(restored[0]) is table_of(restored[1]) is not table_of(made[0])
    alone = type(made[0]).from_config(made[0].get_config())
    assert every_field(alone) == every_field(made[0]) and table_of(alone) is not table_of(made[0])


@pytest.mark.parametrize("name", [None, "words"])
def test_the_variable_is_named_as_tensorflows(name: str | None) -> None:
    from model_export.columns.embedding_column import shared_embedding_columns
    from model_export.tensorflow_setup import tf

    v1 = tf.compat.v1
    names = []
    for make in (shared_embedding_columns, v1.tpu.experimental.shared_embedding_columns):
        with tf.Graph().as_default():
            fc = tf.feature_column
            categorical = [fc.categorical_column_with_identity(key, 6) for key in ("b", "a")]
            made = make(categorical, 3, shared_embedding_collection_name=name)
            assert [column.name for column in made] == ["b_shared_embedding", "a_shared_embedding"], "as given"
            v1.keras.layers.DenseFeatures(made)({key: sparse([[1]], tf.int64) for key in "ab"})
            names.append([variable.name for variable in v1.global_variables()])
    assert names[0] == names[1] == [f"{name or 'a_b_shared_embedding'}:0"]


def test_both_columns_train_the_one_table() -> None:
    from model_export.columns.embedding_column import shared_embedding_columns
    from model_export.tensorflow_setup import tf

    fc = tf.feature_column
    made = shared_embedding_columns(
        [fc.categorical_column_with_identity(key, 6) for key in ("a", "b")], 3, "sum", table_initializer
    )
    with tf.GradientTape() as tape:
        vectors = tf.keras.layers.DenseFeatures(made)({"a": sparse([[1, 2]], tf.int64), "b": sparse([[2]], tf.int64)})
        total = tf.reduce_sum(vectors)
    (table,) = tape.watched_variables()
    gradient = tf.convert_to_tensor(tape.gradient(total, table)).numpy()
    assert gradient[:, 0].tolist() == [0, 1, 2, 0, 0, 0]


def test_a_function_leaves_no_name_behind_and_keras_trains_the_table(tmp_path: Path) -> None:
    from model_export.columns.embedding_column import shared_embedding_columns
    from model_export.tensorflow_setup import tf

    fc = tf.feature_column
    features = {key: sparse([[1, 2]], tf.int64) for key in "ab"}
    for _ in range(2):  # a second model in the same process uses the same names of columns and tables
        made = shared_embedding_columns(
            [fc.categorical_column_with_identity(key, 6) for key in "ab"], 3, "sum", table_initializer, "films/all"
        )
        layer = tf.keras.layers.DenseFeatures(made)
        vectors = tf.function(lambda ids, layer=layer: layer(ids))(features)
        np.testing.assert_allclose(vectors, np.hstack([TABLE[[1]] + TABLE[[2]]] * 2), rtol=1e-6)
        (table,) = layer.trainable_variables
        assert table is table_of(made[0]).embedding_weights and table.name == "films/all:0"
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(layer(features)))
        tf.keras.optimizers.SGD(0.1).minimize(loss, layer.trainable_variables, tape=tape)
        assert np.flatnonzero((table.numpy() != TABLE).any(axis=1)).tolist() == [1, 2]
        trained = table.numpy()
        saved = tf.train.Checkpoint(layer=layer).save(str(tmp_path / "checkpoint"))
        table.assign_add(tf.ones_like(table))
        tf.train.Checkpoint(layer=layer).restore(saved).assert_existing_objects_matched()
        np.testing.assert_array_equal(table, trained)
    theirs = tf.compat.v1.tpu.experimental.shared_embedding_columns(
        [fc.categorical_column_with_identity(key, 6) for key in "ab"], 3, shared_embedding_collection_name="others"
    )
    layer = tf.keras.layers.DenseFeatures(theirs)
    layer(features)
    assert layer.trainable_variables == [], "what ours is there for"
    with pytest.raises(ValueError, match="Unable to save"):
        tf.train.Checkpoint(layer=layer).save(str(tmp_path / "theirs"))
