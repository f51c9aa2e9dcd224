"""Starts a server, calls it with unmodified clients of other projects, and prints one line per call.

python -m loadtest.stock_clients                                     on a tiny model, trained and exported now
python -m loadtest.stock_clients --model_base_path models/movielens
python -m loadtest.stock_clients --model_base_path M --example '{"x": 1.0}' -- --tensorflow_session_parallelism=2

Exits with 1 after a failure. Every documented route is schemathesis' matter (`loadtest.fuzz --wires schema`).
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import os
import shutil
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from google.protobuf import descriptor_pool, message_factory
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from loadtest.live_server import say, served_model
from loadtest.model_samples import ServedModel, Signature, ask

_TIMEOUT_S = 60
_MAX_ANSWER = 100


class Skip(Exception):
    """Raised if a check must be skipped, because this machine or this model lacks something that the message names."""


@dataclass(frozen=True, slots=True)
class Place:
    """The addresses of the server, and the model that it serves.

    example: features of the tf.Example for Classify and Regress, in JSON form.
    """

    http: str
    grpc: str
    base_path: Path
    model: ServedModel
    example: Mapping[str, Any]

    def signature(self) -> Signature:
        """Returns the last signature that Predict can call; raises Skip if there is none."""
        if not self.model.predicted():
            raise Skip("every signature of the model takes tf.Examples")
        return self.model.predicted()[-1]


# A check: the client, the call, and what makes the call and returns the answer in a few words, or raises.
Check = tuple[str, str, Callable[[], str]]


def _refused(call: Callable[[], object], code: grpc.StatusCode, text: str = "") -> str:
    """Makes a gRPC call that must fail with this code, and with a text that begins so."""
    try:
        call()
    except grpc.RpcError as error:
        assert error.code() is code and error.details().startswith(text), f"{error.code()}: {error.details()}"
        return f"{code.name}: {error.details()}"
    raise AssertionError("it was answered")


def _program(name: str, *arguments: str) -> str:
    """Runs an installed program, and returns its output."""
    binary = shutil.which(name)
    if binary is None:
        raise Skip(f"{name} is not on PATH")
    done = subprocess.run([binary, *arguments], capture_output=True, text=True, timeout=_TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def health_checks(place: Place) -> Iterator[Check]:
    stub = health_pb2_grpc.HealthStub(grpc.insecure_channel(place.grpc))
    answers = health_pb2.HealthCheckResponse

    def check(service: str) -> str:
        return name(stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=_TIMEOUT_S).status)

    def watch() -> str:
        stream = stub.Watch(health_pb2.HealthCheckRequest(service=""), timeout=_TIMEOUT_S)
        status = next(stream).status
        stream.cancel()
        return f"first status {name(status)}"

    def name(status: int) -> str:
        assert status == answers.SERVING, answers.ServingStatus.Name(status)
        return "SERVING"

    for service in ("", "tensorflow.serving.PredictionService", place.model.name):
        yield "grpc_health", f"Check {service or 'the server'}", partial(check, service)
    unknown = partial(check, "no.such.Service")
    yield "grpc_health", "Check a service that is not there", partial(_refused, unknown, grpc.StatusCode.NOT_FOUND)
    yield "grpc_health", "Watch the server", watch
    yield "grpc_health_probe", "-addr", partial(_program, "grpc_health_probe", f"-addr={place.grpc}")


def _described(arrays: Mapping[str, np.ndarray]) -> str:
    return ", ".join(f"{name} {array.dtype}{list(array.shape)}" for name, array in sorted(arrays.items()))


_STATUS_METHOD = ("tensorflow.serving.ModelService", "GetModelStatus")
# Services that the server's reflection must list; it may list more.
_EXPECTED = {"grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}
_EXPECTED |= {"tensorflow.serving.ModelService", "tensorflow.serving.PredictionService"}


def reflection_checks(place: Place) -> Iterator[Check]:
    """Yields checks of a client that learns all messages by reflection, then of grpcurl if it is installed."""
    channel = grpc.insecure_channel(place.grpc)
    database: Any = ProtoReflectionDescriptorDatabase(channel)
    pool: Any = descriptor_pool.DescriptorPool(database)

    def services() -> str:
        found = set(database.get_services())
        assert found >= _EXPECTED, f"missing: {_EXPECTED - found}"
        return ", ".join(sorted(found))

    def describe() -> str:
        names = sorted(database.get_services())
        for method in (method for name in names for method in pool.FindServiceByName(name).methods):
            # grpcurl looks up the request and the response type of each method, and all types that they use; so does
            # this check.
            message_factory.GetMessageClass(method.input_type)
            message_factory.GetMessageClass(method.output_type)
        return ", ".join(names)

    def call(service: str, method: str, fill: Callable[[Any], None]) -> Any:
        found = pool.FindServiceByName(service).FindMethodByName(method)
        request = message_factory.GetMessageClass(found.input_type)()
        request.model_spec.name = place.model.name
        fill(request)
        answer = message_factory.GetMessageClass(found.output_type)
        unary: Any = channel.unary_unary(f"/{service}/{method}", type(request).SerializeToString, answer.FromString)
        return unary(request, timeout=_TIMEOUT_S)

    def status() -> str:
        states = call(*_STATUS_METHOD, lambda request: None).model_version_status
        # AVAILABLE = 30.
        assert 30 in [state.state for state in states], states
        return str(states)

    def predict() -> str:
        signature = place.signature()

        def fill(request: Any) -> None:
            request.model_spec.signature_name = signature.name
            for name, array in signature.tensors().items():
                tensor = request.inputs[name]
                tensor.dtype = {"int64": 9, "int32": 3, "float32": 1, "object": 7}[array.dtype.name]
                tensor.tensor_shape.MergeFrom(type(tensor.tensor_shape)(dim=[{"size": size} for size in array.shape]))
                field = {9: "int64_val", 3: "int_val", 1: "float_val", 7: "string_val"}[tensor.dtype]
                getattr(tensor, field).extend(array.ravel().tolist())

        outputs = call("tensorflow.serving.PredictionService", "Predict", fill).outputs
        assert bool(outputs), "no outputs"
        return f"{signature.name}: {', '.join(sorted(outputs))}"

    yield "reflection", "list", services
    yield "reflection", "describe every service", describe
    yield "reflection", "dynamic call of GetModelStatus", status
    yield "reflection", "dynamic call of Predict", predict
    request = json.dumps({"model_spec": {"name": place.model.name}})
    for options, words in (
        ((), ["list"]),
        ((), ["describe", _STATUS_METHOD[0]]),
        (("-d", request), ["/".join(_STATUS_METHOD)]),
    ):
        yield "grpcurl", " ".join(words), partial(_program, "grpcurl", "-plaintext", *options, place.grpc, *words)


def serving_api_checks(place: Place) -> Iterator[Check]:
    """Yields a check for each call of TensorFlow Serving's API; a call that the model does not support is skipped."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    client = "tensorflow-serving-api"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tf = importlib.import_module("tensorflow")
            apis = {
                name: importlib.import_module(f"tensorflow_serving.apis.{name}")
                for name in (
                    *("classification_pb2", "get_model_metadata_pb2", "get_model_status_pb2", "inference_pb2"),
                    *("model_management_pb2", "model_service_pb2_grpc", "predict_pb2", "prediction_service_pb2_grpc"),
                    "regression_pb2",
                )
            }
    except ImportError as error:
        yield client, "import", partial(_skip, f"not installed: {error}")
        return
    model = place.model
    channel = grpc.insecure_channel(place.grpc)
    prediction = apis["prediction_service_pb2_grpc"].PredictionServiceStub(channel)
    models = apis["model_service_pb2_grpc"].ModelServiceStub(channel)

    def request(module: str, message: str, signature: str = "", **fields: Any) -> Any:
        spec = {"name": model.name, "signature_name": signature}
        return getattr(apis[f"{module}_pb2"], message)(model_spec=spec, **fields)

    def examples() -> dict[str, Any]:
        found = tf.train.Example()
        for name, value in place.example.items():
            values = value if isinstance(value, list) else [value]
            feature = found.features.feature[name]
            if all(isinstance(v, int) for v in values):
                feature.int64_list.value.extend(values)
            elif all(isinstance(v, (int, float)) for v in values):
                feature.float_list.value.extend(values)
            else:
                feature.bytes_list.value.extend(str(v).encode() for v in values)
        return {"example_list": {"examples": [found]}}

    def predict(signature: Signature) -> str:
        asked = request("predict", "PredictRequest", signature.name)
        for name, tensor in signature.tensors().items():
            asked.inputs[name].CopyFrom(tf.make_tensor_proto(tensor))
        response = prediction.Predict(asked, _TIMEOUT_S)
        assert bool(response.outputs), "no outputs"
        assert response.model_spec.signature_name == signature.name, f"answered for {response.model_spec}"
        return _described({name: tf.make_ndarray(tensor) for name, tensor in response.outputs.items()})

    def classify(signature: Signature) -> str:
        asked = request("classification", "ClassificationRequest", signature.name, input=examples())
        (found,) = prediction.Classify(asked, _TIMEOUT_S).result.classifications
        return ", ".join(f"{c.label!r} {c.score:g}" for c in found.classes)

    def regress(signature: Signature) -> str:
        asked = request("regression", "RegressionRequest", signature.name, input=examples())
        (found,) = prediction.Regress(asked, _TIMEOUT_S).result.regressions
        return f"{found.value:g}"

    def multi_inference() -> str:
        asked = apis["inference_pb2"].MultiInferenceRequest(input=examples())
        for method in ("regress", "classify"):
            task = asked.tasks.add(method_name=f"tensorflow/serving/{method}")
            task.model_spec.name, task.model_spec.signature_name = model.name, model.of_method(method)[0].name
        kinds = [result.WhichOneof("result") for result in prediction.MultiInference(asked, _TIMEOUT_S).results]
        assert kinds == ["regression_result", "classification_result"], kinds
        return f"{len(kinds)} results"

    def metadata() -> str:
        asked = request("get_model_metadata", "GetModelMetadataRequest", metadata_field=["signature_def"])
        signatures = apis["get_model_metadata_pb2"].SignatureDefMap()
        answer = prediction.GetModelMetadata(asked, _TIMEOUT_S)
        assert answer.metadata["signature_def"].Unpack(signatures), "no SignatureDefMap"
        names = sorted(signatures.signature_def)
        assert names == [s.name for s in model.signatures], f"other than over HTTP: {names}"
        return ", ".join(names)

    def status() -> str:
        states = models.GetModelStatus(request("get_model_status", "GetModelStatusRequest"), _TIMEOUT_S)
        kinds = apis["get_model_status_pb2"].ModelVersionStatus
        found = states.model_version_status
        assert kinds.AVAILABLE in [one.state for one in found], found
        return ", ".join(f"version {one.version} {kinds.State.Name(one.state)}" for one in found)

    def reload() -> str:
        asked = apis["model_management_pb2"].ReloadConfigRequest()
        base_path = str(place.base_path.resolve())
        asked.config.model_config_list.config.add(name=model.name, base_path=base_path, model_platform="tensorflow")
        response = models.HandleReloadConfigRequest(asked, _TIMEOUT_S)
        assert response.status.error_code == 0, response.status
        return "OK, and " + status()

    def unknown_model() -> str:
        asked = apis["predict_pb2"].PredictRequest(model_spec={"name": "no_such_model"})
        text = "Servable not found for request: Latest(no_such_model)"
        return _refused(lambda: prediction.Predict(asked, _TIMEOUT_S), grpc.StatusCode.NOT_FOUND, text)

    for signature in model.predicted():
        yield client, f"Predict {signature.name}", partial(predict, signature)
    for method, call in (("classify", classify), ("regress", regress)):
        found = model.of_method(method)
        if not found:
            yield client, method.capitalize(), partial(_skip, f"the model has no signature to {method}")
        for signature in found:
            yield client, f"{method.capitalize()} {signature.name}", partial(call, signature)
    if model.of_method("regress") and model.of_method("classify"):
        yield client, "MultiInference", multi_inference
    yield client, "GetModelMetadata", metadata
    yield client, "GetModelStatus", status
    yield client, "HandleReloadConfigRequest", reload
    yield client, "Predict of a model that is not there", unknown_model


