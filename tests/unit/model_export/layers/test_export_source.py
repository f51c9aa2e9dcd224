"""Exports models that have layers: their inputs and outputs, what is saved, which answers it gives, what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model_export.errors import ExportError
from tests.toy_model import manifest_of
from tests.unit.model_export.late import Late, TPUEmbedding, embedding, legacy, tables, tf, tfrs
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
    manifest = manifest_of(export(keyed_model(), tmp_path, table_dtype="int8", max_ids_per_row=4))
    assert {table.dtype for table in manifest.tables.values()} == {"int8"}
    assert {name for name, parity in manifest.parity.items() if parity["cases"]} == set(manifest.signatures)


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


class Tagged:
    """Makes models of one feature `tag` that call the layer as a test says."""

    def __init__(self, length: int = 0) -> None:
        table = embedding.TableConfig(4, 2, name="t", combiner="sum")
        self.layer = TPUEmbedding({"tag": embedding.FeatureConfig(table=table, max_sequence_length=length)}, None)

    def model(self, call: Any) -> Any:
        """Returns a subclassed Keras model that calls `call` with the layer and the inputs."""
        layer = self.layer

        class Model(tf.keras.Model):  # type: ignore[misc]
            """The layer and a call."""

            def __init__(self) -> None:
                super().__init__()
                self.embedding_layer = layer

            def call(self, inputs: Any) -> Any:
                """Calls the test's function with the layer and the inputs."""
                return call(self.embedding_layer, inputs)

        return Model()


def rows(values: list[list[float]], dtype: Any = None) -> Any:
    """Returns ragged rows."""
    return tf.ragged.constant(values, dtype=dtype or tf.int64)


def test_weights_may_be_left_out() -> None:
    tagged = Tagged()
    model = tagged.model(lambda layer, x: layer({"tag": x["tag"]}, {"tag": x["by"]})["tag"])
    batch = {"tag": rows([[1, 2], [3]]), "by": rows([[0.5, 2.0], [3.0]], tf.float32)}
    source = LayerSource(model, inputs=batch, weight_inputs={"tag": "by"})
    ids = {"tag__values": np.array([1, 2, 3]), "tag__row_splits": np.array([0, 2, 3])}
    table = next(iter(tagged.layer.embedding_tables.values())).numpy()
    for extra, weights in (({}, None), ({"tag__weights": np.array([0.5, 2.0, 3.0])}, [[0.5, 2.0], [3.0]])):
        answer = source.predict("serving_default", {**ids, **extra})["output_1"]
        np.testing.assert_allclose(answer, combined(table, [[1, 2], [3]], "sum", weights), atol=1e-6)
    with pytest.raises(tf.errors.InvalidArgumentError, match="tag__weights: one weight per id"):
        source.predict("serving_default", {**ids, "tag__weights": np.array([0.5])})


def test_weights_of_a_sequence_are_refused() -> None:
    model = Tagged(length=2).model(lambda layer, x: layer({"tag": x["tag"]})["tag"])
    batch = {"tag": rows([[1]]), "by": rows([[0.5]], tf.float32)}
    source = LayerSource(model, inputs=batch, weight_inputs={"tag": "by"})
    with pytest.raises(ExportError, match="input 'by' weighs feature 'tag', whose ids are not combined"):
        source.predict("serving_default", {})


def test_ragged_inputs_that_feed_no_feature_are_refused() -> None:
    model = Tagged().model(lambda layer, x: layer({"tag": x["tag"]})["tag"])
    source = LayerSource(model, inputs={"tag": rows([[1]]), "by": rows([[0.5]], tf.float32)})
    assert source.predict_names == ("serving_default",)
    with pytest.raises(
        ExportError, match="input 'by' of the model is ragged and feeds no feature; .*model-export adopt"
    ):
        source.predict("serving_default", {})


