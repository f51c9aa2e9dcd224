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
from loadtest.live_server import JSON_TYPE

_TIMEOUT_S = 60


class GrpcWire:
    """A client with one gRPC channel to a server."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.insecure_channel(address, options=[("grpc.max_receive_message_length", -1)])
        self._stub = prediction_service_pb2_grpc.PredictionServiceStub(self._channel)
        self.close = self._channel.close

    def predict(self, model: str, signature: str, inputs: Tensors, _expected: object) -> Tensors:
        """Calls Predict over gRPC and returns the outputs by name; raises Refused."""
        request = predict_pb2.PredictRequest()
        request.model_spec.name, request.model_spec.signature_name = model, signature
        for name, array in inputs.items():
            request.inputs[name].CopyFrom(tf.make_tensor_proto(array))
        try:
            response = self._stub.Predict(request, _TIMEOUT_S)
        except grpc.RpcError as error:
            raise Refused(error.code().name, error.details()) from error
        return {name: tf.make_ndarray(tensor) for name, tensor in response.outputs.items()}


class RestWire:
    """A client with one HTTP connection to a server."""

    def __init__(self, url: str) -> None:
        self._connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=_TIMEOUT_S)
        self.close = self._connection.close

    def predict(self, model: str, signature: str, inputs: Tensors, expected: Tensors | Refused) -> Tensors:
        """Calls Predict over REST and returns the outputs with the dtypes of the expected ones; raises Refused.

        Raises ValueError if the answer has another form.
        """
        columns = {name: _plain(array) for name, array in inputs.items()}
        body = json.dumps({"signature_name": signature, "inputs": columns})
        self._connection.request("POST", f"/v1/models/{model}:predict", body, dict(JSON_TYPE))
        response = self._connection.getresponse()
        answer = json.loads(response.read())
        if response.status != 200:
            raise Refused(str(response.status), answer.get("error", ""))
        outputs = answer["outputs"]
        if isinstance(expected, Refused):
            return {}
        if not (isinstance(outputs, dict) and outputs.keys() == expected.keys()):
            # If a signature has one output, the JSON answer has no name of the output.
            (name,) = expected
            outputs = {name: outputs}
        return {name: _from_lists(outputs[name], array) for name, array in expected.items()}


def has_json_form(inputs: Tensors) -> bool:
    """Says whether JSON can express the shapes of all inputs: an empty array becomes a list of one dimension."""
    return all(array.size or array.ndim == 1 for array in inputs.values())


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
