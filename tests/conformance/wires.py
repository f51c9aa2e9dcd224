"""Sends requests of the case table over each wire; returns arrays or raises Failure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import grpc
import httpx
import numpy as np

from service.artifact.protos import message_class
from tests.oracle import ragged

PREDICT = "/tensorflow.serving.PredictionService/Predict"
# Name of a numpy dtype -> its number in TensorFlow's DataType, its field of TensorProto.
FIELDS = {
    "float32": (1, "float_val"),
    "float64": (2, "double_val"),
    "int32": (3, "int_val"),
    "uint8": (4, "int_val"),
    "int16": (5, "int_val"),
    "int8": (6, "int_val"),
    "object": (7, "string_val"),
    "int64": (9, "int64_val"),
    "bool": (10, "bool_val"),
    "uint16": (17, "int_val"),
}
# Canonical code -> HTTP status. Some codes share a status, so only gRPC tells them apart.
HTTP_STATUS_OF_CODE = {
    "INVALID_ARGUMENT": 400,
    "FAILED_PRECONDITION": 400,
    "NOT_FOUND": 404,
    "RESOURCE_EXHAUSTED": 413,
    "UNAVAILABLE": 503,
}


@dataclass(frozen=True)
class Request:
    """One request of the case table.

    features, weights: for :lookup: an id per row, or a list of ids per row.
    inputs: raw tensors instead, as flat lists, for requests that :lookup can not express.
    id_dtype: dtype of the id tensors; None: that of the toy model's signature, or string for strings.
    """

    signature: str
    features: Mapping[str, Any] = field(default_factory=dict)
    weights: Mapping[str, Any] = field(default_factory=dict)
    inputs: Mapping[str, Any] | None = None
    model: str = "toy"
    version: int | None = None
    id_dtype: str | None = None

    @property
    def path(self) -> str:
        """Returns the HTTP path of the model and version."""
        return f"/v1/models/{self.model}" + ("" if self.version is None else f"/versions/{self.version}")

    def arrays(self) -> dict[str, np.ndarray]:
        """Returns the request's tensors by input name."""
        id_dtype = self.id_dtype or ("int32" if "tensor_core" in self.signature else "int64")
        if self.inputs is not None:
            return {name: _array(name, value, id_dtype) for name, value in self.inputs.items()}
        arrays = {}
        for name, rows in self.features.items():
            if not is_ragged(rows):
                arrays[name] = _array(name, rows, id_dtype)
                continue
            values, splits = ragged(rows, "O")
            arrays[f"{name}__values"] = _array(name, values.tolist(), id_dtype)
            arrays[f"{name}__row_splits"] = splits
            if name in self.weights:
                arrays[f"{name}__weights"] = ragged(self.weights[name], "float32")[0]
        return arrays


OIP_WIRES = ("oip json", "oip binary", "oip grpc", "oip grpc contents")
WIRES = ("http :lookup", "http columns", "http rows", "grpc", *OIP_WIRES)


def takes(wire_name: str, request: Request) -> bool:
    """Says whether a wire has a form for a request: raw tensors need columns, rows need equal positive counts."""
    if wire_name in ("grpc", *OIP_WIRES):
        return True
    if request.inputs is not None:
        return wire_name == "http columns"
    return wire_name != "http rows" or len({len(rows) for rows in request.features.values()}) == 1


class Failure(Exception):
    """An error answer: its code on the wire, and its text."""

    def __init__(self, code: str | int, text: str) -> None:
        super().__init__(code, text)
        self.code, self.text = code, text


class Wire(Protocol):
    """The interface of a wire that sends requests of the case table."""

    def send(self, request: Request) -> dict[str, np.ndarray]:
        """Sends a request and returns the outputs; raises Failure."""

    def code(self, canonical: str) -> str | int:
        """Returns the value of Failure.code on this wire for a canonical code."""


def is_ragged(rows: Any) -> bool:
    """Says whether the rows that a case has for a feature are lists of ids."""
    return any(isinstance(row, list) for row in rows)


def _array(name: str, value: Any, id_dtype: str) -> np.ndarray:
    flat = np.array(value, dtype=object).reshape(-1).tolist()
    is_text = id_dtype == "string" and not name.endswith(("__weights", "__row_splits"))
    if is_text or any(isinstance(item, str) for item in flat):
        return np.array([item.encode() for item in flat], object)
    if name.endswith("__weights") or any(isinstance(item, float) for item in flat):
        return np.array(value, np.float32)
    return np.array(value, "int64" if name.endswith("__row_splits") else id_dtype)


