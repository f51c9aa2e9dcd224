"""Feature configs become ModelSpecs, whose policies and vocabularies answer as TensorFlow's lookup and Keras do."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from model_export.errors import ExportError
from model_export.spec.features import FeatureSpec, TableSpec, VocabularySpec
from tests.unit.model_export.late import Late, embedding, tf
from tests.unit.model_export.layers.reference import film_config

pytestmark = pytest.mark.tf

MODULE = "model_export.layers.to_spec"
model_spec, flatten_with_paths, input_name = (
    Late(MODULE, name) for name in ("model_spec", "flatten_with_paths", "input_name")
)


def test_nested_paths_become_names() -> None:
    spec = model_spec(film_config(tf, combiner="sum"), kinds={"user": "dense"}, max_ids_per_row={"film_seen": 5})
    assert spec.tables == (TableSpec("films", 8, 2, "sum"), TableSpec("users", 10, 4, "mean"))
    assert spec.features == (
        FeatureSpec("film_clicks", "films", is_ragged=True, max_ids_per_row=3, max_sequence_length=3),
        FeatureSpec("film_seen", "films", is_ragged=True, max_ids_per_row=5),
        FeatureSpec("user", "users"),
    )


def test_lists_are_numbered_and_odd_names_are_made_fit() -> None:
    table = embedding.TableConfig(4, 2, name="my table/1")
    config = [embedding.FeatureConfig(table=table), {"a.b__c": embedding.FeatureConfig(table=table)}]
    spec = model_spec(config)
    assert [feature.name for feature in spec.features] == ["feature_0", "feature_1_a_b_c"]
    assert spec.tables[0].name == "my_table_1"


def test_a_lone_config_is_named_by_itself_or_its_table() -> None:
    table = embedding.TableConfig(4, 2, name="t")
    assert model_spec(embedding.FeatureConfig(table=table, name="x")).features[0].name == "x"
    assert model_spec(embedding.FeatureConfig(table=table)).features[0].name == "t"


def test_a_table_without_a_name_gets_the_layers_name_for_it() -> None:
    config = [embedding.FeatureConfig(table=embedding.TableConfig(4, 2)) for _ in range(2)]
    assert [table.name for table in model_spec(config).tables] == ["table_0", "table_1"]


def test_names_tells_features_apart() -> None:
    table = embedding.TableConfig(4, 2, name="t")
    config = {"a": {"b": embedding.FeatureConfig(table=table)}, "a_b": embedding.FeatureConfig(table=table)}
    with pytest.raises(ExportError, match="features 'a/b' and 'a_b' both become 'a_b'; rename one with names="):
        model_spec(config)
    with pytest.raises(ExportError, match=r"names renames \['x'\]"):
        model_spec({"a": config["a_b"]}, names={"x": "y"})
    assert model_spec({"a": config["a_b"]}, names={"a": "y"}).features[0].name == "y"


@pytest.mark.parametrize("kind", ["ragged", "sparse"])
@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
@pytest.mark.parametrize("is_safe", [True, False], ids=["validated", "unchecked"])
def test_policies_are_those_of_tensorflows_lookup(kind: Any, combiner: Any, is_safe: bool) -> None:
    """Each policy of a feature does with a bad id and with a negative weight what TensorFlow's own function does."""
    table = embedding.TableConfig(4, 2, combiner=combiner, name="t")
    config = {"f": embedding.FeatureConfig(table=table, validate_weights_and_indices=is_safe)}
    values = tf.Variable([[1.0, 2.0], [3.0, 5.0], [7.0, 11.0], [13.0, 17.0]])

    def looked_up(ids: list[int], weights: list[float]) -> Any:
        rows, by = tf.ragged.constant([ids], dtype=tf.int64), tf.ragged.constant([weights], dtype=tf.float32)
        if kind == "sparse":
            rows, by = rows.to_sparse(), by.to_sparse()
        return embedding.serving_embedding_lookup({"f": rows}, {"f": by}, {table: values}, config)["f"].numpy()

    feature = model_spec(config, kinds={"f": kind}).features[0]
    with pytest.raises(tf.errors.InvalidArgumentError):
        looked_up([1, 4], [1.0, 1.0])
    if feature.on_bad_id == "error":
        with pytest.raises(tf.errors.InvalidArgumentError):
            looked_up([1, -1], [1.0, 1.0])
    else:
        assert feature.on_bad_id == "drop_negative"
        np.testing.assert_allclose(looked_up([1, -1], [1.0, 1.0]), looked_up([1], [1.0]))
    is_dropped = np.allclose(looked_up([1, 2], [2.0, -0.5]), looked_up([1], [2.0]))
    assert feature.on_nonpositive_weight == ("drop" if is_dropped else "keep")


@pytest.mark.parametrize("kind", ["ragged", "sparse"])
def test_a_bad_id_in_a_sequence_is_an_error_there_and_here(kind: Any) -> None:
    table = embedding.TableConfig(4, 2, name="t")
    config = {"f": embedding.FeatureConfig(table=table, max_sequence_length=2)}
    assert model_spec(config, kinds={"f": kind}).features[0].on_bad_id == "error"
    ids = tf.ragged.constant([[-1]], dtype=tf.int64)
    with pytest.raises(tf.errors.InvalidArgumentError):
        embedding.serving_embedding_lookup(
            {"f": ids.to_sparse() if kind == "sparse" else ids}, None, {table: tf.Variable(tf.ones([4, 2]))}, config
        )


