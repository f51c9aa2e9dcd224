"""Plain models of Keras 3 and tf_keras, exported in one call: served answers are those of model.predict."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model_export.errors import ExportError
from model_export.export_model import export
from service.artifact.manifest import Manifest
from service.core.native_servable import compile_native
from service.loading.loader import ServableLoader
from tests.toy_model import manifest_of
from tests.unit.model_export.late import late

with late():
    from model_export.adoption.adopt import adopt, print_spec

pytestmark = pytest.mark.tf

NAMES = ["ann", "bob", "cyd"]
# Row 0 is for users outside the vocabulary.
USERS = np.arange(16, dtype=np.float32).reshape(4, 4)
ITEMS = np.arange(10, dtype=np.float32).reshape(5, 2)
CREATED = datetime(2024, 5, 6, tzinfo=UTC)
# No signature is timed, because no server starts here, and only a server needs to know how fast a graph is.
UNTIMED: dict[str, Any] = {"measure": False, "clock": lambda: CREATED}


@pytest.fixture(params=["keras", "tf_keras"])
def keras(request: pytest.FixtureRequest, tf: Any) -> Any:
    """Imports one Keras, then the other; both live in one process."""
    return import_module(request.param)


@pytest.fixture
def keras3(tf: Any) -> Any:
    """Keras 3, on TensorFlow."""
    return import_module("keras")


def filled(keras: Any, rows: np.ndarray, name: str) -> Any:
    """Returns an Embedding layer with these rows."""
    return keras.layers.Embedding(*rows.shape, embeddings_initializer=keras.initializers.Constant(rows), name=name)


def ranker(keras: Any) -> Any:
    """Returns a functional model of names [B], item ids [B, 1] and prices [B, 1]."""
    user = keras.Input((), dtype="string", name="user")
    item = keras.Input((1,), dtype="int64", name="item")
    price = keras.Input((1,), name="price")
    users = filled(keras, USERS, "user_table")(keras.layers.StringLookup(vocabulary=NAMES)(user))
    items = keras.layers.Flatten()(filled(keras, ITEMS, "item_table")(item))
    x = keras.layers.Concatenate()([users, items, price])
    return keras.Model({"user": user, "item": item, "price": price}, keras.layers.Dense(1)(x), name="ranker")


def batch() -> dict[str, np.ndarray]:
    """Returns three rows for `ranker`; the last user is unknown."""
    return {
        "user": np.array(["bob", "ann", "nobody"], object),
        "item": np.array([[4], [0], [3]]),
        "price": np.array([[1], [2], [0.5]], np.float32),
    }


def served(artifact: Path, signature: str, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns the outputs that this project's server gives for a signature of an artifact."""
    servable = ServableLoader(frozenset({"serve"}), "auto", compile_native)("m", 1, artifact)
    assert servable.native is not None
    return servable.native.run(signature, inputs)


def test_a_functional_model_keeps_its_prediction_and_gets_a_lookup(keras: Any, tmp_path: Path, tf: Any) -> None:
    model = ranker(keras)
    # Keras 3 can not convert numpy arrays of strings, so the batch is given as tensors.
    expected = model({name: tf.constant(value) for name, value in batch().items()})
    lines: list[str] = []
    artifact = export(model, tmp_path / "m", say=lines.append, **UNTIMED)
    assert artifact == tmp_path / "m" / "1"
    assert any(line.startswith("lookup ") and "lookup, added" in line for line in lines)
    manifest = manifest_of(artifact)
    assert set(manifest.tables) == {"user_table", "item_table"}
    assert {name: entry.table for name, entry in manifest.features.items()} == {
        "user": "user_table",
        "item": "item_table",
    }
    assert manifest.signatures["serving_default"].kind == "predict"
    assert set(manifest.signatures["lookup"].features) == {"user", "item"}
    assert manifest.provenance["adopted_from"] == "ranker"
    assert manifest.provenance["created"].startswith("2024-05-06")
    (score,) = served(artifact, "serving_default", batch()).values()
    # One score is near 0, where the rounding of its terms is large beside it.
    np.testing.assert_allclose(score, np.asarray(expected), rtol=1e-6, atol=1e-6)
    rows = served(artifact, "lookup", {"user": np.array([2, 1, 0]), "item": np.array([4, 0, 3])})
    assert rows["user"].tobytes() == USERS[[2, 1, 0]].tobytes()
    assert rows["item"].tobytes() == ITEMS[[4, 0, 3]].tobytes()
    assert (artifact / "assets.extra/vocabulary_user.txt").read_text().split() == NAMES


