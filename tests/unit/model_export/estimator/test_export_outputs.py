"""Export outputs become signatures with the methods and names of TensorFlow's own signature builders."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from model_export.estimator.estimator_spec import (
    ClassificationOutput,
    PredictOutput,
    RegressionOutput,
    signature_defs,
)
from model_export.tensorflow_setup import tf

pytestmark = pytest.mark.tf


@pytest.fixture(autouse=True)
def graph() -> Iterator[Any]:
    """A v1 graph."""
    with tf.Graph().as_default() as graph:
        yield graph


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
