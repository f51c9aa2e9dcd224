"""EmbeddingConfigSpec tells columns by their classes' names; here it meets the real ones."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from model_export.spec.embedding_config_spec import EmbeddingConfigSpec
from model_export.spec.optimization_parameters import AdagradParameters
from tests.unit.model_export.late import tf

pytestmark = pytest.mark.tf

ADAGRAD = AdagradParameters(0.1)
PADDED = {"embedding_lookup_device": "tpu_tensor_core", "tensor_core_shape": [None, 4]}


def identity(name: str) -> Any:
    """Returns a categorical column of ten ids."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TensorFlow warns that feature columns are deprecated
        return tf.feature_column.categorical_column_with_identity(name, 10)


def columns() -> dict[str, Any]:
    """Returns one column of each class that a spec accepts."""
    from model_export.columns.embedding_column import embedding_column, shared_embedding_columns

    of_tpu = tf.compat.v1.tpu.experimental
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {
            "ours": embedding_column(identity("a"), 4),
            "ours, tensor core": embedding_column(identity("b"), 4, **PADDED),
            "ours, shared": shared_embedding_columns([identity("c"), identity("d")], 4)[0],
            "ours, shared, tensor core": shared_embedding_columns([identity("e")], 4, **PADDED)[0],
            "TensorFlow's TPU": of_tpu.embedding_column(identity("f"), 4),
            "TensorFlow's TPU, tensor core": of_tpu.embedding_column(identity("g"), 4, **PADDED),
            "TensorFlow's TPU, shared": of_tpu.shared_embedding_columns([identity("h")], 4)[0],
            "TensorFlow's": tf.feature_column.embedding_column(identity("i"), 4),
            "numeric": tf.feature_column.numeric_column("j"),
        }


def test_columns_of_both_makers_are_taken_and_divided_by_device() -> None:
    all_columns = columns()
    spec = EmbeddingConfigSpec(list(all_columns.values()), ADAGRAD)
    padded = [column for name, column in all_columns.items() if "tensor core" in name]
    others = [column for name, column in all_columns.items() if "tensor core" not in name]
    assert spec.feature_columns == tuple(all_columns.values())
    assert list(spec.tensor_core_feature_columns) == padded
    assert list(spec.embedding_core_feature_columns) == others


def test_a_categorical_column_alone_is_refused() -> None:
    with pytest.raises(TypeError, match="Got <class '.*IdentityCategoricalColumn'>"):
        EmbeddingConfigSpec([identity("a")], ADAGRAD)


def test_columns_need_parameters() -> None:
    with pytest.raises(ValueError, match="Got <class 'NoneType'>"):
        EmbeddingConfigSpec([columns()["ours"]])
