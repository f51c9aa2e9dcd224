"""Uses gRPC reflection like grpcurl: lists and describes services, and calls them with the descriptors that it gets."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
from collections.abc import Iterator
from functools import partial
from typing import Any

import grpc
from google.protobuf import descriptor_pool, json_format, message_factory
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from loadtest.stock_clients.outcome import Check, Place, Skip, require

CLIENT = "reflection"
_STATUS_METHOD = ("tensorflow.serving.ModelService", "GetModelStatus")
_TIMEOUT_S = 60
# Services that the server's reflection must list; it may list more.
_EXPECTED = {
    "grpc.health.v1.Health",
    "grpc.reflection.v1alpha.ServerReflection",
    "tensorflow.serving.ModelService",
    "tensorflow.serving.PredictionService",
}


def checks(place: Place) -> Iterator[Check]:
    """Yields checks of a client that learns all messages by reflection, then of grpcurl if it is installed."""
    dynamic = _Dynamic(place)
    yield Check(CLIENT, "list", dynamic.list_services)
    for service in sorted(_EXPECTED):
        yield Check(CLIENT, f"describe {service}", partial(dynamic.describe, service))
    yield Check(CLIENT, "describe every other service", dynamic.describe_others)
    yield Check(CLIENT, "dynamic call of GetModelStatus", dynamic.model_status)
    if place.model.predicted():
        yield Check(CLIENT, "dynamic call of Predict", dynamic.predict)
    request = json.dumps({"model_spec": {"name": place.model.name}})
    for words in (["list"], ["describe", _STATUS_METHOD[0]], ["-d", request, "/".join(_STATUS_METHOD)]):
        yield Check("grpcurl", " ".join(words)[:50], partial(_grpcurl, place, words))


class _Dynamic:
    """A client that knows only the server's address, and learns all message types by reflection."""

    def __init__(self, place: Place) -> None:
        self._model = place.model
        self._channel = grpc.insecure_channel(place.grpc)
        self._database: Any = ProtoReflectionDescriptorDatabase(self._channel)
        self._pool: Any = descriptor_pool.DescriptorPool(self._database)

    def list_services(self) -> str:
        services = set(self._database.get_services())
        require(services >= _EXPECTED, f"missing: {_EXPECTED - services}")
        return ", ".join(sorted(services))

    def describe(self, service: str) -> str:
        methods = self._pool.FindServiceByName(service).methods
        for method in methods:
            # grpcurl looks up the request and the response type of each method, and all types that they use; so does
            # this check.
            message_factory.GetMessageClass(method.input_type)
            message_factory.GetMessageClass(method.output_type)
        require(bool(methods), "no methods")
        return ", ".join(method.name for method in methods)

    def describe_others(self) -> str:
        others = sorted(set(self._database.get_services()) - _EXPECTED)
        for service in others:
            self.describe(service)
        return ", ".join(others) or "none"

    def model_status(self) -> str:
        answer = self._call(*_STATUS_METHOD, {"model_spec": {"name": self._model.name}})
        states = [status["state"] for status in answer["model_version_status"]]
        require("AVAILABLE" in states, str(answer))
        return json.dumps(answer)

    def predict(self) -> str:
        signature = self._model.predicted()[0]
        inputs = {}
        for name, tensor in signature.tensors().items():
            # Tensors have their values in typed fields such as int64_val, as a person would write them, not in
            # tensor_content.
            field = {"i": "int64_val" if tensor.itemsize == 8 else "int_val", "f": "float_val", "O": "string_val"}
            if tensor.dtype.kind not in field:
                raise Skip(f"no JSON form here for {tensor.dtype}")
            values = tensor.ravel().tolist()
            if tensor.dtype == object:
                values = [base64.b64encode(value).decode() for value in values]
            shape = {"dim": [{"size": size} for size in tensor.shape]}
            inputs[name] = {"dtype": signature.inputs[name][0], "tensor_shape": shape, field[tensor.dtype.kind]: values}
        spec = {"name": self._model.name, "signature_name": signature.name}
        answer = self._call("tensorflow.serving.PredictionService", "Predict", {"model_spec": spec, "inputs": inputs})
        require(bool(answer["outputs"]), str(answer))
        return f"{signature.name}: {', '.join(sorted(answer['outputs']))}"

    def _call(self, service: str, method: str, request: dict[str, Any]) -> Any:
        found = self._pool.FindServiceByName(service).FindMethodByName(method)
        request_class = message_factory.GetMessageClass(found.input_type)
        response_class = message_factory.GetMessageClass(found.output_type)
        call: Any = self._channel.unary_unary(
            f"/{service}/{method}", request_class.SerializeToString, response_class.FromString
        )
        response = call(json_format.ParseDict(request, request_class()), timeout=_TIMEOUT_S)
        return json_format.MessageToDict(response, preserving_proto_field_name=True)


def _grpcurl(place: Place, words: list[str]) -> str:
    binary = shutil.which("grpcurl")
    if binary is None:
        raise Skip("grpcurl is not on PATH")
    options = words[:-1] if words[0] == "-d" else []
    rest = words[-1:] if words[0] == "-d" else words
    done = subprocess.run(
        [binary, "-plaintext", *options, place.grpc, *rest], capture_output=True, text=True, timeout=_TIMEOUT_S
    )
    require(done.returncode == 0, done.stderr)
    return done.stdout
