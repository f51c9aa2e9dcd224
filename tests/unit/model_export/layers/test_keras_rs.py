"""keras-rs layers: their tables and lookups, exported and compared with the layer's own answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model_export.errors import ExportError
from tests.toy_model import manifest_of
from tests.unit.model_export.late import Late, tf

pytestmark = pytest.mark.tf

KerasRsSource = Late("model_export.layers.keras_rs", "KerasRsSource")
lookup_entry = Late("model_export.graphs.source", "lookup_entry")
export = Late("model_export.export_model", "export")
open_signatures = Late("model_export.graphs.signature_runner", "open_signatures")
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


def functional(layer: Any) -> Any:
    """Returns a functional Keras 3 model that scores what the layer looks up; its output is named `score`."""
    import keras

    user = keras.Input((), dtype="int32", name="user")
    inputs = {"seen": keras.Input((3,), dtype="int32", name="seen"), "who": {"user": user}}
    vectors = layer(inputs)
    joined = keras.layers.Concatenate()([vectors["seen"], vectors["who"]["user"]])
    return keras.Model(inputs, {"score": keras.layers.Dense(1)(joined)})


def subclassed(layer: Any) -> Any:
    """Returns a subclassed Keras 3 model that was called once; it does not tell its inputs."""
    import keras

    class Scores(keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.vectors, self.dense = layer, keras.layers.Dense(1)

        def call(self, features: Any) -> Any:
            vectors = self.vectors(features)
            return self.dense(keras.ops.concatenate([vectors["seen"], vectors["who"]["user"]], axis=1))

    model = Scores()
    model(BATCH)
    return model


def test_a_model_with_such_a_layer_gives_its_lookups(keras_rs: Any) -> None:
    import keras

    source = KerasRsSource(
        functional(layer_of(keras_rs)),
        vocabularies={"person": list("abcdef")},
        names={"who_user": "person"},
        history={"loss": [0.5]},
        provenance={"data": "toy"},
    )
    assert source.spec.feature("person").id_dtype == "string"
    assert source.provenance == {
        "trained_with": "keras-rs DistributedEmbedding",
        "history": [{"epoch": 1, "loss": 0.5}],
        "data": "toy",
    }
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
    layer = layer_of(keras_rs)
    layer(BATCH)
    with pytest.raises(ExportError, match=r"names names \['x'\]; the features are"):
        KerasRsSource(layer, names={"x": "y"})
    with pytest.raises(ExportError, match="a DistributedEmbedding layer alone has lookups only"):
        KerasRsSource(layer, inputs=BATCH)
    with pytest.raises(TypeError, match=r"DistributedEmbedding \(KerasRsSource\) takes inputs, .* got .'kinds'"):
        export(layer, "m", kinds={})


@pytest.mark.parametrize(("build", "output"), [(functional, "score"), (subclassed, "output_0")])
def test_a_models_prediction_is_exported(keras_rs: Any, build: Any, output: str, tmp_path: Path) -> None:
    model = build(layer_of(keras_rs))
    artifact = export(model, tmp_path, inputs=BATCH if build is subclassed else None)
    manifest = manifest_of(artifact)
    assert {name: entry["reference"] for name, entry in manifest.parity.items()} == {
        "lookup": "oracle",
        "serving_default": "recorded answers",
    }
    with open_signatures(artifact) as runner:
        found = runner.run("serving_default", {"seen": BATCH["seen"], "who_user": BATCH["who"]["user"]})
    expected = model(BATCH)
    np.testing.assert_array_equal(found[output], np.asarray(expected["score"] if build is functional else expected))
    # Each table is saved once: the prediction reads the variable that the manifest describes.
    keys = [key for key, _ in tf.train.list_variables(str(artifact / "variables" / "variables"))]
    assert sorted(key.split("/.")[0] for key in keys if "kernel" not in key and "bias" not in key)[1:] == [
        "tables/films",
        "tables/users",
    ]


def test_a_prediction_is_never_left_out_silently(keras_rs: Any, tmp_path: Path) -> None:
    model = subclassed(layer_of(keras_rs))
    with pytest.raises(ExportError, match=r"does not tell its inputs: give inputs=.*signatures=\['lookup'\] exports"):
        export(model, tmp_path)
    assert not list(tmp_path.iterdir())
    manifest = manifest_of(export(model, tmp_path, signatures=["lookup"]))
    assert set(manifest.signatures) == {"lookup"}
