"""Models become predict signatures: the names of tensors, defaults, and inputs that no signature can carry."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from model_export.errors import ExportError
from tests.unit.model_export.layers.late import Late, TPUEmbedding, embedding, tf
from tests.unit.model_export.layers.reference import combined

pytestmark = pytest.mark.tf

LayerSource = Late("model_export.layers.export_source", "LayerSource")


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
    with pytest.raises(ExportError, match="input 'by' of the model is ragged and feeds no feature"):
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