def test_a_sequential_model_names_its_feature_after_the_layer(keras: Any, tmp_path: Path) -> None:
    layers = [keras.Input((), dtype="int64"), filled(keras, ITEMS, "genre"), keras.layers.Dense(1)]
    if keras.__name__ == "tf_keras":
        layers[0] = keras.layers.InputLayer((), dtype="int64")
    model = keras.Sequential(layers)
    ids = np.array([3, 0, 3])
    artifact = export(model, tmp_path / "m", version=7, **UNTIMED)
    assert artifact.name == "7"
    manifest = manifest_of(artifact)
    assert set(manifest.signatures["lookup"].features) == set(manifest.features) == {"genre"}
    assert served(artifact, "lookup", {"genre": ids})["genre"].tobytes() == ITEMS[ids].tobytes()
    given = manifest.signatures["serving_default"].features["genre"].ids
    (scores,) = served(artifact, "serving_default", {given: ids}).values()
    np.testing.assert_allclose(scores, model.predict(ids, verbose=0), rtol=1e-6)


def test_a_model_whose_answer_is_a_lookup_is_one_itself(keras: Any, tmp_path: Path) -> None:
    item = keras.Input((), dtype="int64", name="item")
    model = keras.Model({"item": item}, filled(keras, ITEMS, "item_table")(item))
    artifact = export(model, tmp_path / "m", **UNTIMED)
    assert manifest_of(artifact).signatures["serving_default"].kind == "lookup"
    ids = np.array([4, 1])
    (rows,) = served(artifact, "serving_default", {"item": ids}).values()
    assert rows.tobytes() == model.predict({"item": ids}, verbose=0).tobytes() == ITEMS[ids].tobytes()