def _skip(reason: str) -> str:
    raise Skip(reason)


def triton_checks(place: Place) -> Iterator[Check]:
    name = place.model.name

    def client(wire: str, address: str) -> tuple[Any, Any]:
        try:
            module: Any = importlib.import_module(f"tritonclient.{wire}")
        except ImportError as error:
            raise Skip(f"not installed: {error}") from error
        return module, module.InferenceServerClient(address)

    def describe(wire: str, address: str) -> str:
        _, triton = client(wire, address)
        assert triton.is_server_live() and triton.is_server_ready() and triton.is_model_ready(name), "not ready"
        metadata = triton.get_model_metadata(name)
        found = metadata if isinstance(metadata, dict) else {"name": metadata.name, "platform": metadata.platform}
        assert found["name"] == name, found
        return str(found)

    def infer(wire: str, address: str) -> str:
        module, triton = client(wire, address)
        found = [s for s in place.model.predicted() if s.name == "serving_default"] or list(place.model.lookups())
        if not found:
            raise Skip("the model has no signature for it")
        numbers = importlib.import_module("tritonclient.utils")
        inputs = []
        for key, tensor in found[0].tensors().items():
            sent = module.InferInput(key, list(tensor.shape), numbers.np_to_triton_dtype(tensor.dtype))
            sent.set_data_from_numpy(tensor)
            inputs.append(sent)
        result = triton.infer(name, inputs)
        response = result.get_response()
        outputs = response["outputs"] if isinstance(response, dict) else [{"name": o.name} for o in response.outputs]
        arrays = {output["name"]: result.as_numpy(output["name"]) for output in outputs}
        assert bool(arrays) and all(isinstance(array, np.ndarray) for array in arrays.values()), response
        return _described(arrays)

    for wire, address in (("http", place.http.removeprefix("http://")), ("grpc", place.grpc)):
        yield "tritonclient", f"{wire}: live, ready, metadata", partial(describe, wire, address)
        yield "tritonclient", f"{wire}: infer", partial(infer, wire, address)


