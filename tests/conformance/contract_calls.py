"""Sends a case of the contract's table over gRPC or REST, and converts the answer to one form for both.

A case has: call (predict, classify, regress, multi, status or metadata), spec (None: the request has none), the
contents of the request (inputs, dtypes and filter; or examples, context and tasks) and the expected outputs, results,
answer or error. "on" holds the differences of one wire; null means that the wire has no form for the case.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np

from service.artifact.protos import message_class
from tests.conformance.wires import HttpClient

Case = Mapping[str, Any]
SERVICES = {"status": "ModelService"}
METHODS = {
    "predict": ("Predict", "PredictRequest", "PredictResponse"),
    "classify": ("Classify", "ClassificationRequest", "ClassificationResponse"),
    "regress": ("Regress", "RegressionRequest", "RegressionResponse"),
    "multi": ("MultiInference", "MultiInferenceRequest", "MultiInferenceResponse"),
    "status": ("GetModelStatus", "GetModelStatusRequest", "GetModelStatusResponse"),
    "metadata": ("GetModelMetadata", "GetModelMetadataRequest", "GetModelMetadataResponse"),
}
# Name of a dtype in the contract's cases -> its number in DataType, its field of TensorProto, its numpy dtype.
FIELDS = {
    "float": (1, "float_val", "<f4"),
    "double": (2, "double_val", "<f8"),
    "int32": (3, "int_val", "<i4"),
    "string": (7, "string_val", "O"),
    "int64": (9, "int64_val", "<i8"),
    "bool": (10, "bool_val", "?"),
}
HTTP_STATUS = {
    "INVALID_ARGUMENT": 400,
    "FAILED_PRECONDITION": 400,
    "OUT_OF_RANGE": 400,
    "NOT_FOUND": 404,
    "UNIMPLEMENTED": 501,
    "UNAVAILABLE": 503,
}


@dataclass(frozen=True)
class Refused:
    """An error answer. code: the canonical code over gRPC, the HTTP status over REST."""

    code: str | int
    text: str


def wires_of(case: Case) -> list[str]:
    """Returns the wire forms in which a case can be sent."""
    if case["call"] == "multi" or case.get("spec") is None or not case["spec"].get("name"):
        wires = ["grpc"]
    elif case["call"] != "predict":
        wires = ["grpc", "rest"]
    else:
        wires = ["grpc", "grpc content", "columns"]
        sizes = {len(value) if isinstance(value, list) else 0 for value in case["inputs"].values()}
        if len(sizes) == 1 and min(sizes) > 0:
            wires.append("rows")
    if "filter" in case or "fields" in case:
        wires = [wire for wire in wires if wire.startswith("grpc")]
    return [wire for wire in wires if case.get("on", {}).get(wire, True) is not None]


def expected(case: Case, wire: str) -> Any:
    """Returns the expected answer of a wire to a case."""
    answer: Mapping[str, Any] = {**case, **case.get("on", {}).get(wire, {})}
    if answer.get("error"):
        error = answer["error"]
        if wire.startswith("grpc"):
            return Refused(error["code"], error["text"] + error.get("grpc_end", ""))
        return Refused(HTTP_STATUS[error["code"]], error["text"])
    return next(answer[key] for key in ("outputs", "results", "answer") if key in answer)


def send_grpc(channel: grpc.Channel, case: Case, *, as_content: bool = False) -> Any:
    """Sends a case over gRPC; returns its outputs, its results or its whole answer, or Refused."""
    method, request_type, response_type = METHODS[case["call"]]
    service = SERVICES.get(case["call"], "PredictionService")
    call = channel.unary_unary(f"/tensorflow.serving.{service}/{method}")
    metadata = (("x-tensor-encoding", "content"),) if as_content else ()
    request = _request(case, message_class(f"tensorflow.serving.{request_type}")(), as_content)
    try:
        data = call(request.SerializeToString(), timeout=60, metadata=metadata)
    except grpc.RpcError as error:
        return Refused(error.code().name, error.details())
    response = message_class(f"tensorflow.serving.{response_type}").FromString(data)
    if case["call"] in ("predict", "classify", "regress"):
        spec, sent = response.model_spec, case["spec"]
        assert (spec.name, spec.signature_name) == (sent["name"], sent.get("signature") or "serving_default")
        assert spec.version.value == sent.get("version", 2)
    return _ANSWERS[case["call"]](response)


def send_rest(http: HttpClient, case: Case, layout: str = "") -> Any:
    """Sends a case over REST; returns its outputs, results or answer, or Refused. layout is "columns" or "rows"."""
    spec = case["spec"]
    path = f"/v1/models/{spec['name']}"
    if "version" in spec:
        path += f"/versions/{spec['version']}"
    if "label" in spec:
        path += f"/labels/{spec['label']}"
    if case["call"] in ("status", "metadata"):
        response = http.exchange("GET", path + ("/metadata" if case["call"] == "metadata" else ""))
    else:
        body = _body(case, layout)
        if spec.get("signature"):
            body["signature_name"] = spec["signature"]
        response = http.exchange("POST", f"{path}:{case['call']}", json.dumps(body).encode())
    assert response.headers["content-type"] == "application/json"
    answer = response.json()
    if response.status_code != 200:
        assert list(answer)[0] == "error" and set(answer) <= {"error", "models"}
        return Refused(response.status_code, answer["error"])
    if case["call"] in ("classify", "regress"):
        return answer["results"]
    if case["call"] == "predict":
        return _columns(answer["outputs" if layout == "columns" else "predictions"], case, layout)
    if case["call"] == "metadata":
        return {"version": int(answer["model_spec"]["version"])}
    return [
        [int(v["version"]), v["state"], v["status"]["error_code"], v["status"]["error_message"]]
        for v in answer["model_version_status"]
    ]


def _columns(answer: Any, case: Case, layout: str) -> Any:
    names = sorted(expected(case, layout))
    if len(names) == 1:
        return {names[0]: answer}
    return answer if layout == "columns" else {name: [row[name] for row in answer] for name in names}


def _body(case: Case, layout: str) -> dict[str, Any]:
    if case["call"] in ("classify", "regress"):
        return {key: case[key] for key in ("examples", "context") if key in case}
    columns = case["inputs"]
    if layout == "columns":
        return {"inputs": columns}
    return {"instances": [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]}


def _request(case: Case, request: Any, as_content: bool) -> Any:
    if case["call"] == "multi":
        for task in case["tasks"]:
            added = request.tasks.add()
            added.method_name = f"tensorflow/serving/{task.get('method', 'regress')}"
            if task.get("spec") is not None:
                _fill_spec(added.model_spec, task["spec"])
    elif case.get("spec") is not None:
        _fill_spec(request.model_spec, case["spec"])
    for name, value in case.get("inputs", {}).items():
        fill_tensor(request.inputs[name], value, case.get("dtypes", {}).get(name, "float"), as_content=as_content)
    request_fields = {"filter": "output_filter", "fields": "metadata_field"}
    for key, field in request_fields.items():
        getattr(request, field, []).extend(case.get(key, ["signature_def"] if key == "fields" else []))
    if "context" in case:
        _fill_example(request.input.example_list_with_context.context, case["context"])
    for example in case.get("examples", ()):
        kind = "example_list_with_context" if "context" in case else "example_list"
        _fill_example(getattr(request.input, kind).examples.add(), example)
    return request


def fill_tensor(tensor: Any, value: Any, dtype: str, *, as_content: bool) -> None:
    """Fills a TensorProto with a nested list, in the dtype's field or in tensor_content."""
    number, field, numpy_dtype = FIELDS[dtype]
    array = np.array(value, numpy_dtype)
    tensor.dtype = number
    tensor.tensor_shape.SetInParent()
    for size in array.shape:
        tensor.tensor_shape.dim.add().size = size
    flat = [item.encode() if isinstance(item, str) else item for item in array.reshape(-1).tolist()]
    if as_content and dtype == "string":
        tensor.tensor_content = bytes(len(item) for item in flat) + b"".join(flat)
    elif as_content:
        tensor.tensor_content = array.tobytes()
    else:
        getattr(tensor, field).extend(flat)


