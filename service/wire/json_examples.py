"""Converts JSON bodies of classify and regress requests to serialized tf.Examples, and their results to JSON.

>>> decode_examples_body(b'{"examples": [{"x": 1.5}]}').examples.size
1

Source: tensorflow_serving/util/json_tensor.cc (9d981c5) FillClassifyRegressRequestFromJson, MakeExampleFromJsonObject,
MakeJsonFromClassificationResult and MakeJsonFromRegressionResult.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from service.artifact.protos import message_class
from service.engine.inference import Classification, Regression
from service.errors import MalformedPayload
from service.types import Array
from service.wire.example_proto import label_text
from service.wire.json_document import dump, parse_object
from service.wire.json_text import json_type, shown

_KINDS = {"bytes_list": "bytes", "float_list": "float", "int64_list": "int64"}
_INT64_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class ExamplesBody:
    """A parsed classify or regress body. examples: [B] serialized tf.Examples. signature_name: "" if there is none."""

    signature_name: str
    examples: Array


def decode_examples_body(body: bytes, *, strict: bool = False) -> ExamplesBody:
    """Parses a classify or regress body {"examples": [{...}], "context": {...}, "signature_name": "..."}.

    Args:
      strict: refuses bare NaN and Infinity.

    Raises:
      MalformedPayload: the body is not JSON, has no examples, or has a feature that mixes kinds of values.
    """
    document = parse_object(body, strict=strict)
    signature_name = _signature_name(document)
    context = _example(document["context"]) if "context" in document else b""
    examples = document.get("examples")
    if "examples" not in document:
        raise _malformed(document, "When method is classify, key 'examples' is expected and was not found")
    if type(examples) is not list:
        raise _malformed(document, "Expecting 'examples' value to be an list/array")
    if not examples:
        raise _malformed(document, "'examples' value is an empty array")
    result = np.empty(len(examples), object)
    result[:] = [context + _example(example) for example in examples]
    return ExamplesBody(signature_name, result)


def encode_result(result: Classification | Regression, *, strict: bool = False) -> bytes:
    """Encodes a classify or regress answer {"results": ...}: for each example a value, or a list of [label, score]."""
    if isinstance(result, Regression):
        return dump({"results": result.values}, strict=strict)
    labels, scores = result.labels, result.scores
    shape = (labels if labels is not None else scores if scores is not None else np.empty((0, 0))).shape
    rows = []
    for row in range(shape[0]):
        texts = [""] * shape[1] if labels is None else [label_text(label) for label in labels[row]]
        numbers = np.zeros(shape[1], np.float32) if scores is None else scores[row]
        # Scores of classes stay numpy float32 scalars: orjson writes these with fewer digits than Python floats.
        rows.append([[text, number] for text, number in zip(texts, numbers, strict=True)])
    return dump({"results": rows}, strict=strict)


def _malformed(document: Any, problem: str) -> MalformedPayload:
    return MalformedPayload(f"JSON Value: {shown(document)} {problem}")


def _signature_name(document: Mapping[str, Any]) -> str:
    name = document.get("signature_name", "")
    if type(name) is not str:
        raise _malformed(document, "not formatted correctly. 'signature_name' key must be a string value.")
    return name


def _is_base64(value: Any) -> bool:
    return type(value) is dict and len(value) == 1 and type(value.get("b64")) is str


def _from_base64(value: Any) -> bytes:
    # As in TensorFlow Serving, white space in base64 text is skipped, and the padding "=" may be missing.
    text = "".join(value["b64"].split()).rstrip("=")
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError) as error:
        raise MalformedPayload("Unable to base64 decode") from error


def _example(value: Any) -> bytes:
    if type(value) is not dict:
        raise MalformedPayload(f"Example must be JSON object but got JSON {json_type(value)}")
    example = message_class("tensorflow.Example")()
    for name, content in value.items():
        feature = message_class("tensorflow.Feature")()
        for item in content if type(content) is list else (content,):
            _add(name, item, feature)
        try:
            example.features.feature[name].CopyFrom(feature)
        except UnicodeEncodeError as error:
            raise MalformedPayload("A feature's name holds a lone surrogate, which UTF-8 can not write.") from error
    return bytes(example.SerializeToString())


def _add(name: str, value: Any, feature: Any) -> None:
    kind: str
    item: Any
    if type(value) is str:
        kind, item = "bytes_list", value.encode("utf-8", "replace")
    elif _is_base64(value):
        kind, item = "bytes_list", _from_base64(value)
    elif type(value) in (bool, int):
        kind, item = "int64_list", int(value)
    elif type(value) is float:
        kind, item = "float_list", _as_float(value)
    else:
        raise MalformedPayload(f"Feature: {name} has element with unexpected JSON type: {json_type(value)}")
    present = feature.WhichOneof("kind")
    if present not in (None, kind):
        raise MalformedPayload(f"Unexpected element type in feature: {name} expecting type: {_KINDS[present]}")
    if kind == "int64_list" and value > _INT64_MAX:
        raise MalformedPayload(f"Feature: {name} has uint64_t element. Only int64_t is supported.")
    getattr(feature, kind).value.append(item)


def _as_float(value: float) -> float:
    with np.errstate(over="ignore"):
        return float(np.float32(value))
