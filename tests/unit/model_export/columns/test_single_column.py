"""Checks that a column keeps its arguments when it is copied, pickled or written as a configuration."""

from __future__ import annotations

import copy
import json
import pickle
from typing import Any

import numpy as np
import pytest

from tests.unit.model_export.columns.column_cases import TABLE, sparse, table_initializer

pytestmark = pytest.mark.tf


def rate(step: int) -> float:
    """A learning rate."""
    return 1 / step


def every_field(column: Any) -> dict[str, Any]:
    """Returns the fields that hold the arguments of embedding_column; get_config has not all of them."""
    return {
        "categorical_column": column.categorical_column,
        "dimension": column.dimension,
        "combiner": column.get_combiner(),
        "max_sequence_length": column.get_max_sequence_length(),
        "learning_rate_fn": column.get_learning_rate_fn(),
        "device": column.embedding_lookup_device,
        "shape": column.tensor_core_shape,
        "safe": column.use_safe_embedding_lookup,
        "name": column.name,
        "variable": column.get_embedding_var_name(),
    }


def examples() -> list[Any]:
    """Returns columns, none of whose fields have default values, as far as one column can have that."""
    from model_export.columns.embedding_column import embedding_column
    from model_export.tensorflow_setup import tf

    fc = tf.feature_column
    initializer = tf.compat.v1.random_uniform_initializer(-1, 1, seed=3)
    padded: dict[str, Any] = {"embedding_lookup_device": "tpu_tensor_core", "tensor_core_shape": [8, 5]}
    return [
        embedding_column(
            fc.weighted_categorical_column(fc.categorical_column_with_vocabulary_list("w", list("abc")), "f"),
            2,
            "sum",
            initializer,
            learning_rate_fn=rate,
            use_safe_embedding_lookup=False,
            **padded,
        ),
        embedding_column(
            fc.sequence_categorical_column_with_identity("s", 9, default_value=2),
            4,
            "sqrtn",
            initializer,
            max_sequence_length=7,
            learning_rate_fn=rate,
            embedding_lookup_device="cpu",
        ),
    ]


def test_a_configuration_keeps_every_argument() -> None:
    for column in examples():
        restored = type(column).from_config(column.get_config())
        assert every_field(restored) == every_field(column)
        assert restored.get_initializer().get_config() == column.get_initializer().get_config()


def test_a_layers_configuration_goes_through_json() -> None:
    from tf_keras.src.saving.legacy.saved_model import json_utils

    from model_export.tensorflow_setup import tf

    dense, sequence = examples()
    layers = {tf.keras.layers.DenseFeatures: dense, tf.keras.experimental.SequenceFeatures: sequence}
    for layer, column in layers.items():
        config = json.loads(json.dumps(layer([column]).get_config(), default=json_utils.get_json_type))
        with pytest.raises(ValueError, match="learning_rate_fn 'rate' is not among custom_objects"):
            layer.from_config(config)
        restored = layer.from_config(config, custom_objects={"rate": rate})._feature_columns[0]
        assert every_field(restored) == every_field(column)


def test_an_initializer_that_is_a_function_stays_that_function() -> None:
    from model_export.columns.embedding_column import embedding_column
    from model_export.tensorflow_setup import tf

    column = embedding_column(
        tf.feature_column.categorical_column_with_identity("i", 6), 3, initializer=table_initializer
    )
    assert type(column).from_config(column.get_config()).get_initializer() is table_initializer
    named = {**column.get_config(), "initializer": "table_initializer"}
    restored = type(column).from_config(named, custom_objects={"table_initializer": table_initializer})
    assert restored.get_initializer() is table_initializer
    layer = tf.keras.layers.DenseFeatures([restored])
    np.testing.assert_array_equal(layer({"i": sparse([[4]], tf.int64)}), TABLE[[4]])


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda column: pickle.loads(pickle.dumps(column))])
def test_a_copy_keeps_every_argument(copied: Any) -> None:
    for column in examples():
        twin = copied(column)
        assert type(twin) is type(column) and twin is not column
        assert every_field(twin) == every_field(column)
        assert twin.get_initializer().get_config() == column.get_initializer().get_config()


def test_one_columns_shape_is_not_anothers() -> None:
    from model_export.columns.embedding_column import TPUEmbeddingColumn, embedding_column
    from model_export.tensorflow_setup import tf

    fc = tf.feature_column
    before = getattr(TPUEmbeddingColumn, "_tensor_core_shape", None)
    made = [
        embedding_column(
            fc.categorical_column_with_identity(key, 6),
            3,
            embedding_lookup_device="tpu_tensor_core",
            tensor_core_shape=[None, width],
        )
        for key, width in (("i", 2), ("j", 7))
    ]
    assert [column.tensor_core_shape for column in made] == [(None, 2), (None, 7)]
    # TensorFlow keeps the last tensor_core_shape in its own class; the columns of this project must not set it there.
    assert getattr(TPUEmbeddingColumn, "_tensor_core_shape", None) is before