def test_two_inputs_of_one_name_are_refused() -> None:
    model = Tagged().model(lambda layer, x: layer({"tag": x["a"]["tag"]})["tag"])
    source = LayerSource(
        model,
        inputs={"a": {"tag": rows([[1]])}, "tag__values": tf.ones([1])},
        feature_inputs={"tag": "a/tag"},
        names={"tag": "tag"},
    )
    names = set(source._predict_inputs().tensor_specs())
    assert names == {"tag__values", "tag__row_splits", "tag_values"}
    clash = LayerSource(
        model,
        inputs={"a": {"tag": tf.constant([1])}, "x": tf.ones([1])},
        feature_inputs={"tag": "a/tag"},
        names={"tag": "x"},
    )
    with pytest.raises(ExportError, match="two inputs of the model become 'x'; rename a feature with names="):
        clash._predict_inputs().tensor_specs()


def test_words_of_a_model_need_its_vocabulary() -> None:
    def call(layer: Any, inputs: Any) -> Any:
        return layer({"tag": inputs["tag"].with_values(tf.strings.to_number(inputs["tag"].values, tf.int64))})["tag"]

    model = Tagged().model(call)
    ids = {"tag__values": np.array([1]), "tag__row_splits": np.array([0, 1])}
    source = LayerSource(model, inputs={"tag": rows([["1"]], tf.string)})
    with pytest.raises(ExportError, match="the model takes string keys of feature 'tag', its vocabulary has int64"):
        source.predict("serving_default", ids)
    keyed = LayerSource(model, inputs={"tag": rows([["1"]], tf.string)}, vocabularies={"tag": ["0", "1", "2", "3"]})
    words = {**ids, "tag__values": np.array([b"3"], object)}
    table = next(iter(model.embedding_layer.embedding_tables.values())).numpy()
    np.testing.assert_allclose(keyed.predict("serving_default", words)["output_1"], table[[3]], atol=1e-6)


MODULE = "model_export.layers.predict_inputs"
ServingModule, output_namer = (Late(MODULE, name) for name in ("ServingModule", "output_namer"))


def subclass() -> Any:
    """Returns a subclass model, which declares no outputs."""

    class Model(tf.keras.Model):  # type: ignore[misc]
        """Nothing."""

    return Model(name="mine")


def test_outputs_are_named_as_keras_names_them() -> None:
    named, one = output_namer(subclass()), tf.ones([1])
    assert list(named(one)) == ["output_1"]
    assert list(named([one, one])) == ["output_1", "output_2"]
    assert list(named({"a/b": one})) == ["a_b"]
    inputs = tf.keras.Input((1,))
    layers = [tf.keras.layers.Dense(1, name=name) for name in ("x", "y")]
    model = tf.keras.Model(inputs, [layer(inputs) for layer in layers])
    assert list(output_namer(model)(model(tf.ones([1, 1])))) == ["x", "y"]


def test_a_ragged_output_is_refused() -> None:
    with pytest.raises(ExportError, match="output 'output_1' of 'mine' is a RaggedTensor, wanted a tensor"):
        output_namer(subclass())(tf.ragged.constant([[1]]))


def test_what_functions_read_is_kept_and_nothing_else() -> None:
    model = subclass()
    table = tf.Variable(tf.ones([2, 2]), name="t")
    read = [tf.Variable(float(number), name="same") for number in range(2)]
    model.unread = tf.Variable(3.0, name="unread")
    model.lookup = tf.keras.layers.StringLookup(vocabulary=["a"])
    module = ServingModule({"t": table}, {})
    function = tf.function(
        lambda words: read[0] + read[1] + tf.reduce_sum(table) + tf.cast(model.lookup(words), tf.float32),
        input_signature=[tf.TensorSpec([None], tf.string)],
    )
    module.attach(model, [function])
    assert {name: id(variable) for name, variable in module.dense.items()} == {
        "same": id(read[0]),
        "same_1": id(read[1]),
    }
    assert len(module.resources) == 1
