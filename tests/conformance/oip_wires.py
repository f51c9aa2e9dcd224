"""Sends requests of the case table over the Open Inference Protocol.

This module is written from the specification alone; it shares no code with service.wire.oip_*.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any

import grpc
import numpy as np

from service.artifact.protos import message_class
from tests.conformance.wires import HTTP_STATUS_OF_CODE, Failure, HttpClient, Request

INFER = "/inference.GRPCInferenceService/ModelInfer"
_DATATYPES = {
    **{"int64": "INT64", "int32": "INT32", "float32": "FP32", "object": "BYTES", "bool": "BOOL", "float64": "FP64"},
    **{"uint8": "UINT8", "int8": "INT8", "int16": "INT16", "uint16": "UINT16"},
}
_FIELDS = {
    **{"INT64": "int64_contents", "FP32": "fp32_contents", "FP64": "fp64_contents", "BOOL": "bool_contents"},
    **{"BYTES": "bytes_contents", "INT8": "int_contents", "INT16": "int_contents", "INT32": "int_contents"},
    **{"UINT8": "uint_contents", "UINT16": "uint_contents"},
}


def raw_bytes(array: np.ndarray) -> bytes:
    """Returns a tensor's data in the binary form of the Open Inference Protocol."""
    if array.dtype != object:
        return array.astype(array.dtype.newbyteorder("<")).tobytes()
    return b"".join(struct.pack("<I", len(item)) + item for item in array.tolist())


def described(arrays: Mapping[str, np.ndarray], *, is_binary: bool) -> tuple[list[dict[str, Any]], bytes]:
    """Returns the inputs of a JSON document, and the binary data that follows it."""
    inputs, binary = [], b""
    for name, array in arrays.items():
        tensor: dict[str, Any] = {"name": name, "datatype": _DATATYPES[array.dtype.name], "shape": list(array.shape)}
        if is_binary:
            data = raw_bytes(array.reshape(-1))
            tensor["parameters"] = {"binary_data_size": len(data)}
            binary += data
        else:
            items = array.reshape(-1).tolist()
            tensor["data"] = [one.decode(errors="replace") if isinstance(one, bytes) else one for one in items]
        inputs.append(tensor)
    return inputs, binary


def infer_request(model: str, signature: str, arrays: Mapping[str, np.ndarray], *, is_raw: bool) -> Any:
    """Returns a ModelInferRequest with tensors in raw or in typed contents."""
    message = message_class("inference.ModelInferRequest")(model_name=model)
    message.parameters["signature_name"].string_param = signature
    for name, array in arrays.items():
        datatype = _DATATYPES[array.dtype.name]
        tensor = message.inputs.add(name=name, datatype=datatype, shape=array.shape)
        if is_raw:
            message.raw_input_contents.append(raw_bytes(array.reshape(-1)))
        else:
            getattr(tensor.contents, _FIELDS[datatype]).extend(array.reshape(-1).tolist())
    return message


class OipHttpWire:
    """Sends POST /v2/models/M/infer, with tensors in the JSON document or as binary data after it."""

    def __init__(self, client: HttpClient, *, is_binary: bool) -> None:
        self._client, self._is_binary = client, is_binary

    def code(self, canonical: str) -> int:
        """Returns the HTTP status of a canonical code."""
        return HTTP_STATUS_OF_CODE[canonical]

    def send(self, request: Request) -> dict[str, np.ndarray]:
        """Posts a request's tensors; returns the outputs or raises Failure."""
        inputs, binary = described(request.arrays(), is_binary=self._is_binary)
        parameters = {"signature_name": request.signature, "binary_data_output": self._is_binary}
        head = json.dumps({"id": "i", "inputs": inputs, "parameters": parameters}).encode()
        version = "" if request.version is None else f"/versions/{request.version}"
        path = f"/v2/models/{request.model}{version}/infer"
        headers = {"Inference-Header-Content-Length": str(len(head))} if self._is_binary else {}
        response = self._client.exchange("POST", path, head + binary, headers)
        if response.status_code != 200:
            answer = response.json()
            assert {"error"} <= set(answer) <= {"error", "models"}
            raise Failure(response.status_code, answer["error"])
        length = int(response.headers.get("Inference-Header-Content-Length", len(response.content)))
        document, rest = json.loads(response.content[:length]), response.content[length:]
        assert (document["id"], document["model_name"]) == ("i", request.model)
        assert document["parameters"] == {"signature_name": request.signature}
        outputs = {}
        for tensor in document["outputs"]:
            assert tensor["datatype"] == "FP32"
            size = tensor.get("parameters", {}).get("binary_data_size", 0)
            values = np.frombuffer(rest[:size], "<f4") if self._is_binary else np.array(tensor["data"], np.float32)
            rest = rest[size:]
            outputs[tensor["name"]] = values.reshape(tensor["shape"])
        assert rest == b""
        return outputs


class OipGrpcWire:
    """Calls ModelInfer, with tensors in raw or in typed contents."""

    def __init__(self, channel: grpc.Channel, *, is_raw: bool) -> None:
        self._infer, self._is_raw = channel.unary_unary(INFER), is_raw

    def code(self, canonical: str) -> str:
        """Returns the canonical code itself, which gRPC sends."""
        return canonical

    def send(self, request: Request) -> dict[str, np.ndarray]:
        """Sends a request's tensors; returns the outputs or raises Failure."""
        message = infer_request(request.model, request.signature, request.arrays(), is_raw=self._is_raw)
        message.id = "i"
        if request.version is not None:
            message.model_version = str(request.version)
        try:
            data = self._infer(message.SerializeToString(), timeout=60)
        except grpc.RpcError as error:
            raise Failure(error.code().name, error.details()) from error
        response = message_class("inference.ModelInferResponse").FromString(data)
        assert (response.id, response.model_name) == ("i", request.model)
        assert response.parameters["signature_name"].string_param == request.signature
        assert {tensor.datatype for tensor in response.outputs} <= {"FP32"}
        pairs = zip(response.outputs, response.raw_output_contents, strict=True)
        return {tensor.name: np.frombuffer(raw, "<f4").reshape(tensor.shape) for tensor, raw in pairs}
