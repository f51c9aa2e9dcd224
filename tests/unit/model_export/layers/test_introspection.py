"""Reads the private fields of a layer: a new release of tensorflow_recommenders that changes them fails here first."""

from __future__ import annotations

from typing import Any

import pytest

from model_export.errors import ExportError
from tests.unit.model_export.layers.late import Late, TPUEmbedding, embedding, legacy, tables, tf, tfrs
from tests.unit.model_export.layers.reference import film_batch, film_config, subclass_model

pytestmark = pytest.mark.tf

MODULE = "model_export.layers.introspection"
embedding_layers, feature_config, is_built = (
    Late(MODULE, name) for name in ("embedding_layers", "feature_config", "is_built")
)


def kinds() -> list[Any]:
    """Returns our layer class and the class that it extends."""
    return [TPUEmbedding.found(), tfrs.layers.embedding.TPUEmbedding]


def test_layers_are_found_in_models_and_alone() -> None:
    for kind in kinds():
        layer = kind(film_config(tf), None)
        model = subclass_model(tf, layer)
        assert embedding_layers(model) == embedding_layers(layer) == [layer]
        assert embedding_layers(tf.keras.Sequential([model])) == [layer]
    with pytest.raises(ExportError, match="Dense 'none' has no TPUEmbedding layer"):
        embedding_layers(tf.keras.layers.Dense(1, name="none"))


def test_config_tables_and_slots_are_told() -> None:
    for kind in kinds():
        layer = kind(film_config(tf), embedding.Adagrad(0.1))
        assert not is_built(layer)
        layer(film_batch(tf))
        assert is_built(layer)
        assert feature_config(layer)["film"]["clicks"].max_sequence_length == 3
        held = tables(layer)
        assert {name: part.parameters.shape.as_list() for name, part in held.items()} == {
            "users": [10, 4],
            "films": [8, 2],
        }
        assert held["users"].slots["accumulators"].shape == (10, 4)


def test_slots_of_a_keras_optimizer_are_not_the_layers() -> None:
    layer = TPUEmbedding(film_config(tf), legacy.Adagrad(0.1))
    assert [dict(part.slots) for part in tables(layer).values()] == [{}, {}]
    assert is_built(layer), "asking for the tables makes them"