def _fill_spec(message: Any, spec: Mapping[str, Any]) -> None:
    message.SetInParent()
    message.name = spec.get("name", "")
    message.signature_name = spec.get("signature", "")
    if "version" in spec:
        message.version.value = spec["version"]
    if "label" in spec:
        message.version_label = spec["label"]


def _fill_example(example: Any, features: Mapping[str, Any]) -> None:
    example.SetInParent()
    for name, value in features.items():
        values = value if isinstance(value, list) else [value]
        feature = example.features.feature[name]
        if any(isinstance(item, str) for item in values):
            feature.bytes_list.value.extend(item.encode() for item in values)
        elif any(isinstance(item, float) for item in values):
            feature.float_list.value.extend(values)
        else:
            feature.int64_list.value.extend(values)


def read_tensor(tensor: Any) -> Any:
    """Converts a TensorProto of float32 numbers or of strings to a nested list."""
    shape = [dim.size for dim in tensor.tensor_shape.dim]
    if tensor.dtype == FIELDS["string"][0]:
        return np.array([item.decode() for item in tensor.string_val], object).reshape(shape).tolist()
    assert tensor.dtype == FIELDS["float"][0]
    values = np.frombuffer(tensor.tensor_content, "<f4") if tensor.tensor_content else np.array(tensor.float_val)
    return values.reshape(shape).tolist()


def _classes(result: Any) -> Any:
    return [[[c.label, c.score] for c in row.classes] for row in result.classifications]


def _values(result: Any) -> Any:
    return [regression.value for regression in result.regressions]


def _multi(response: Any) -> Any:
    return [
        [
            result.model_spec.signature_name,
            _values(result.regression_result)
            if result.HasField("regression_result")
            else _classes(result.classification_result),
        ]
        for result in response.results
    ]


def _versions(response: Any) -> Any:
    states = response.DESCRIPTOR.fields_by_name["model_version_status"].message_type.enum_types_by_name["State"]
    codes = message_class("tensorflow.serving.StatusProto").DESCRIPTOR.fields_by_name["error_code"].enum_type
    return [
        [
            v.version,
            states.values_by_number[v.state].name,
            codes.values_by_number[v.status.error_code].name,
            v.status.error_message,
        ]
        for v in response.model_version_status
    ]


_ANSWERS = {
    "predict": lambda response: {name: read_tensor(tensor) for name, tensor in response.outputs.items()},
    "classify": lambda response: _classes(response.result),
    "regress": lambda response: _values(response.result),
    "multi": _multi,
    "status": _versions,
    "metadata": lambda response: {"version": response.model_spec.version.value},
}
