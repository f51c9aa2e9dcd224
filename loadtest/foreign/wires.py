"""Calls a server's Predict over gRPC with the stock stubs, and over REST with columnar JSON."""

from __future__ import annotations

import base64
import http.client
import json
from typing import Any
from urllib.parse import urlsplit

import grpc
import numpy as np
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

from loadtest.foreign.comparing import Refused
from loadtest.foreign.kinds import Array, Tensors

_TIMEOUT_S = 60


class GrpcWire:
    """A client with one gRPC channel to a server."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.insecure_channel(address, options=[("grpc.max_receive_message_length", -1)])
        self._stub = prediction_service_pb2_grpc.PredictionServiceStub(self._channel)

    def predict(self, model: str, signature: str, inputs: Tensors) -> Tensors:
        """Calls Predict over gRPC and returns the outputs by name; raises Refused."""
        try:
            response = self._stub.Predict(grpc_request(model, signature, inputs), _TIMEOUT_S)
        except grpc.RpcError as error:
            raise Refused(error.code().name, error.details()) from error
        return {name: tf.make_ndarray(tensor) for name, tensor in response.outputs.items()}

    def close(self) -> None:
        self._channel.close()


def grpc_request(model: str, signature: str, inputs: Tensors) -> Any:
    request = predict_pb2.PredictRequest()
    request.model_spec.name, request.model_spec.signature_name = model, signature
    for name, array in inputs.items():
        request.inputs[name].CopyFrom(tf.make_tensor_proto(array))
    return request


class RestWire:
    """A client with one HTTP connection to a server."""

    def __init__(self, url: str) -> None:
        self._connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=_TIMEOUT_S)

    def predict(self, model: str, signature: str, inputs: Tensors) -> Any:
        """Calls Predict over REST; returns a dict of outputs, or a single output without its name; raises Refused."""
        self._connection.request(
            "POST", rest_path(model), rest_body(signature, inputs), {"content-type": "application/json"}
        )
        response = self._connection.getresponse()
        body = json.loads(response.read())
        if response.status != 200:
            raise Refused(str(response.status), body.get("error", ""))
        return body["outputs"]

    def close(self) -> None:
        self._connection.close()


def rest_path(model: str) -> str:
    return f"/v1/models/{model}:predict"


def rest_body(signature: str, inputs: Tensors) -> bytes:
    columns = {name: _plain(array) for name, array in inputs.items()}
    return json.dumps({"signature_name": signature, "inputs": columns}).encode()


def has_json_form(inputs: Tensors) -> bool:
    """Says whether JSON can express the shapes of all inputs: an empty array becomes a list of one dimension."""
    return all(array.size or array.ndim == 1 for array in inputs.values())


def from_json(outputs: Any, expected: Tensors) -> Tensors:
    """Converts a JSON answer to arrays of the expected dtypes; raises ValueError if the answer has another form."""
    if not (isinstance(outputs, dict) and outputs.keys() == expected.keys()):
        # If a signature has one output, the JSON answer has no name of the output.
        (name,) = expected
        outputs = {name: outputs}
    return {name: _from_lists(outputs[name], array) for name, array in expected.items()}


def _from_lists(value: Any, like: Array) -> Array:
    if like.dtype == object:
        return np.array([_bytes(item) for item in np.array(value, object).reshape(-1)], object).reshape(like.shape)
    # JSON numbers are doubles, which convert exactly to the server's float16 or bfloat16 numbers.
    array = np.array(value, np.float64 if like.dtype.kind in "fV" else like.dtype)
    if not like.size and not array.size:
        array = array.reshape(like.shape)
    return array.astype(like.dtype)


def _bytes(item: Any) -> bytes:
    return base64.b64decode(item["b64"]) if isinstance(item, dict) else str(item).encode()


def _plain(array: Array) -> Any:
    if array.dtype == object:
        flat = [{"b64": base64.b64encode(item).decode()} for item in array.reshape(-1)]
        return np.array(flat, object).reshape(array.shape).tolist()
    return array.tolist()