def subclassed(keras: Any) -> Any:
    """Returns a subclassed Keras model of a dict of inputs, which has been called once."""

    class Scorer(keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(name="scorer")
            self.items = filled(keras, ITEMS, "item_table")
            self.score = keras.layers.Dense(1)

        def call(self, inputs: Any) -> Any:
            return self.score(self.items(inputs["item"])) * inputs["price"]

    model = Scorer()
    model({"item": np.array([0]), "price": np.ones((1, 1), np.float32)})
    return model


def test_a_subclassed_model_is_told_its_inputs(keras: Any, tmp_path: Path, tf: Any) -> None:
    model = subclassed(keras)
    inputs = {"item": tf.TensorSpec([None], tf.int64), "price": tf.TensorSpec([None, 1], tf.float32)}
    artifact = export(model, tmp_path / "m", inputs=inputs, **UNTIMED)
    data = {"item": np.array([2, 4]), "price": np.array([[3], [0.5]], np.float32)}
    assert served(artifact, "lookup", {"item": data["item"]})["item"].tobytes() == ITEMS[[2, 4]].tobytes()
    (scores,) = served(artifact, "serving_default", data).values()
    np.testing.assert_allclose(scores, model.predict(data, verbose=0), rtol=1e-6)


def test_keys_of_integers_hashes_and_one_hot_categories(keras3: Any, tmp_path: Path, tf: Any) -> None:
    layers = keras3.layers
    code = keras3.Input((), dtype="int64", name="code")
    word = keras3.Input((), dtype="string", name="word")
    kind = keras3.Input((1,), dtype="int64", name="kind")
    parts = [
        filled(keras3, USERS, "code_table")(layers.IntegerLookup(vocabulary=[10, 20, 30])(code)),
        filled(keras3, ITEMS, "word_table")(layers.Hashing(num_bins=5)(word)),
        layers.CategoryEncoding(num_tokens=3, output_mode="one_hot")(kind),
    ]
    model = keras3.Model({"code": code, "word": word, "kind": kind}, layers.Dense(1)(layers.Concatenate()(parts)))
    artifact = export(model, tmp_path / "m", **UNTIMED)
    manifest = manifest_of(artifact)
    assert set(manifest.tables) == {"code_table", "word_table"}
    # The ids of an added lookup signature are rows. Nothing tells an integer key from a row, so "code" is left out.
    assert set(manifest.signatures["lookup"].features) == {"word"}
    data = {"code": np.array([20, 7]), "word": np.array(["a", "b"], object), "kind": np.array([[2], [0]])}
    (scores,) = served(artifact, "serving_default", data).values()
    expected = model({name: tf.constant(value) for name, value in data.items()})
    np.testing.assert_allclose(scores, np.asarray(expected), rtol=1e-6)


def test_nan_refuses_the_export_unless_allowed(keras3: Any, tmp_path: Path) -> None:
    rows = ITEMS.copy()
    rows[1, 0] = np.nan
    model = keras3.Sequential([keras3.Input((), dtype="int64"), filled(keras3, rows, "genre"), keras3.layers.Dense(1)])
    with pytest.raises(ExportError, match="table 'genre' holds 1 numbers that are NaN or infinity"):
        export(model, tmp_path / "m", **UNTIMED)
    assert not (tmp_path / "m").exists()
    artifact = export(model, tmp_path / "m", allow_nonfinite=True, **UNTIMED)
    assert manifest_of(artifact).provenance["nonfinite_values"] == {"genre": 1}


def test_extra_files_travel(keras3: Any, tmp_path: Path) -> None:
    (tmp_path / "films.csv").write_text("1,Alien\n")
    model = keras3.Sequential([keras3.Input((), dtype="int64"), filled(keras3, ITEMS, "genre"), keras3.layers.Dense(1)])
    artifact = export(model, tmp_path / "m", extra_files={"films.csv": tmp_path / "films.csv"}, **UNTIMED)
    assert (artifact / "assets.extra/films.csv").read_text() == "1,Alien\n"
    assert manifest_of(artifact).files["assets.extra/films.csv"] == 8


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"lookup_device": "tpu_tensor_core"}, "lookup_device: it needs a TPUEmbedding or DistributedEmbedding layer"),
        ({"export_to_tpu": True}, "export_to_tpu: it needs a TPUEmbedding"),
        ({"batch_sizes": [1, 2]}, "batch_sizes: of padded lookups"),
        ({"signatures": ["lookup"]}, "signatures: the model keeps its own, and `lookup` is added; leave it out"),
        ({"table_dtype": "int8"}, "table_dtype: export first, then run `model-export compact VERSION --table_dtype"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_plain_layers_can_not_have_is_refused(
    keras3: Any, options: dict[str, Any], told: str, tmp_path: Path
) -> None:
    model = keras3.Sequential([keras3.Input((), dtype="int64"), keras3.layers.Embedding(5, 2)])
    with pytest.raises(ExportError, match=told):
        export(model, tmp_path / "m", **options)
    assert not (tmp_path / "m").exists()


def test_a_model_that_can_not_be_exported_says_what_to_do(keras: Any, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="Sequential 'late' is not built yet: fit it, or call it once on data"):
        export(keras.Sequential([keras.layers.Dense(1)], name="late"), tmp_path / "m")
    number = keras.Input((2,), name="number")
    dense = keras.Model(number, keras.layers.Dense(1)(number), name="dense")
    with pytest.raises(ExportError, match="'dense': no signature reads rows of a variable, so there is nothing to"):
        export(dense, tmp_path / "m", **UNTIMED)
    with pytest.raises(TypeError, match=r"takes inputs, measure, say, got \['max_ids_per_row'\]"):
        export(dense, tmp_path / "m", max_ids_per_row=3)
    (tmp_path / "m" / "1").mkdir(parents=True)
    with pytest.raises(ExportError, match="exists"):
        export(dense, tmp_path / "m", version=1)


def test_a_model_of_keras_3_that_does_not_tell_its_inputs(keras3: Any, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="'scorer' does not tell its inputs; pass the specs of its inputs: inputs="):
        export(subclassed(keras3), tmp_path / "m", **UNTIMED)
    called = keras3.Sequential([keras3.layers.Embedding(5, 2)], name="called")
    called(np.array([1, 2]))
    with pytest.raises(ExportError, match="'called' does not tell its inputs"):
        export(called, tmp_path / "m", **UNTIMED)


def test_a_part_that_keras_can_not_save_is_told_of(keras3: Any, tmp_path: Path) -> None:
    class Odd(keras3.layers.Layer):  # type: ignore[misc]
        def call(self, inputs: Any) -> Any:
            return inputs.numpy()

        def compute_output_shape(self, input_shape: Any) -> Any:
            return input_shape

    item = keras3.Input((), dtype="int64", name="item")
    model = keras3.Model(item, Odd()(filled(keras3, ITEMS, "item_table")(item)), name="odd")
    with pytest.raises(ExportError, match=r"Keras can not save Functional 'odd': [\s\S]*Leave that part out"):
        export(model, tmp_path / "m", **UNTIMED)
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize("suffix", ["keras", "h5"])
def test_a_file_of_a_model_is_exported_and_adopted_like_the_model(
    keras: Any, suffix: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / f"ranker.{suffix}"
    item = keras.Input((1,), dtype="int64", name="item")
    items = keras.Model(
        item, keras.layers.Flatten()(keras.layers.Embedding(5, 2, name="item_table")(item)), name="items"
    )
    # Keras can not load the vocabularies and constants that it writes into an .h5 file.
    model = ranker(keras) if suffix == "keras" else items
    with warnings.catch_warnings(action="ignore"):
        # Keras warns of its older format.
        model.save(file)
    capfd.readouterr()
    exported = Manifest.read(export(file, tmp_path / "exported", **UNTIMED))
    labels = {"item_table": list("abcde")}
    adopted = Manifest.read(adopt(file, out=tmp_path / "adopted", labels=labels, **UNTIMED))
    assert exported is not None and adopted is not None
    assert set(exported.tables) == ({"user_table", "item_table"} if suffix == "keras" else {"item_table"})
    assert exported.signatures == adopted.signatures
    assert list(adopted.labels) == ["item_table"] and not exported.labels
    assert "item_table" in print_spec(file)
    assert capfd.readouterr() == ("", "")