CLIENTS: dict[str, Callable[[Place], Iterator[Check]]] = {
    "serving_api": serving_api_checks,
    "reflection": reflection_checks,
    "health": health_checks,
    "triton": triton_checks,
}


def _outcome(run: Callable[[], str]) -> tuple[str, str]:
    try:
        return "ok", run()
    except Skip as reason:
        return "skipped", str(reason)
    except Exception as error:
        # Any exception that a stock client raises counts as a failure of the check.
        return "FAILED", "".join(traceback.format_exception_only(error))


def main() -> int:
    """Runs the checks of all stock clients; returns 1 if a call failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model_name", default="movielens")
    parser.add_argument("--model_base_path", type=Path, help="default: a tiny model, trained and exported now")
    parser.add_argument("--example", type=json.loads, default={}, help="a tf.Example to classify, as JSON")
    parser.add_argument("--signatures", default="", help="which to call, comma-separated (default: all)")
    parser.add_argument("--clients", default=",".join(CLIENTS), help="which, comma-separated (default: %(default)s)")
    parser.add_argument("server_flags", nargs="*", help="more flags of the server, after --")
    options = parser.parse_args()
    counts = {"ok": 0, "skipped": 0, "FAILED": 0}
    with served_model(options.model_base_path, options.model_name, options.server_flags) as (server, base_path):
        called = frozenset(filter(None, options.signatures.split(",")))
        model = dataclasses.replace(ask(server.http, options.model_name), called=called)
        place = Place(server.http, server.grpc, base_path, model, options.example)
        for name in options.clients.split(","):
            for client, call, run in CLIENTS[name](place):
                verdict, answer = _outcome(run)
                counts[verdict] += 1
                answer = " ".join(answer.split())
                if len(answer) > _MAX_ANSWER and verdict == "ok":
                    answer = answer[:_MAX_ANSWER] + " ..."
                say(f"{client:<22} {call:<62} {verdict:<8} {answer}")
        say(", ".join(f"{count} {verdict}" for verdict, count in counts.items()))
        for fault, count in server.faults.most_common():
            say(f"the server logged {count} times: {fault}")
        return 1 if counts["FAILED"] or server.faults else 0


if __name__ == "__main__":
    sys.exit(main())
