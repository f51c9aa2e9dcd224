"""Judges whether the server's answer to a mutated request is right, over gRPC and HTTP."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from loadtest.wire import message_class

# gRPC codes by which a server may refuse a mutated request; any other error is a wrong reaction.
REFUSALS = {
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.OUT_OF_RANGE,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.UNIMPLEMENTED,
}
_HTTP_REFUSALS = {400, 404, 413, 501}
_RESPONSES = {
    "Predict": "PredictResponse",
    "Classify": "ClassificationResponse",
    "Regress": "RegressionResponse",
    "MultiInference": "MultiInferenceResponse",
    "GetModelMetadata": "GetModelMetadataResponse",
    "GetModelStatus": "GetModelStatusResponse",
    "HandleReloadConfigRequest": "ReloadConfigResponse",
}
# Maps a DataType number to the TensorProto field of its values, and to its bytes per value in tensor_content.
_VALUES = {
    1: ("float_val", 4),
    2: ("double_val", 8),
    3: ("int_val", 4),
    4: ("int_val", 1),
    5: ("int_val", 2),
    6: ("int_val", 1),
    7: ("string_val", 0),
    9: ("int64_val", 8),
    10: ("bool_val", 1),
    14: ("half_val", 2),
    17: ("int_val", 2),
    19: ("half_val", 2),
    22: ("uint32_val", 4),
    23: ("uint64_val", 8),
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """The status of a server's answer, and a text that says what is wrong with the answer; "" if nothing is wrong."""

    status: str
    problem: str = ""


def of_grpc_error(error: grpc.RpcError) -> Verdict:
    """Judges an error that the server sent over gRPC."""
    code, details = error.code(), error.details() or ""
    if code not in REFUSALS:
        return Verdict(code.name, f"{code.name}: {details}")
    if not details:
        return Verdict(code.name, f"{code.name} without an error text")
    return Verdict(code.name)


def of_grpc_answer(method: str, data: bytes) -> Verdict:
    """Judges the message of an OK answer over gRPC: it must parse, and a PredictResponse's tensors fit their shapes."""
    name = _RESPONSES.get(method.rpartition("/")[2])
    if name is None:
        return Verdict("OK")
    try:
        response = message_class(f"tensorflow.serving.{name}").FromString(data)
    except DecodeError as error:
        return Verdict("OK", f"the answer can not be read: {error}")
    if name == "PredictResponse":
        problems = [f"output {key!r}: {p}" for key, tensor in response.outputs.items() if (p := tensor_problem(tensor))]
        return Verdict("OK", "; ".join(problems))
    return Verdict("OK")


def tensor_problem(tensor: Any) -> str:
    """Describes why a TensorProto in an answer does not fit its own dtype and shape; "" if it fits."""
    if tensor.dtype not in _VALUES:
        return f"dtype {tensor.dtype}"
    sizes = [dim.size for dim in tensor.tensor_shape.dim]
    if tensor.tensor_shape.unknown_rank or min(sizes, default=0) < 0:
        return f"shape {sizes} is not known"
    field, itemsize = _VALUES[tensor.dtype]
    count = math.prod(sizes)
    held = len(getattr(tensor, field))
    if tensor.tensor_content:
        held = len(tensor.tensor_content) / itemsize if itemsize else -1
    return "" if held == count else f"{held:g} values of shape {sizes}"


def of_http(status: int, content_type: str, body: bytes, answers: Sequence[str]) -> Verdict:
    """Judges an answer that the server sent over HTTP.

    Args:
      answers: keys of which a good answer has exactly one.
    """
    label = str(status)
    if status != 200 and status not in _HTTP_REFUSALS:
        return Verdict(label, f"{status}: {body[:300]!r}")
    if content_type != "application/json":
        return Verdict(label, f"{status} with Content-Type {content_type!r}")
    try:
        document = json.loads(body.decode())
    except ValueError as error:
        return Verdict(label, f"{status}, not JSON ({error}): {body[:300]!r}")
    if not isinstance(document, dict) or len(document) != 1:
        return Verdict(label, f"{status}: {body[:300]!r}")
    ((key, value),) = document.items()
    if status == 200:
        return Verdict(label, "" if key in answers else f"200 with {key!r}")
    is_error = key == "error" and isinstance(value, str) and value != ""
    return Verdict(label, "" if is_error else f"{status}: {body[:300]!r}")
