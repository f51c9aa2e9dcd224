"""Exports models that have layers: what is saved, which answers it gives, and what the exporter's checks say."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model_export.errors import ExportError
from service.artifact.manifest import Manifest
from tests.unit.model_export.layers.late import Late, TPUEmbedding, embedding, legacy, tables, tf, tfrs
from tests.unit.model_export.layers.reference import (
    combined,
    film_batch,
    film_config,
    functional_model,
    labels,
    loss,
    subclass_model,
)

pytestmark = pytest.mark.tf

LayerSource = Late("model_export.layers.export_source", "LayerSource")
export = Late("model_export.export_model", "export")
lookup_entry = Late("model_export.graphs.source", "lookup_entry")
LookupPlan = Late("model_export.graphs.source", "LookupPlan")
REQUEST = {
    "user": np.array([1, 9, 1]),
    "film_seen__values": np.array([1, 1, 2, 7]),
    "film_seen__row_splits": np.array([0, 3, 3, 4]),
    "film_clicks__values": np.array([0, 1, 2, 3, 4]),
    "film_clicks__row_splits": np.array([0, 1, 5, 5]),
}


def keyed_model() -> Any:
    """Returns a functional model with inputs of words, weighted sparse ids, one id of shape [B, 1], and two numbers."""
    table = embedding.TableConfig(6, 3, name="words", combiner="mean")
    config = {
        "word": embedding.FeatureConfig(table=table),
        "tag": embedding.FeatureConfig(table=table),
        "one": embedding.FeatureConfig(table=table),
    }
    inputs = {
        "word": tf.keras.Input((None,), dtype=tf.string, ragged=True, name="word"),
        "tag": tf.keras.Input((None,), dtype=tf.int64, sparse=True, name="tag"),
        "tag_weight": tf.keras.Input((None,), dtype=tf.float32, sparse=True, name="tag_weight"),
        "one": tf.keras.Input((1,), dtype=tf.int32, name="one"),
        "age": tf.keras.Input((2,), name="age"),
    }
    lookup = tf.keras.layers.StringLookup(vocabulary=["x", "y", "z"])
    layer = TPUEmbedding(config, "adagrad")
    vectors = layer(
        {"word": lookup(inputs["word"]), "tag": inputs["tag"], "one": inputs["one"]},
        weights={"word": None, "tag": inputs["tag_weight"], "one": None},
    )
    flat = [vectors["word"], vectors["tag"], tf.keras.layers.Flatten()(vectors["one"]), inputs["age"]]
    joined = tf.keras.layers.Concatenate()(flat)
    return tf.keras.Model(inputs, {"score": tf.keras.layers.Dense(1)(joined), "vector": joined})


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, Path]]:
    """Yields the keyed model, and the folder that export() wrote from it for both devices and for a TPU."""
    model = keyed_model()
    folder = export(
        model,
        tmp_path_factory.mktemp("keyed"),
        lookup_device=["cpu", "tpu_tensor_core"],
        batch_sizes=(4,),
        export_to_tpu=True,
        max_ids_per_row=4,
        history={"loss": [2.0, 1.5]},
        provenance={"data": "toy"},
    )
    yield model, folder


def test_the_exporters_checks_pass_for_all_signatures(artifact: tuple[Any, Path]) -> None:
    manifest = json.loads((artifact[1] / "assets.extra" / "lookup_manifest.json").read_text())
    assert set(manifest["signatures"]) == {"lookup", "lookup_tpu_tensor_core", "serving_default", "serve_examples"}
    assert set(manifest["parity"]) >= set(manifest["signatures"])
    assert manifest["provenance"]["history"] == [{"epoch": 1, "loss": 2.0}, {"epoch": 2, "loss": 1.5}]
    assert manifest["provenance"]["data"] == "toy"
    assert manifest["provenance"]["table_optimizers"] == {"words": "Adagrad"}


def test_each_variable_is_saved_once_and_without_slots(artifact: tuple[Any, Path]) -> None:
    found = {key for key, _ in tf.train.list_variables(str(artifact[1] / "variables" / "variables"))}
    names = {key.removesuffix("/.ATTRIBUTES/VARIABLE_VALUE") for key in found if not key.startswith("_")}
    assert {name for name in names if name.startswith("tables/")} == {"tables/words"}
    assert len([name for name in names if "kernel" in name]) == 1
    assert not [name for name in names if "accumulator" in name or "SLOT" in name]


def test_it_answers_as_the_model(artifact: tuple[Any, Path], loaded: Callable[[Path], Any]) -> None:
    model, folder = artifact
    found = loaded(folder).signatures["serving_default"]
    answer = found(
        word__values=tf.constant([b"z", b"?", b"x"]),
        word__row_splits=tf.constant([0, 2, 3], tf.int64),
        tag__values=tf.constant([1, 2, 3], tf.int64),
        tag__row_splits=tf.constant([0, 3, 3], tf.int64),
        tag__weights=tf.constant([0.5, 2.0, -1.0]),
        one=tf.constant([4, 5], tf.int64),
        age=tf.constant([[1.0, 2.0], [3.0, 4.0]]),
    )
    words = tables(model.layers[[type(layer) for layer in model.layers].index(TPUEmbedding.found())])["words"]
    table = words.parameters.numpy()
    # Tag 3 has weight -1; a mean leaves out ids with a weight of 0 or less.
    by_hand = [
        combined(table, [[3, 0], [1]], "mean"),
        combined(table, [[1, 2], []], "mean", [[0.5, 2.0], []]),
        table[[4, 5]],
        np.array([[1.0, 2.0], [3.0, 4.0]]),
    ]
    np.testing.assert_allclose(answer["vector"], np.concatenate(by_hand, axis=1), atol=1e-6)
    sparse = tf.SparseTensor([[0, 0], [0, 1], [0, 2]], tf.constant([1, 2, 3], tf.int64), [2, 3])
    direct = model(
        {
            "word": tf.ragged.constant([["z", "?"], ["x"]]),
            "tag": sparse,
            "tag_weight": tf.SparseTensor(sparse.indices, [0.5, 2.0, -1.0], [2, 3]),
            "one": tf.constant([[4], [5]]),
            "age": tf.constant([[1.0, 2.0], [3.0, 4.0]]),
        }
    )
    np.testing.assert_allclose(answer["score"], direct["score"], atol=1e-6)


def test_examples_carry_ids_weights_words_and_numbers(
    artifact: tuple[Any, Path], loaded: Callable[[Path], Any]
) -> None:
    model, folder = artifact
    feature = tf.train.Feature

    def field(values: list[Any]) -> Any:
        if isinstance(values[0], bytes):
            return feature(bytes_list=tf.train.BytesList(value=values))
        if isinstance(values[0], float):
            return feature(float_list=tf.train.FloatList(value=values))
        return feature(int64_list=tf.train.Int64List(value=values))

    rows = [
        {"word": [b"z", b"?"], "tag": [1, 2], "tag__weights": [0.5, 2.0], "one": [4], "age": [1.0, 2.0]},
        {"word": [b"x"], "one": [5], "age": [3.0, 4.0]},
    ]
    examples = [
        tf.train.Example(features=tf.train.Features(feature={k: field(v) for k, v in row.items()})).SerializeToString()
        for row in rows
    ]
    signatures = loaded(folder).signatures
    answer = signatures["serve_examples"](examples=tf.constant(examples))
    same = signatures["serving_default"](
        word__values=tf.constant([b"z", b"?", b"x"]),
        word__row_splits=tf.constant([0, 2, 3], tf.int64),
        tag__values=tf.constant([1, 2], tf.int64),
        tag__row_splits=tf.constant([0, 2, 2], tf.int64),
        tag__weights=tf.constant([0.5, 2.0]),
        one=tf.constant([4, 5], tf.int64),
        age=tf.constant([[1.0, 2.0], [3.0, 4.0]]),
    )
    np.testing.assert_array_equal(answer["vector"], same["vector"])
    with pytest.raises(tf.errors.InvalidArgumentError, match="is required but could not be found"):
        signatures["serve_examples"](examples=tf.constant([tf.train.Example().SerializeToString()]))


def test_the_tpu_meta_graph_holds_the_padded_lookup_for_a_core(artifact: tuple[Any, Path]) -> None:
    from tensorflow.python.saved_model import loader_impl

    graphs = loader_impl.parse_saved_model(str(artifact[1])).meta_graphs
    by_tags = {tuple(sorted(graph.meta_info_def.tags)): graph for graph in graphs}
    assert set(by_tags) == {("serve",), ("serve", "tpu")}
    on_tpu = by_tags["serve", "tpu"]
    operations = {node.op for function in on_tpu.graph_def.library.function for node in function.node_def}
    assert "TPUPartitionedCall" in operations
    assert set(by_tags["serve",].signature_def) == set(on_tpu.signature_def)


@pytest.mark.parametrize("build", [functional_model, subclass_model], ids=["functional", "subclass"])
def test_functional_and_subclass_models_answer_alike(build: Any, tmp_path: Path) -> None:
    model = build(tf, TPUEmbedding(film_config(tf), legacy.Adagrad(0.1)))
    model.compile(legacy.Adagrad(0.1), loss(tf))
    history = model.fit(tf.data.Dataset.from_tensors((film_batch(tf), labels(tf))), epochs=2, verbose=0)
    source = LayerSource(model, history=history)
    assert [entry["epoch"] for entry in source.provenance["history"]] == [1, 2]
    parts = source.save(
        tmp_path / "m", LookupPlan({"lookup": lookup_entry(source.spec, "cpu")}, {}), ["serving_default"]
    )
    assert parts.table_variables["users"] == "tables/users/.ATTRIBUTES/VARIABLE_VALUE"
    assert parts.predict["serving_default"].features == ("film_clicks", "film_seen", "user")
    found = tf.saved_model.load(str(tmp_path / "m")).signatures["serving_default"]
    answer = found(**{name: tf.constant(value) for name, value in REQUEST.items()})
    name = "logit" if build is functional_model else "output_1"
    (only,) = answer
    assert only == name
    np.testing.assert_allclose(answer[name], model(film_batch(tf)), atol=1e-6)
    np.testing.assert_allclose(source.predict("serving_default", REQUEST)[name], model(film_batch(tf)), atol=1e-6)


def test_an_id_too_large_for_int32_stays_too_large(tmp_path: Path) -> None:
    source = LayerSource(functional_model(tf, TPUEmbedding(film_config(tf), None)))
    with pytest.raises(tf.errors.InvalidArgumentError, match="2147483647 is not in"):
        source.predict("serving_default", {**REQUEST, "user": np.array([1, 2**32 + 1, 1])})


@pytest.mark.parametrize("is_ours", [True, False], ids=["ours", "recommenders"])
def test_a_layer_alone_has_lookups(is_ours: bool, tmp_path: Path) -> None:
    kind = TPUEmbedding.found() if is_ours else tfrs.layers.embedding.TPUEmbedding
    layer = kind(film_config(tf), None)
    expected = layer(film_batch(tf))
    source = LayerSource(layer, kinds={"user": "dense"})
    assert source.predict_names == ()
    source.save(tmp_path / "m", LookupPlan({"lookup": lookup_entry(source.spec, "cpu")}, {}), [])
    found = tf.saved_model.load(str(tmp_path / "m")).signatures["lookup"]
    vectors = found(film_seen__weights=tf.zeros([0]), **{name: tf.constant(value) for name, value in REQUEST.items()})
    np.testing.assert_array_equal(vectors["user"], expected["user"])
    np.testing.assert_allclose(vectors["film_seen"], expected["film"]["seen"], atol=1e-6)
    np.testing.assert_array_equal(vectors["film_clicks"], expected["film"]["clicks"])
    np.testing.assert_array_equal(source.table_rows("users", 2, 5), tables(layer)["users"].parameters.numpy()[2:5])
    with pytest.raises(ExportError, match="lookups only"):
        source.predict("serving_default", {})


def test_two_layers_count_as_one(tmp_path: Path) -> None:
    layers = [
        TPUEmbedding({name: embedding.FeatureConfig(table=embedding.TableConfig(4, 2, name=f"t_{name}"))}, None)
        for name in ("a", "b")
    ]
    inputs = {name: tf.keras.Input((), dtype=tf.int32, name=name) for name in ("a", "b")}
    vectors = [layer({name: inputs[name]})[name] for name, layer in zip(inputs, layers, strict=True)]
    source = LayerSource(tf.keras.Model(inputs, tf.keras.layers.Add()(vectors)))
    assert [table.name for table in source.spec.tables] == ["t_a", "t_b"]
    same = [TPUEmbedding({"a": embedding.FeatureConfig(table=embedding.TableConfig(4, 2, name=n))}, None) for n in "xy"]
    model = tf.keras.Model(inputs, [layer({"a": inputs["a"]}) for layer in same])
    with pytest.raises(ExportError, match=r"two TPUEmbedding layers have features \['a'\]"):
        LayerSource(model)


def test_a_vocabulary_maps_words_for_a_model_of_rows(tmp_path: Path) -> None:
    source = LayerSource(
        functional_model(tf, TPUEmbedding(film_config(tf), None)), vocabularies={"user": [f"u{n}" for n in range(10)]}
    )
    words = np.array([b"u1", b"u9", b"u1"], object)
    answer = source.predict("serving_default", {**REQUEST, "user": words})
    plain = LayerSource(source._model).predict("serving_default", REQUEST)
    np.testing.assert_array_equal(answer["logit"], plain["logit"])


def test_what_can_not_be_served_is_refused(tmp_path: Path) -> None:
    source = LayerSource(functional_model(tf, TPUEmbedding(film_config(tf), None)))
    padded = lookup_entry(source.spec, "tpu_tensor_core", batch_sizes=(4,))
    with pytest.raises(ExportError, match=r"give max_ids_per_row= for \['film_seen'\]"):
        source.save(tmp_path / "m", LookupPlan({"lookup": padded}, {}), [])
    plain = LookupPlan({"lookup": lookup_entry(source.spec, "cpu")}, {}, export_to_tpu=True)
    with pytest.raises(ExportError, match="only the tpu_tensor_core lookup runs on a TPU core"):
        source.save(tmp_path / "m", plain, [])
    with pytest.raises(ExportError, match=r"no signatures \['score'\]; it has \['serving_default', 'serve_examples'\]"):
        source.save(tmp_path / "m", plain, ["score"])
    with pytest.raises(ExportError, match="has no TPUEmbedding layer"):
        LayerSource(tf.keras.Sequential([tf.keras.layers.Dense(1)]))


def test_ids_of_several_columns_are_refused() -> None:
    inputs = tf.keras.Input((3,), dtype=tf.int32)
    layer = TPUEmbedding(embedding.FeatureConfig(table=embedding.TableConfig(4, 2, name="t")), None)
    with pytest.raises(ExportError, match=r"a lookup takes one id per row \(\[B\] or \[B, 1\]\)"):
        LayerSource(tf.keras.Model(inputs, layer(inputs)))


def test_without_examples_where_an_input_has_no_fixed_length() -> None:
    ids, text = tf.keras.Input((), dtype=tf.int32, name="id"), tf.keras.Input((), dtype=tf.string, name="text")
    layer = TPUEmbedding({"id": embedding.FeatureConfig(table=embedding.TableConfig(4, 2, name="t"))}, None)
    length = tf.keras.layers.Lambda(lambda words: tf.cast(tf.strings.length(words), tf.float32)[:, None])(text)
    model = tf.keras.Model({"id": ids, "text": text}, tf.keras.layers.Concatenate()([layer({"id": ids})["id"], length]))
    assert LayerSource(model).predict_names == ("serving_default",)


def test_lookups_read_tables_of_fewer_bits_and_predictions_the_layers(tmp_path: Path) -> None:
    manifest = Manifest.read(export(keyed_model(), tmp_path, table_dtype="int8", max_ids_per_row=4))
    assert manifest is not None
    assert {table.dtype for table in manifest.tables.values()} == {"int8"}
    assert {name for name, parity in manifest.parity.items() if parity["cases"]} == set(manifest.signatures)
