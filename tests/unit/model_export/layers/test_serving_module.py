"""Checks which parts of a layer model its artifact keeps, and the names of its outputs."""

from __future__ import annotations

from typing import Any

import pytest

from model_export.errors import ExportError
from tests.unit.model_export.layers.late import Late, tf

pytestmark = pytest.mark.tf

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