class GrpcWire:
    """Calls Predict over a gRPC channel on the loopback interface."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._predict = channel.unary_unary(PREDICT)

    def code(self, canonical: str) -> str:
        """Is the canonical code."""
        return canonical

    def send(self, request: Request) -> dict[str, np.ndarray]:
        """Sends a request's tensors to Predict; returns the outputs or raises Failure."""
        message = message_class("tensorflow.serving.PredictRequest")()
        message.model_spec.name = request.model
        message.model_spec.signature_name = request.signature
        if request.version is not None:
            message.model_spec.version.value = request.version
        for name, array in request.arrays().items():
            fill_tensor(message.inputs[name], array)
        try:
            data = self._predict(message.SerializeToString(), timeout=60)
        except grpc.RpcError as error:
            raise Failure(error.code().name, error.details()) from error
        response = message_class("tensorflow.serving.PredictResponse").FromString(data)
        assert response.model_spec.signature_name == request.signature
        return {name: read_tensor(tensor) for name, tensor in response.outputs.items()}


def predict_request(model: str, inputs: Mapping[str, np.ndarray], signature: str = "lookup") -> bytes:
    """Returns the bytes of a PredictRequest."""
    message = message_class("tensorflow.serving.PredictRequest")()
    message.model_spec.name, message.model_spec.signature_name = model, signature
    for name, array in inputs.items():
        fill_tensor(message.inputs[name], array)
    return bytes(message.SerializeToString())


def predict_outputs(response: bytes) -> dict[str, np.ndarray]:
    """Returns the outputs in the bytes of a PredictResponse."""
    message = message_class("tensorflow.serving.PredictResponse").FromString(response)
    return {name: read_tensor(tensor) for name, tensor in message.outputs.items()}


def fill_tensor(tensor: Any, array: np.ndarray) -> None:
    """Fills a TensorProto with an array."""
    tensor.dtype, field = FIELDS[array.dtype.name]
    tensor.tensor_shape.SetInParent()
    for size in array.shape:
        tensor.tensor_shape.dim.add().size = size
    getattr(tensor, field).extend(array.reshape(-1).tolist())


def read_tensor(tensor: Any) -> np.ndarray:
    """Converts a float TensorProto to an array."""
    assert tensor.dtype == 1
    shape = [dim.size for dim in tensor.tensor_shape.dim]
    return np.array(tensor.float_val, np.float32).reshape(shape)


class HttpWire:
    """Posts requests in one JSON form.

    layout: "lookup" (:lookup), "columns" (:predict with inputs) or "rows" (:predict with instances).
    """

    def __init__(self, client: HttpClient, layout: str) -> None:
        self._client, self._layout = client, layout

    def code(self, canonical: str) -> int:
        """Is the status."""
        return HTTP_STATUS_OF_CODE[canonical]

    def send(self, request: Request) -> dict[str, np.ndarray]:
        """Posts a request in this layout; returns the outputs or raises Failure."""
        weights = {f"{name}__weights": rows for name, rows in request.weights.items()}
        if self._layout == "lookup":
            method, body = "lookup", {"features": request.features, "weights": request.weights}
        elif self._layout == "columns":
            columns = request.features | weights if request.inputs is None else request.inputs
            method, body = "predict", {"inputs": columns}
        else:
            columns = request.features | weights
            rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
            method, body = "predict", {"instances": rows}
        status, answer = self._client.post(
            f"{request.path}:{method}", json.dumps(body | {"signature_name": request.signature})
        )
        if status != 200:
            assert {"error"} <= set(answer) <= {"error", "models"}
            raise Failure(status, answer["error"])
        return self._outputs(answer, request)

    def _outputs(self, answer: Any, request: Request) -> dict[str, np.ndarray]:
        (key,) = answer
        assert key == {"lookup": "embeddings", "columns": "outputs", "rows": "predictions"}[self._layout]
        outputs = answer[key]
        if self._layout == "rows" and isinstance(outputs[0], dict):
            outputs = {name: [row[name] for row in outputs] for name in outputs[0]}
        if not isinstance(outputs, dict):
            # An answer in JSON with a single output has no name of the output.
            (name,) = {name.split("__")[0] for name in request.arrays()}
            outputs = {name: outputs}
        return {name: np.array(rows, np.float32) for name, rows in outputs.items()}


class HttpClient:
    """A blocking client of a server process."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client

    def post(self, path: str, body: str) -> tuple[int, Any]:
        """Sends a POST; returns the status and the parsed body."""
        return self.request("POST", path, body)

    def request(self, method: str, path: str, body: str = "") -> tuple[int, Any]:
        """Returns status and parsed body."""
        response = self.exchange(method, path, body.encode())
        return response.status_code, response.json()

    def exchange(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> httpx.Response:
        """Sends a request and returns the whole answer."""
        return self._client.request(method, path, content=body, headers=headers)
