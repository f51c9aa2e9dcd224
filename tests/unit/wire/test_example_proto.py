"""Requests of tf.Examples become arrays, and results become messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from service.artifact.protos import message_class
from service.engine.inference import CLASSIFY_METHOD, REGRESS_METHOD, Classification, Regression
from service.errors import InvalidRequest, MalformedPayload
from service.types import ModelRef
from service.wire.example_proto import (
    Task,
    decode_examples,
    decode_examples_request,
    decode_multi_inference,
    encode_classification,
    encode_multi_inference,
    encode_regression,
    label_text,
)

CLASSIFICATION_REQUEST = "tensorflow.serving.ClassificationRequest"


def request(name: str, fill: Callable[[Any], None]) -> bytes:
    """Makes a message of the API, fills it by a function, and returns its bytes."""
    message = message_class(f"tensorflow.serving.{name}")()
    fill(message)
    return bytes(message.SerializeToString())


def feature_values(serialized: bytes, name: str) -> list[int]:
    """Returns the values of an int64 feature in a serialized Example."""
    example = message_class("tensorflow.Example").FromString(serialized)
    return list(example.features.feature[name].int64_list.value)


def test_a_request_names_its_model_and_holds_its_input() -> None:
    def fill(message: Any) -> None:
        message.model_spec.name = "m"
        message.model_spec.version.value = 3
        message.input.example_list.examples.add().features.feature["x"].int64_list.value.append(7)

    parsed = decode_examples_request(CLASSIFICATION_REQUEST, request("ClassificationRequest", fill))
    assert (parsed.ref, parsed.signature_name) == (ModelRef("m", 3), "")
    (serialized,) = decode_examples(parsed.input)
    assert feature_values(serialized, "x") == [7]


def test_bytes_that_are_no_request() -> None:
    with pytest.raises(MalformedPayload):
        decode_examples_request(CLASSIFICATION_REQUEST, b"\xff")
    with pytest.raises(MalformedPayload):
        decode_multi_inference(b"\xff")


def test_a_context_stands_before_each_example_and_gives_way_to_it() -> None:
    message = message_class("tensorflow.serving.Input")()
    features = message.example_list_with_context.context.features.feature
    features["x"].int64_list.value.append(1)
    features["y"].int64_list.value.append(2)
    examples = message.example_list_with_context.examples
    examples.add().features.feature["x"].int64_list.value.append(9)
    examples.add()
    first, second = decode_examples(message)
    assert [feature_values(first, name) for name in "xy"] == [[9], [2]]
    assert [feature_values(second, name) for name in "xy"] == [[1], [2]]


@pytest.mark.parametrize("kind", ["", "example_list", "example_list_with_context"])
def test_no_examples(kind: str) -> None:
    message = message_class("tensorflow.serving.Input")()
    if kind:
        getattr(message, kind).SetInParent()
    with pytest.raises(InvalidRequest, match=r"^Input is empty\.$"):
        decode_examples(message)


def multi(*tasks: tuple[str, str, str]) -> bytes:
    """Returns the bytes of a MultiInferenceRequest with tasks of (model, signature, method)."""

    def fill(message: Any) -> None:
        for model, signature, method in tasks:
            task = message.tasks.add(method_name=method)
            task.model_spec.name, task.model_spec.signature_name = model, signature

    return request("MultiInferenceRequest", fill)


def test_tasks_of_one_model() -> None:
    parsed = decode_multi_inference(multi(("m", "a", CLASSIFY_METHOD), ("m", "", REGRESS_METHOD)))
    assert (parsed.ref, parsed.problem) == (ModelRef("m"), "")
    assert parsed.tasks == (Task("a", CLASSIFY_METHOD), Task("serving_default", REGRESS_METHOD))


@pytest.mark.parametrize(
    ("second", "problem"),
    [
        (("", "b", REGRESS_METHOD), "Found ModelSpec with an empty model name."),
        (("n", "b", REGRESS_METHOD), "All ModelSpecs in a MultiInferenceRequest must access the same model name."),
        (("m", "a", REGRESS_METHOD), "Duplicate evaluation of signature: a"),
    ],
)
def test_tasks_that_do_not_go_together_end_the_list(second: tuple[str, str, str], problem: str) -> None:
    parsed = decode_multi_inference(multi(("m", "a", REGRESS_METHOD), second, ("m", "c", REGRESS_METHOD)))
    assert (parsed.problem, [task.signature_name for task in parsed.tasks]) == (problem, ["a"])


@pytest.mark.parametrize("tasks", [(), (("", "a", REGRESS_METHOD),)])
def test_a_first_task_without_a_model(tasks: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"^ModelSpec has no name specified\.$"):
        decode_multi_inference(multi(*tasks))


def test_results() -> None:
    labels, scores = np.array([[b"a", b"\xff"]], object), np.array([[0.5, 2.0]], np.float32)
    data = encode_classification(Classification(labels, scores), model="m", version=3, signature_name="s")
    response = message_class("tensorflow.serving.ClassificationResponse").FromString(data)
    (row,) = response.result.classifications
    assert [(c.label, c.score) for c in row.classes] == [("a", 0.5), ("\N{REPLACEMENT CHARACTER}", 2.0)]
    spec = response.model_spec
    assert (spec.name, spec.version.value, spec.signature_name) == ("m", 3, "s")

    regression = Regression(np.array([1.5, -2], np.float32))
    data = encode_regression(regression, model="m", version=3, signature_name="s")
    response = message_class("tensorflow.serving.RegressionResponse").FromString(data)
    assert [r.value for r in response.result.regressions] == [1.5, -2.0]

    results = [("r", regression), ("c", Classification(None, scores)), ("l", Classification(labels, None))]
    data = encode_multi_inference(results, model="m", version=3)
    response = message_class("tensorflow.serving.MultiInferenceResponse").FromString(data)
    assert [r.model_spec.signature_name for r in response.results] == ["r", "c", "l"]
    assert [r.WhichOneof("result") for r in response.results] == ["regression_result"] + 2 * ["classification_result"]
    assert [c.score for c in response.results[1].classification_result.classifications[0].classes] == [0.5, 2.0]
    assert [c.label for c in response.results[2].classification_result.classifications[0].classes][0] == "a"


def test_a_label_is_text() -> None:
    assert [label_text(label) for label in (b"\xc3\xa9", "a")] == ["é", "a"]
