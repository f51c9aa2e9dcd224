"""Finds the first fault of a JSON predict body, in TensorFlow Serving's order of reading, and raises its error.

The decoders read column by column and level by level, which is fast, but if a body has several faults they may find
another one first. So a body that they refuse is read again here, value by value.

Source: tensorflow_serving/util/json_tensor.cc (9d981c5) FillTensorProto, AddInstanceItem,
FillTensorMapFromInstancesList and FillTensorMapFromInputsMap.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any

import numpy as np

from service.engine.validation import graph_dtype_name
from service.errors import InvalidRequest, MalformedPayload, ServiceError, Unimplemented
from service.types import SignatureSpec
from service.wire.json_text import json_type, shown

# Deepest nesting of JSON lists in which the first fault is searched for. No graph has inputs of a higher rank, and the
# decoder refuses deeper lists by itself.
_MAX_DEPTH = 200
# Largest number of rows of a refused JSON body in which the first fault is searched for, to report it in TensorFlow
# Serving's words; searching more rows would delay other requests by seconds.
_MAX_ROWS = 1_000_000
_FLOATS = ("float16", "bfloat16", "float32", "float64")


def is_base64(value: Any) -> bool:
    """Says whether a JSON value has the form {"b64": "..."}, which stands for bytes."""
    return type(value) is dict and len(value) == 1 and type(value.get("b64")) is str


def from_base64(value: Any) -> bytes:
    """Decodes the bytes in a JSON value {"b64": "..."}; raises MalformedPayload."""
    if not is_base64(value):
        raise MalformedPayload(f"JSON Value: {shown(value)} not formatted correctly for base64 data")
    # As in TensorFlow Serving, white space in base64 text is skipped, and the padding "=" may be missing.
    text = "".join(value["b64"].split())
    try:
        return base64.b64decode(text.rstrip("=") + "=" * (-len(text.rstrip("=")) % 4), validate=True)
    except (binascii.Error, ValueError) as error:
        raise MalformedPayload("Unable to base64 decode") from error


def refuse_rows(instances: list[Any], spec: SignatureSpec) -> None:
    """Raises TensorFlow Serving's error for the first fault in the "instances" of a predict body.

    Returns without an error if TensorFlow Serving would find no fault, or if there are more than _MAX_ROWS rows.
    """
    names = sorted(spec.inputs)
    if len(instances) > _MAX_ROWS:
        return
    if type(instances[0]) is not dict and len(names) > 1:
        raise MalformedPayload(
            "instances is a plain list, but expecting list of objects as multiple input tensors required as per "
            "tensorinfo_map"
        )
    are_objects = _is_object(instances[0])
    shapes: dict[str, list[int]] = {}
    for i, item in enumerate(instances):
        if _is_object(item) != are_objects:
            raise MalformedPayload(
                f"Expecting object but got list at item {i} of input list"
                if are_objects
                else f"Expecting value/list but got object at item {i} of input list"
            )
        for name, value in item.items() if are_objects else ((names[0], item),):
            try:
                _refuse_item(name, value, spec, shapes)
            except ServiceError as error:
                key = f" key: {name}" if are_objects else ""
                raise MalformedPayload(
                    f"Failed to process element: {i}{key} of 'instances' list. Error: {error.code}: {error.message}"
                ) from error
        if are_objects and not spec.required <= item.keys():
            raise MalformedPayload(
                f"Failed to process element: {i} of 'instances' list. JSON object: {shown(item)} keys must be equal "
                f"to: {','.join(names)}"
            )


def refuse_columns(inputs: Any, spec: SignatureSpec) -> None:
    """Raises TensorFlow Serving's error for the first fault in "inputs" of a predict body; returns if there is none."""
    names = sorted(spec.inputs)
    if not _is_object(inputs):
        if len(names) > 1:
            raise MalformedPayload(
                "inputs is a plain value/list, but expecting an object as multiple input tensors required as per "
                "tensorinfo_map"
            )
        _refuse_tensor(inputs, spec.inputs[names[0]].dtype)
        return
    for name in names:
        if name in inputs:
            _refuse_tensor(inputs[name], spec.inputs[name].dtype)
        elif name in spec.required:
            raise MalformedPayload(f"Missing named input: {name} in 'inputs' object.")


def _is_object(value: Any) -> bool:
    return type(value) is dict and not is_base64(value)


def _refuse_item(name: str, value: Any, spec: SignatureSpec, shapes: dict[str, list[int]]) -> None:
    if name not in spec.inputs:
        raise InvalidRequest(f"JSON object: does not have named input: {name}")
    shape, size = _refuse_tensor(value, spec.inputs[name].dtype)
    first = shapes.setdefault(name, shape)
    if size != int(np.prod(first)):
        raise InvalidRequest(f"Expecting tensor size: {int(np.prod(first))} but got: {size}")
    if shape != first:
        raise InvalidRequest(f"Expecting shape {_text(first)} but got: {_text(shape)}")


def _refuse_tensor(value: Any, dtype: str) -> tuple[list[int], int]:
    """Raises TensorFlow Serving's error for the first fault of a JSON tensor; returns the shape and the size of a
    tensor without faults.
    """
    shape: list[int] = []
    item = value
    while type(item) is list and len(shape) <= _MAX_DEPTH:
        shape.append(len(item))
        item = item[0] if item else None
    if len(shape) > _MAX_DEPTH:
        raise MalformedPayload(f"lists are nested over {_MAX_DEPTH} deep.")
    return shape, _refuse_values(value, 0, shape, dtype)


def _refuse_values(value: Any, level: int, shape: list[int], dtype: str) -> int:
    if type(value) is not list:
        if level != len(shape):
            raise MalformedPayload(
                f"JSON Value: {shown(value)} found at incorrect level: {level + 1} in the JSON DOM. Expected at level: "
                f"{len(shape)}"
            )
        _refuse_leaf(value, dtype)
        return 1
    if level >= len(shape):
        raise MalformedPayload(f"Encountered list at unexpected level: {level} expected < {len(shape)}")
    if len(value) != shape[level]:
        raise MalformedPayload(
            f"Encountered list at unexpected size: {len(value)} at level: {level} expected size: {shape[level]}"
        )
    if level + 1 == len(shape) and _all_fit(value, dtype):
        return len(value)
    return sum(_refuse_values(item, level + 1, shape, dtype) for item in value)


def _all_fit(values: list[Any], dtype: str) -> bool:
    """Says whether the Python types of a list's values show that all fit a dtype; False means that each value must be
    checked.
    """
    types = set(map(type, values))
    if dtype in _FLOATS:
        return types <= {int, float}
    return types <= {str} if dtype == "string" else types <= {bool} and dtype == "bool"


def _refuse_leaf(value: Any, dtype: str) -> None:
    if dtype == "string" and type(value) is dict:
        from_base64(value)
    elif not _fits(value, dtype):
        raise MalformedPayload(
            f"JSON Value: {shown(value)} Type: {json_type(value)} is not of expected type: {graph_dtype_name(dtype)}"
        )


def _fits(value: Any, dtype: str) -> bool:
    if dtype == "string":
        return type(value) is str
    if dtype == "bool":
        return type(value) is bool
    if dtype in _FLOATS:
        return type(value) in (int, float)
    try:
        limits = np.iinfo(dtype)
    except (TypeError, ValueError):
        raise Unimplemented(f"Conversion of JSON Value: {shown(value)} to type: {graph_dtype_name(dtype)}") from None
    return type(value) is int and limits.min <= value <= limits.max


def _text(shape: list[int]) -> str:
    return "[" + ",".join(map(str, shape)) + "]"