def test_too_many_ids_may_be_cut_as_a_tpu_would() -> None:
    spec = model_spec(film_config(tf), max_ids_per_row=4, on_too_many_ids="truncate")
    assert spec.feature("film_seen").on_too_many_ids == "truncate"
    assert [spec.feature(name).max_ids_per_row for name in ("film_seen", "film_clicks")] == [4, 3]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kinds": {"x": "dense"}}, r"kinds names ['x']; the features are ['film_clicks', 'film_seen', 'user']"),
        ({"max_ids_per_row": {"x": 1}}, "max_ids_per_row names ['x']"),
        ({"vocabularies": {"x": ["a"]}}, "vocabularies names ['x']"),
        ({"kinds": {"user": "csr"}}, "kind is 'csr', expected one of"),
        ({"kinds": {"film_clicks": "dense"}}, "is a sequence; its ids are ragged or sparse"),
        ({"max_ids_per_row": 0}, "max_ids_per_row is 0"),
        ({"on_too_many_ids": "drop"}, "on_too_many_ids is 'drop'"),
        ({"vocabularies": {"user": [str(i) for i in range(11)]}}, "its vocabulary reaches row 10"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_does_not_fit_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ExportError, match=re.escape(message)):
        model_spec(film_config(tf), **arguments)


def test_what_no_lookup_can_do_is_refused() -> None:
    table = embedding.TableConfig(4, 2, name="t")
    with pytest.raises(ExportError, match=r"has output_shape \[3\], which fixes its batch"):
        model_spec({"f": embedding.FeatureConfig(table=table, output_shape=[3])})
    quantized = embedding.TableConfig(
        4, 2, name="t", quantization_config=embedding.QuantizationConfig(num_buckets=4, lower=0.0, upper=1.0)
    )
    with pytest.raises(ExportError, match="table 't' is quantized"):
        model_spec({"f": embedding.FeatureConfig(table=quantized)})


def test_paths_come_in_tensorflows_order() -> None:
    nest = {"b": (1, [2, 3]), "a": {"z": 4, "y": 5}}
    assert flatten_with_paths(nest) == [("a/y", 5), ("a/z", 4), ("b/0", 1), ("b/1/0", 2), ("b/1/1", 3)]
    assert [leaf for _, leaf in flatten_with_paths(nest)] == tf.nest.flatten(nest)


vocabulary_spec = Late("model_export.layers.to_spec", "vocabulary_spec")
layers = Late("model_export.tensorflow_setup", "tf.keras.layers")


def test_the_first_key_of_a_list_is_row_0() -> None:
    assert vocabulary_spec("f", ["a", "b"]) == VocabularySpec(("a", "b"))
    assert vocabulary_spec("f", (7, 5)) == VocabularySpec((7, 5))


def test_a_spec_is_taken_as_it_is() -> None:
    spec = VocabularySpec(("a",), first_id=2)
    assert vocabulary_spec("f", spec) is spec


@pytest.mark.parametrize(
    ("make", "keys", "stranger"),
    [
        (lambda: layers.StringLookup(vocabulary=["x", "y"]), ["x", "y"], "z"),
        (lambda: layers.IntegerLookup(vocabulary=[30, 10]), [30, 10], 20),
    ],
    ids=["strings", "integers"],
)
def test_a_lookup_layer_is_read_as_it_maps(make: Any, keys: list[Any], stranger: Any) -> None:
    layer = make()
    spec = vocabulary_spec("f", layer)
    assert list(spec.keys) == keys
    rows = layer(tf.constant([*keys, stranger])).numpy().tolist()
    assert rows == [spec.first_id, spec.first_id + 1, spec.oov_id]


def test_a_lookup_layer_without_room_for_others_makes_them_errors() -> None:
    layer = layers.StringLookup(vocabulary=["x", "y"], num_oov_indices=0)
    assert vocabulary_spec("f", layer) == VocabularySpec(("x", "y"), on_oov="error")
    assert layer(tf.constant(["y"])).numpy().tolist() == [1]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: layers.StringLookup(vocabulary=["x"], num_oov_indices=3), "num_oov_indices=3, a lookup can say only"),
        (lambda: layers.StringLookup(vocabulary=["x"], mask_token=""), "mask_token=''"),
        (lambda: layers.StringLookup(vocabulary=["x"], output_mode="multi_hot"), "output_mode='multi_hot'"),
        (lambda: layers.StringLookup(vocabulary=["x"], invert=True), "invert=True"),
        (lambda: ["a", "a"], "rows 0 and 1 have the same key 'a'"),
        (lambda: ["a", 1], "all strings or all integers"),
        (lambda: 3, "vocabulary of feature 'f'"),
    ],
    ids=["buckets", "mask", "mode", "invert", "twice", "mixed", "number"],
)
def test_what_a_lookup_can_not_say_is_refused(make: Any, message: str) -> None:
    with pytest.raises(ExportError, match=message):
        vocabulary_spec("f", make())
