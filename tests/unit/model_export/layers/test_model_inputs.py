"""Finds how a Keras model is called, and which of its inputs feeds which feature."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from model_export.errors import ExportError
from tests.unit.model_export.layers.late import Late, TPUEmbedding, embedding, tf
from tests.unit.model_export.layers.reference import film_batch, film_config, functional_model, subclass_model

pytestmark = pytest.mark.tf

model_inputs = Late("model_export.layers.model_inputs", "model_inputs")


def fed(found: Any) -> dict[str, tuple[str, str | None]]:
    """Returns path -> (kind, feature) for the leaves of a model's inputs."""
    return {leaf.path: (leaf.kind, leaf.ids_of) for leaf in found.leaves}


FILM = {
    "film/clicks": ("ragged", "film/clicks"),
    "film/seen": ("ragged", "film/seen"),
    "user": ("dense", "user"),
}


def test_a_functional_model_says_what_it_takes() -> None:
    assert fed(model_inputs(functional_model(tf, TPUEmbedding(film_config(tf), None)))) == FILM


def test_a_subclass_model_says_what_it_was_called_with() -> None:
    model = subclass_model(tf, TPUEmbedding(film_config(tf), None))
    with pytest.raises(ExportError, match="has not been called yet: give inputs="):
        model_inputs(model)
    model(film_batch(tf))
    assert fed(model_inputs(model)) == FILM


def test_a_batch_says_it_before_the_first_call() -> None:
    model = subclass_model(tf, TPUEmbedding(film_config(tf), None))
    batch = film_batch(tf)
    batch["film"]["seen"] = batch["film"]["seen"].to_sparse()
    batch["user"] = np.array([1, 2, 3])
    found = model_inputs(model, inputs=batch)
    assert fed(found) == {**FILM, "film/seen": ("sparse", "film/seen")}
    assert [leaf.type_spec.shape[0] for leaf in found.leaves] == [None, None, None]


def test_the_graph_tells_inputs_of_other_names_and_a_lookup_between() -> None:
    table = embedding.TableConfig(4, 2, name="t")
    layer = TPUEmbedding([embedding.FeatureConfig(table=table), embedding.FeatureConfig(table=table)], None)
    words, ids = tf.keras.Input((), dtype=tf.string, name="w"), tf.keras.Input((), dtype=tf.int64, name="i")
    lookup = tf.keras.layers.StringLookup(vocabulary=["x"])
    model = tf.keras.Model([words, ids], layer([lookup(words), ids]))
    first, second = model_inputs(model).leaves
    assert (first.ids_of, first.lookup) == ("0", lookup)
    assert (second.ids_of, second.lookup) == ("1", None)


def test_the_graph_tells_weights() -> None:
    layer = TPUEmbedding({"f": embedding.FeatureConfig(table=embedding.TableConfig(4, 2, name="t"))}, None)
    ids = tf.keras.Input((None,), dtype=tf.int32, ragged=True, name="ids")
    by = tf.keras.Input((None,), dtype=tf.float32, ragged=True, name="by")
    model = tf.keras.Model({"ids": ids, "by": by}, layer({"f": ids}, weights={"f": by}))
    assert {leaf.path: (leaf.ids_of, leaf.weights_of) for leaf in model_inputs(model).leaves} == {
        "ids": ("f", None),
        "by": (None, "f"),
    }


def test_calls_of_the_layer_in_other_models_do_not_count() -> None:
    layer = TPUEmbedding(embedding.FeatureConfig(table=embedding.TableConfig(4, 2, name="t")), None)
    models = []
    for name in ("one", "two"):
        given = tf.keras.Input((), dtype=tf.int32, name=name)
        models.append(tf.keras.Model({name: given}, layer(given)))
    assert fed(model_inputs(models[1])) == {"two": ("dense", "")}


def test_a_subclass_model_matches_the_end_of_a_path() -> None:
    model = subclass_model(tf, TPUEmbedding(film_config(tf), None))
    batch = {"ids": film_batch(tf), "age": tf.ones([3, 1])}
    assert fed(model_inputs(model, inputs=batch)) == {
        "age": ("dense", None),
        **{f"ids/{path}": value for path, value in FILM.items()},
    }


def test_feature_inputs_and_weight_inputs_say_the_rest() -> None:
    model = subclass_model(tf, TPUEmbedding(film_config(tf), None))
    batch = {"who": tf.constant([1]), "w": tf.ragged.constant([[1.0]])}
    found = model_inputs(model, inputs=batch, feature_inputs={"user": "who"}, weight_inputs={"film/seen": "w"})
    assert [(leaf.path, leaf.ids_of, leaf.weights_of) for leaf in found.leaves] == [
        ("w", None, "film/seen"),
        ("who", "user", None),
    ]
    with pytest.raises(ExportError, match="feature_inputs names feature 'user' and input 'x'; features are"):
        model_inputs(model, inputs=batch, feature_inputs={"user": "x"})
    with pytest.raises(ExportError, match="weight_inputs names feature 'x' and input 'w'"):
        model_inputs(model, inputs=batch, weight_inputs={"x": "w"})
