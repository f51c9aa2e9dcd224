"""keras-rs layers: their tables and lookups, exported and compared with the layer's own answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model_export.errors import ExportError
from tests.unit.model_export.layers.late import Late, tf

pytestmark = pytest.mark.tf

KerasRsSource = Late("model_export.layers.keras_rs", "KerasRsSource")
lookup_entry = Late("model_export.graphs.lookup_features", "lookup_entry")
LookupPlan = Late("model_export.graphs.source", "LookupPlan")


@pytest.fixture(scope="module")
def keras_rs() -> Any:
    """Imports keras_rs, or skips the tests; the project does not depend on it."""
    return pytest.importorskip("keras_rs", reason="keras-rs is not installed")


def layer_of(keras_rs: Any, *, combiner: str = "mean", width: int | None = 3) -> Any:
    """Returns a layer over two tables: lists of up to 3 film ids for a row, and one user in a nested structure."""
    layers = keras_rs.layers
    films = layers.TableConfig("films", 10, 4, combiner=combiner, placement="default_device")
    users = layers.TableConfig("users", 6, 2, combiner="sum", placement="default_device")
    return layers.DistributedEmbedding(
        {
            "seen": layers.FeatureConfig("seen", films, (None, width), (None, 4)),
            "who": {"user": layers.FeatureConfig("user", users, (None,), (None, 2))},
        }
    )


BATCH = {"seen": np.array([[1, 2, 3], [9, 9, 0]]), "who": {"user": np.array([5, 0])}}


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_lookups_are_the_layers_own(keras_rs: Any, combiner: str, tmp_path: Path) -> None:
    layer = layer_of(keras_rs, combiner=combiner)
    expected = layer(BATCH)
    source = KerasRsSource(layer)
    assert [(feature.name, feature.max_ids_per_row) for feature in source.spec.features] == [
        ("seen", 3),
        ("who_user", 1),
    ]
    parts = source.save(tmp_path / "m", LookupPlan({"lookup": lookup_entry(source.spec, "cpu")}, {}), [])
    assert set(parts.table_variables) == {"films", "users"}
    vectors = tf.saved_model.load(str(tmp_path / "m")).signatures["lookup"](
        seen__values=tf.constant(BATCH["seen"].ravel()),
        seen__row_splits=tf.constant([0, 3, 6], tf.int64),
        seen__weights=tf.zeros([0]),
        who_user=tf.constant(BATCH["who"]["user"]),
    )
    np.testing.assert_allclose(vectors["seen"], np.asarray(expected["seen"]), atol=1e-6)
    np.testing.assert_array_equal(vectors["who_user"], np.asarray(expected["who"]["user"]))
    np.testing.assert_array_equal(source.table_rows("films", 0, 10), np.asarray(layer.get_embedding_tables()["films"]))


def test_a_model_with_such_a_layer_gives_its_lookups(keras_rs: Any) -> None:
    import keras

    layer = layer_of(keras_rs)
    user = keras.Input((), dtype="int32", name="user")
    inputs = {"seen": keras.Input((3,), dtype="int32", name="seen"), "who": {"user": user}}
    model = keras.Model(inputs, layer(inputs))
    source = KerasRsSource(model, vocabularies={"who_user": list("abcdef")}, provenance={"data": "toy"})
    assert source.predict_names == ()
    assert source.spec.feature("who_user").id_dtype == "string"
    assert source.provenance == {"trained_with": "keras-rs DistributedEmbedding", "data": "toy"}
    with pytest.raises(ExportError, match="has no DistributedEmbedding layer"):
        KerasRsSource(keras.Sequential([keras.layers.Dense(1)]))


def test_what_does_not_fit_is_refused(keras_rs: Any) -> None:
    with pytest.raises(ExportError, match="is not built yet"):
        KerasRsSource(layer_of(keras_rs))
    layer = layer_of(keras_rs, width=None)
    layer(BATCH)
    with pytest.raises(ExportError, match="feature 'seen' has rows of any length; give its K"):
        KerasRsSource(layer)
    assert KerasRsSource(layer, max_ids_per_row={"seen": 7}).spec.feature("seen").max_ids_per_row == 7
    assert (
        KerasRsSource(layer, max_ids_per_row={"seen": 7}, on_too_many_ids="truncate").spec.features[0].on_too_many_ids
        == "truncate"
    )
    with pytest.raises(ExportError, match=r"vocabularies names \['x'\]; the features are"):
        KerasRsSource(layer, max_ids_per_row={"seen": 7}, vocabularies={"x": ["a"]})
