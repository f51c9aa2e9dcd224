"""Receivers and outputs of an estimator's exports are TensorFlow's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from loadtest.foreign.frameworks import tf
from tests.unit.model_export.late import late

with late():
    from model_export.estimator.estimator_spec import (
        ClassificationOutput,
        PredictOutput,
        RegressionOutput,
        signature_defs,
    )
    from model_export.estimator.receivers import (
        ServingInputReceiver,
        TensorServingInputReceiver,
        build_parsing_serving_input_receiver_fn,
        build_raw_serving_input_receiver_fn,
    )

pytestmark = pytest.mark.tf


@pytest.fixture(autouse=True)
def graph() -> Iterator[Any]:
    with tf.Graph().as_default() as graph:
        yield graph


def test_single_tensors_get_names() -> None:
    tensor = tf.constant([1.0])
    receiver = ServingInputReceiver(tensor, tensor, {"other": tensor})
    assert receiver == ({"feature": tensor}, {"input": tensor}, {"other": {"input": tensor}})
    assert TensorServingInputReceiver(tensor, {"x": tensor}) == (tensor, {"x": tensor}, None)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((None, {}), "features must be defined."),
        (({}, None), "receiver_tensors must be defined."),
        (({"a": 3}, {}), "feature a must be a Tensor, SparseTensor, or RaggedTensor."),
        (({}, {3: None}), "receiver_tensor keys must be strings: 3."),
        (({}, {}, 3), "receiver_tensors_alternatives must be a dict: 3."),
    ],
)
def test_a_receiver_refuses(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ServingInputReceiver(*arguments)
    if arguments[0] is None or arguments[0] == {"a": 3}:
        with pytest.raises(ValueError):
            TensorServingInputReceiver(*arguments)


def test_a_parsing_receiver_parses_examples() -> None:
    receiver = build_parsing_serving_input_receiver_fn({"a": tf.io.VarLenFeature(tf.int64)}, 2)()
    assert set(receiver.receiver_tensors) == {"examples"}
    assert receiver.receiver_tensors["examples"].shape == [2]
    ids = [[1, 2], []]
    examples = [
        tf.train.Example(
            features=tf.train.Features(feature={"a": tf.train.Feature(int64_list=tf.train.Int64List(value=row))})
        ).SerializeToString()
        for row in ids
    ]
    with tf.compat.v1.Session() as session:
        parsed = session.run(receiver.features["a"], {receiver.receiver_tensors["examples"]: examples})
    assert parsed.values.tolist() == [1, 2] and parsed.dense_shape.tolist() == [2, 2]


def test_a_raw_receiver_has_an_input_per_feature() -> None:
    features = {"a": np.zeros([7, 3], np.float32), "b": tf.TensorSpec([None], tf.int64)}
    receiver = build_raw_serving_input_receiver_fn({"b": features["b"], "a": tf.constant(features["a"])})()
    assert receiver.features == receiver.receiver_tensors
    shapes = {name: (tensor.dtype, tensor.shape.as_list()) for name, tensor in receiver.features.items()}
    assert shapes == {"a": (tf.float32, [None, 3]), "b": (tf.int64, [None])}
    fixed = build_raw_serving_input_receiver_fn({"b": features["b"]}, 5)()
    assert fixed.features["b"].shape == [5]


def tensors() -> tuple[Any, Any, Any, Any]:
    """Returns tensors for export outputs: examples, scores, classes and values."""
    v1 = tf.compat.v1
    examples = v1.placeholder(tf.string, [None])
    scores = v1.placeholder(tf.float32, [None, 2])
    return examples, scores, v1.placeholder(tf.string, [None, 2]), v1.placeholder(tf.float32, [None, 1])


def test_signatures_are_tensorflows() -> None:
    examples, scores, classes, value = tensors()
    saved_model = tf.compat.v1.saved_model
    receiver = {"examples": examples}
    assert ClassificationOutput(scores, classes).signature_def(receiver) == (
        saved_model.classification_signature_def(examples, classes, scores)
    )
    assert ClassificationOutput(scores).signature_def(receiver) == (
        saved_model.classification_signature_def(examples, None, scores)
    )
    assert RegressionOutput(value).signature_def(receiver) == saved_model.regression_signature_def(examples, value)
    predict = saved_model.predict_signature_def(receiver, {"scores": scores})
    assert PredictOutput({"scores": scores}).signature_def(receiver) == predict
    assert set(PredictOutput(scores).outputs) == {"output"}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ClassificationOutput(), "empty arguments"),
        (lambda: ClassificationOutput(scores=tf.constant([1])), "scores must be a float32 Tensor"),
        (lambda: ClassificationOutput(classes=tf.constant([1])), "classes must be a string Tensor"),
        (lambda: RegressionOutput(tf.constant([1])), "value must be a float32 Tensor"),
        (lambda: PredictOutput({3: tf.constant([1])}), "key must be a string; got 3"),
        (lambda: PredictOutput({"a": 3}), "value must be a Tensor; got 3"),
    ],
)
def test_outputs_have_dtypes(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_a_head_that_a_receiver_can_not_feed_is_left_out() -> None:
    examples, scores, _, _ = tensors()
    raw = {"a": scores, "b": scores}
    heads = {"serving_default": PredictOutput(scores), "classify": ClassificationOutput(scores)}
    assert set(signature_defs(heads, {"examples": examples})) == {"serving_default", "classify"}
    assert set(signature_defs(heads, raw)) == {"serving_default"}
    assert set(signature_defs(heads, raw, {"parsed": {"examples": examples}})) == {
        "serving_default",
        "parsed:serving_default",
        "parsed:classify",
    }
    with pytest.raises(ValueError, match="takes a single input of serialized tf.Examples; got the inputs"):
        signature_defs({"serving_default": ClassificationOutput(scores)}, raw)
    with pytest.raises(ValueError, match="takes serialized tf.Examples; its input is"):
        signature_defs({"serving_default": RegressionOutput(scores)}, {"a": scores})
