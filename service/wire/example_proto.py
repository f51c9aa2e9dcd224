"""Decodes gRPC requests for Classify, Regress and MultiInference, and encodes their answers.

Source: tensorflow_serving/apis/{input,classification,regression,inference}.proto (9d981c5).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from service.artifact.protos import message_class
from service.engine.inference import Classification, Regression
from service.errors import InvalidRequest
from service.types import DEFAULT_SIGNATURE, Array, ModelRef
from service.wire.predict_proto import read_model_spec
from service.wire.proto_message import parse_message


@dataclass(frozen=True, slots=True)
class ExamplesRequest:
    """A parsed Classify or Regress request. signature_name: "" if the client named none."""

    ref: ModelRef
    signature_name: str
    input: Any


@dataclass(frozen=True, slots=True)
class Task:
    """One task of a MultiInference request: a signature, and the method (classify or regress) that runs it."""

    signature_name: str
    method_name: str


@dataclass(frozen=True, slots=True)
class MultiInferenceRequest:
    """A parsed MultiInference request.

    problem: a fault of its tasks, which is reported only if the model exists; "" if there is none.
    """

    ref: ModelRef
    tasks: tuple[Task, ...]
    problem: str
    input: Any


def decode_examples_request(full_name: str, data: bytes) -> ExamplesRequest:
    """Parses a ClassificationRequest or a RegressionRequest; raises MalformedPayload, InvalidRequest."""
    message = parse_message(full_name, data)
    ref, signature_name = read_model_spec(message)
    return ExamplesRequest(ref, signature_name, message.input)


def decode_multi_inference(data: bytes) -> MultiInferenceRequest:
    """Parses a MultiInferenceRequest; its first task names the model and version.

    Raises:
      MalformedPayload: the bytes are no such message.
      InvalidRequest: the first task names no model.
    """
    message = parse_message("tensorflow.serving.MultiInferenceRequest", data)
    if not message.tasks or not message.tasks[0].model_spec.name:
        raise InvalidRequest("ModelSpec has no name specified.")
    ref, _ = read_model_spec(message.tasks[0])
    tasks: list[Task] = []
    problem = ""
    for task in message.tasks:
        name = task.model_spec.signature_name or DEFAULT_SIGNATURE
        if not task.model_spec.name:
            problem = "Found ModelSpec with an empty model name."
        elif task.model_spec.name != ref.name:
            problem = "All ModelSpecs in a MultiInferenceRequest must access the same model name."
        elif name in (other.signature_name for other in tasks):
            problem = f"Duplicate evaluation of signature: {name}"
        if problem:
            break
        tasks.append(Task(name, task.method_name))
    return MultiInferenceRequest(ref, tuple(tasks), problem, message.input)


def decode_examples(message: Any) -> Array:
    """Returns the [B] serialized Examples (bytes) of an Input message, with the shared context put before each.

    Two concatenated protobuf messages are one message with the fields of both; of a feature in both, the later one
    counts.

    Raises:
      InvalidRequest: the Input has no Examples.
    """
    context = b""
    if message.WhichOneof("kind") == "example_list_with_context":
        context = message.example_list_with_context.context.SerializeToString()
        examples = message.example_list_with_context.examples
    else:
        examples = message.example_list.examples
    if not examples:
        raise InvalidRequest("Input is empty.")
    result = np.empty(len(examples), object)
    result[:] = [context + example.SerializeToString() for example in examples]
    return result


def encode_classification(result: Classification, *, model: str, version: int, signature_name: str) -> bytes:
    """Encodes a ClassificationResponse."""
    response = message_class("tensorflow.serving.ClassificationResponse")()
    _fill_classification(response.result, result)
    _fill_spec(response.model_spec, model, version, signature_name)
    return bytes(response.SerializeToString())


def encode_regression(result: Regression, *, model: str, version: int, signature_name: str) -> bytes:
    """Encodes a RegressionResponse."""
    response = message_class("tensorflow.serving.RegressionResponse")()
    _fill_regression(response.result, result)
    _fill_spec(response.model_spec, model, version, signature_name)
    return bytes(response.SerializeToString())


def encode_multi_inference(
    results: Sequence[tuple[str, Classification | Regression]], *, model: str, version: int
) -> bytes:
    """Encodes a MultiInferenceResponse; results are (signature name, result) in the order of the tasks."""
    response = message_class("tensorflow.serving.MultiInferenceResponse")()
    for signature_name, result in results:
        entry = response.results.add()
        if isinstance(result, Classification):
            _fill_classification(entry.classification_result, result)
        else:
            _fill_regression(entry.regression_result, result)
        _fill_spec(entry.model_spec, model, version, signature_name)
    return bytes(response.SerializeToString())


def label_text(label: bytes | str) -> str:
    """Returns the label of a class as text.

    Bytes that are not UTF-8 are replaced, because protobuf strings must be UTF-8.
    """
    return label if isinstance(label, str) else label.decode("utf-8", "replace")


def _fill_classification(message: Any, result: Classification) -> None:
    # SetInParent() makes the result message present in the answer even if there are no classes.
    message.SetInParent()
    labels = None if result.labels is None else result.labels.tolist()
    scores = None if result.scores is None else result.scores.tolist()
    for row in range(len(labels if labels is not None else scores or ())):
        classes = message.classifications.add().classes
        for column in range(len((labels or scores or ())[row])):
            entry = classes.add()
            if labels is not None:
                entry.label = label_text(labels[row][column])
            if scores is not None:
                entry.score = scores[row][column]


def _fill_regression(message: Any, result: Regression) -> None:
    message.SetInParent()
    for value in result.values.tolist():
        message.regressions.add().value = value


def _fill_spec(message: Any, model: str, version: int, signature_name: str) -> None:
    message.name = model
    message.version.value = version
    message.signature_name = signature_name
