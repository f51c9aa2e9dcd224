"""Makes checks of stock clients: calls by unmodified clients of other projects, and by the project's own."""

from __future__ import annotations

import base64
import importlib
import json
import os
import shutil
import subprocess
import urllib.error
import urllib.request
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from urllib.parse import urlencode

import grpc
import numpy as np
from google.protobuf import descriptor_pool, json_format, message_factory
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from embedding_client import EmbeddingClient
from loadtest.model_samples import Signature
from loadtest.stock_clients.outcome import Check, Place, Skip, require

_CURL = "curl"
_TIMEOUT_S = 60


def curl_checks(place: Place) -> Iterator[Check]:
    with urllib.request.urlopen(f"{place.http}/openapi.json", timeout=_TIMEOUT_S) as response:
        document = json.load(response)
    for path, operations in document["paths"].items():
        for verb, operation in operations.items():
            queries = [one for one in operation.get("parameters", ()) if one["in"] == "query" and "example" in one]
            query = urlencode({one["name"]: one["example"] for one in queries})
            yield Check(_CURL, f"{verb.upper()} {path}", partial(_documented, place, verb, path, query))
    url, monitoring = f"/v1/models/{place.model.name}", "/monitoring/prometheus/metrics"
    yield Check(_CURL, "POST :predict, instances", partial(_instances, place))
    yield Check(_CURL, "POST :predict, broken JSON", partial(_is_refused, place, f"{url}:predict", "{", 400))
    yield Check(_CURL, "GET a model that is not there", partial(_is_refused, place, "/v1/models/nothing", None, 404))
    yield Check(_CURL, "GET outside /v1", partial(_is_refused, place, "/v2000", None, 404))
    yield Check(_CURL, f"GET {monitoring}", partial(_get_text, place, monitoring))


def _documented(place: Place, verb: str, path: str, query: str) -> str:
    if path.startswith("/v2"):
        raise Skip("the routes of the Open Inference Protocol are tritonclient's")
    model = place.model
    table = next(iter(model.tables), "")
    if "{table}" in path and not table:
        raise Skip("the model has no tables")
    if "{label}" in path:
        raise Skip("the server gives the model no label")
    names = {"model": model.name, "version": model.version, "table": table}
    url = path.format(**names) + (f"?{query}" if query else "")
    if verb == "get" and "json" not in _content_type(place, url):
        return _get_text(place, url)
    if verb == "get":
        status, answer = _curl(place, url)
        # The HTTP status 202 is right for these paths: the server computes a map and its colours in the background.
        is_computed = path.endswith((":projection", ":drift", ":names"))
        require(status == 200 or (status == 202 and is_computed), f"{status}: {answer}")
        return json.dumps(answer)
    kind = path.rpartition(":")[2]
    body = _body(place, kind)
    status, answer = _curl(place, url, json.dumps(body))
    require(status == 200, f"{status}: {answer}")
    return json.dumps(answer)


def _body(place: Place, kind: str) -> dict[str, Any]:
    model = place.model
    if kind == "rows":
        return {"ids": [1, 0]}
    if kind == "neighbors":
        return {"ids": [1], "k": 2}
    if kind == "lookup":
        if not model.lookups():
            raise Skip("the model has no lookups")
        return {"signature_name": model.lookups()[0].name, "features": model.lookups()[0].columns()}
    if kind in ("classify", "regress"):
        found = model.of_method(kind)
        if not found:
            raise Skip(f"the model has no signature to {kind}")
        return {"signature_name": found[0].name, "examples": [place.example]}
    if not model.predicted():
        raise Skip("every signature of the model takes tf.Examples")
    signature = model.predicted()[-1]
    return {"signature_name": signature.name, "inputs": signature.columns()}


def _instances(place: Place) -> str:
    if not place.model.predicted():
        raise Skip("every signature of the model takes tf.Examples")
    signature = place.model.predicted()[-1]
    columns = signature.columns()
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    body = {"signature_name": signature.name, "instances": rows}
    status, answer = _curl(place, f"/v1/models/{place.model.name}:predict", json.dumps(body))
    require(status == 200 and len(answer["predictions"]) == len(rows), f"{status}: {answer}")
    return json.dumps(answer)


def _is_refused(place: Place, url: str, body: str | None, expected: int) -> str:
    status, answer = _curl(place, url, body)
    require(status == expected and {*answer} - {"models"} == {"error"}, f"{status}: {answer}")
    return f"{status} {json.dumps(answer)}"


def _get_text(place: Place, url: str) -> str:
    done = _run_curl(place, url)
    status, _, text = done.partition("\n")
    require(status == "200" and text != "", done)
    return f"{len(text.splitlines())} lines"


def _content_type(place: Place, url: str) -> str:
    return _run_curl(place, url, "-o/dev/null", "-w%{content_type}")


def _curl(place: Place, url: str, body: str | None = None) -> tuple[int, Any]:
    options = [] if body is None else ["-d", body]
    status, _, text = _run_curl(place, url, *options).partition("\n")
    return int(status), json.loads(text)


def _run_curl(place: Place, url: str, *options: str) -> str:
    """Runs curl; returns status and body, divided by a line break, or, with -w among the options, curl's own output."""
    binary = shutil.which("curl")
    if binary is None:
        raise Skip("curl is not on PATH")
    # With -w, curl prints the status as a last line after the body, which may hold any bytes; -D - would print all
    # headers, too.
    command = [binary, "-sS", *(options or ()), f"{place.http}{url}"]
    if not any(option.startswith("-w") for option in options):
        command += ["-w", "\n%{http_code}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S)
    require(done.returncode == 0, done.stderr)
    body, _, status = done.stdout.rpartition("\n")
    return f"{status}\n{body}" if body else done.stdout


_HEALTH_PROBE = "grpc_health"


def health_probe_checks(place: Place) -> Iterator[Check]:
    stub = health_pb2_grpc.HealthStub(grpc.insecure_channel(place.grpc))
    for service in ("", "tensorflow.serving.PredictionService", place.model.name):
        yield Check(_HEALTH_PROBE, f"Check {service or 'the server'}", partial(_check, stub, service))
    yield Check(_HEALTH_PROBE, "Check a service that is not there", partial(_check_unknown, stub))
    yield Check(_HEALTH_PROBE, "Watch the server", partial(_watch, stub))
    yield Check("grpc_health_probe", "-addr", partial(_probe, place))


def _check(stub: Any, service: str) -> str:
    status = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=_TIMEOUT_S).status
    require(status == health_pb2.HealthCheckResponse.SERVING, _name(status))
    return _name(status)


def _check_unknown(stub: Any) -> str:
    try:
        stub.Check(health_pb2.HealthCheckRequest(service="no.such.Service"), timeout=_TIMEOUT_S)
    except grpc.RpcError as error:
        require(error.code() is grpc.StatusCode.NOT_FOUND, str(error.code()))
        return f"NOT_FOUND: {error.details()}"
    raise AssertionError("it was answered")


def _watch(stub: Any) -> str:
    stream = stub.Watch(health_pb2.HealthCheckRequest(service=""), timeout=_TIMEOUT_S)
    status = next(stream).status
    stream.cancel()
    require(status == health_pb2.HealthCheckResponse.SERVING, _name(status))
    return f"first status {_name(status)}"


def _name(status: int) -> str:
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(status))


def _probe(place: Place) -> str:
    binary = shutil.which("grpc_health_probe")
    if binary is None:
        raise Skip("grpc_health_probe is not on PATH")
    done = subprocess.run([binary, f"-addr={place.grpc}"], capture_output=True, text=True, timeout=_TIMEOUT_S)
    require(done.returncode == 0, done.stderr)
    return done.stdout + done.stderr


_OWN_CLIENT = "embedding_client"


def own_client_checks(place: Place) -> Iterator[Check]:
    for wire, target in (("grpc", place.grpc), ("http", place.http)):
        yield Check(_OWN_CLIENT, f"{wire}: status, metadata, rows", partial(_describe, place, target))
    for signature in place.model.predicted():
        yield Check(_OWN_CLIENT, f"predict {signature.name}, grpc = http", partial(_same, place, signature))
    yield Check(_OWN_CLIENT, "lookup, grpc = http", partial(_lookup, place))


def _open(place: Place, target: str) -> EmbeddingClient:
    # EmbeddingClient.rows() works only over HTTP, so a client of gRPC gets an HTTP address too.
    http_target = None if target.startswith("http") else place.http
    return EmbeddingClient(target, model=place.model.name, timeout_s=_TIMEOUT_S, http_target=http_target)


def _describe(place: Place, target: str) -> str:
    with _open(place, target) as client:
        states = client.status()
        require(place.model.version in [status.version for status in states], str(states))
        found = sorted(client.metadata().signatures)
        require(found == [s.name for s in place.model.signatures], f"other than over HTTP: {found}")
        table = next(iter(place.model.tables), None)
        rows = "no tables" if table is None else f"rows of {table} {list(client.rows(table, [1, 0]).shape)}"
    return f"{states[0].version} {states[0].state.name}, {len(found)} signatures, {rows}"


def _same(place: Place, signature: Signature) -> str:
    with _open(place, place.grpc) as over_grpc, _open(place, place.http) as over_http:
        inputs = signature.tensors()
        first = over_grpc.predict(inputs, signature=signature.name)
        second = over_http.predict(inputs, signature=signature.name)
    return _compare(first, second)


def _lookup(place: Place) -> str:
    if not place.model.lookups():
        raise Skip("the model has no lookups")
    signature = place.model.lookups()[0]
    with _open(place, place.grpc) as over_grpc, _open(place, place.http) as over_http:
        first = over_grpc.lookup(signature.columns(), signature=signature.name)
        second = over_http.lookup(signature.columns(), signature=signature.name)
    return _compare(first, second)


def _compare(first: dict[str, np.ndarray], second: dict[str, np.ndarray]) -> str:
    require(first.keys() == second.keys() and bool(first), f"{sorted(first)} and {sorted(second)}")
    for name, array in first.items():
        require(np.array_equal(array, second[name], equal_nan=True), f"{name} differs")
    return ", ".join(f"{name} {array.dtype}{list(array.shape)}" for name, array in sorted(first.items()))


_REFLECTED = "reflection"
_STATUS_METHOD = ("tensorflow.serving.ModelService", "GetModelStatus")
# Services that the server's reflection must list; it may list more.
_EXPECTED = {
    "grpc.health.v1.Health",
    "grpc.reflection.v1alpha.ServerReflection",
    "tensorflow.serving.ModelService",
    "tensorflow.serving.PredictionService",
}


def reflected_checks(place: Place) -> Iterator[Check]:
    """Yields checks of a client that learns all messages by reflection, then of grpcurl if it is installed."""
    dynamic = _Dynamic(place)
    yield Check(_REFLECTED, "list", dynamic.list_services)
    for service in sorted(_EXPECTED):
        yield Check(_REFLECTED, f"describe {service}", partial(dynamic.describe, service))
    yield Check(_REFLECTED, "describe every other service", dynamic.describe_others)
    yield Check(_REFLECTED, "dynamic call of GetModelStatus", dynamic.model_status)
    if place.model.predicted():
        yield Check(_REFLECTED, "dynamic call of Predict", dynamic.predict)
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


_STUBS = "tensorflow-serving-api"


def serving_api_checks(place: Place) -> Iterator[Check]:
    """Yields a check for each call of TensorFlow Serving's API; a call that the model does not support is skipped."""
    try:
        stubs = _Stubs(place)
    except ImportError as error:
        yield Check(_STUBS, "import", partial(_skip, f"not installed: {error}"))
        return
    for signature in place.model.predicted():
        yield Check(_STUBS, f"Predict {signature.name}", partial(stubs.predict, signature))
    for method in ("classify", "regress"):
        found = place.model.of_method(method)
        if not found:
            yield Check(_STUBS, method.capitalize(), partial(_skip, f"the model has no signature to {method}"))
        for signature in found:
            yield Check(_STUBS, f"{method.capitalize()} {signature.name}", partial(getattr(stubs, method), signature))
    if place.model.of_method("regress") and place.model.of_method("classify"):
        yield Check(_STUBS, "MultiInference", stubs.multi_inference)
    yield Check(_STUBS, "GetModelMetadata", stubs.metadata)
    yield Check(_STUBS, "GetModelStatus", stubs.status)
    yield Check(_STUBS, "HandleReloadConfigRequest", stubs.reload)
    yield Check(_STUBS, "Predict of a model that is not there", stubs.unknown_model)


def _skip(reason: str) -> str:
    raise Skip(reason)


class _Stubs:
    """The stubs of tensorflow-serving-api on one gRPC channel."""

    def __init__(self, place: Place) -> None:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import tensorflow as tf
            from tensorflow_serving.apis import (
                classification_pb2,
                get_model_metadata_pb2,
                get_model_status_pb2,
                inference_pb2,
                model_management_pb2,
                model_service_pb2_grpc,
                predict_pb2,
                prediction_service_pb2_grpc,
                regression_pb2,
            )
        self._tf: Any = tf
        self._place, self._model = place, place.model
        self._channel = grpc.insecure_channel(place.grpc)
        self._prediction = prediction_service_pb2_grpc.PredictionServiceStub(self._channel)
        self._models = model_service_pb2_grpc.ModelServiceStub(self._channel)
        self._predict_pb2, self._classification_pb2 = predict_pb2, classification_pb2
        self._regression_pb2, self._inference_pb2 = regression_pb2, inference_pb2
        self._metadata_pb2, self._status_pb2 = get_model_metadata_pb2, get_model_status_pb2
        self._management_pb2 = model_management_pb2

    def predict(self, signature: Signature) -> str:
        request = self._predict_pb2.PredictRequest()
        request.model_spec.name = self._model.name
        request.model_spec.signature_name = signature.name
        for name, tensor in signature.tensors().items():
            request.inputs[name].CopyFrom(self._tf.make_tensor_proto(tensor))
        response = self._prediction.Predict(request, _TIMEOUT_S)
        require(bool(response.outputs), "no outputs")
        require(response.model_spec.signature_name == signature.name, f"answered for {response.model_spec}")
        arrays = {name: self._tf.make_ndarray(tensor) for name, tensor in response.outputs.items()}
        return ", ".join(f"{name} {array.dtype}{list(array.shape)}" for name, array in sorted(arrays.items()))

    def classify(self, signature: Signature) -> str:
        request = self._classification_pb2.ClassificationRequest()
        self._fill(request, signature)
        (found,) = self._prediction.Classify(request, _TIMEOUT_S).result.classifications
        return ", ".join(f"{c.label!r} {c.score:g}" for c in found.classes)

    def regress(self, signature: Signature) -> str:
        request = self._regression_pb2.RegressionRequest()
        self._fill(request, signature)
        (found,) = self._prediction.Regress(request, _TIMEOUT_S).result.regressions
        return f"{found.value:g}"

    def multi_inference(self) -> str:
        request = self._inference_pb2.MultiInferenceRequest()
        for method in ("regress", "classify"):
            task = request.tasks.add()
            task.model_spec.name = self._model.name
            task.model_spec.signature_name = self._model.of_method(method)[0].name
            task.method_name = f"tensorflow/serving/{method}"
        request.input.example_list.examples.append(self._example())
        results = self._prediction.MultiInference(request, _TIMEOUT_S).results
        kinds = [result.WhichOneof("result") for result in results]
        require(kinds == ["regression_result", "classification_result"], str(kinds))
        return f"{len(results)} results"

    def metadata(self) -> str:
        request = self._metadata_pb2.GetModelMetadataRequest()
        request.model_spec.name = self._model.name
        request.metadata_field.append("signature_def")
        response = self._prediction.GetModelMetadata(request, _TIMEOUT_S)
        signatures = self._metadata_pb2.SignatureDefMap()
        require(response.metadata["signature_def"].Unpack(signatures), "no SignatureDefMap")
        names = sorted(signatures.signature_def)
        require(names == [s.name for s in self._model.signatures], f"other than over HTTP: {names}")
        return ", ".join(names)

    def status(self) -> str:
        request = self._status_pb2.GetModelStatusRequest()
        request.model_spec.name = self._model.name
        states = self._models.GetModelStatus(request, _TIMEOUT_S).model_version_status
        name = self._status_pb2.ModelVersionStatus.State.Name
        require(self._status_pb2.ModelVersionStatus.AVAILABLE in [s.state for s in states], str(states))
        return ", ".join(f"version {s.version} {name(s.state)}" for s in states)

    def reload(self) -> str:
        request = self._management_pb2.ReloadConfigRequest()
        config = request.config.model_config_list.config.add()
        config.name, config.base_path = self._model.name, str(self._place.base_path.resolve())
        config.model_platform = "tensorflow"
        try:
            response = self._models.HandleReloadConfigRequest(request, _TIMEOUT_S)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                raise Skip(f"the server answers UNIMPLEMENTED: {error.details()}") from error
            raise
        require(response.status.error_code == 0, str(response.status))
        return "OK, and " + self.status()

    def unknown_model(self) -> str:
        request = self._predict_pb2.PredictRequest()
        request.model_spec.name = "no_such_model"
        try:
            self._prediction.Predict(request, _TIMEOUT_S)
        except grpc.RpcError as error:
            require(error.code() is grpc.StatusCode.NOT_FOUND, f"{error.code()}: {error.details()}")
            require(error.details() == "Servable not found for request: Latest(no_such_model)", error.details())
            return f"NOT_FOUND: {error.details()}"
        raise AssertionError("it was answered")

    def _fill(self, request: Any, signature: Signature) -> None:
        request.model_spec.name = self._model.name
        request.model_spec.signature_name = signature.name
        request.input.example_list.examples.append(self._example())

    def _example(self) -> Any:
        train = self._tf.train
        example = train.Example()
        for name, value in self._place.example.items():
            values = value if isinstance(value, list) else [value]
            feature = example.features.feature[name]
            if all(isinstance(v, int) for v in values):
                feature.int64_list.value.extend(values)
            elif all(isinstance(v, (int, float)) for v in values):
                feature.float_list.value.extend(values)
            else:
                feature.bytes_list.value.extend(str(v).encode() for v in values)
        return example


_TRITON = "tritonclient"


def triton_checks(place: Place) -> Iterator[Check]:
    for wire, address in (("http", place.http.removeprefix("http://")), ("grpc", place.grpc)):
        yield Check(_TRITON, f"{wire}: live, ready, metadata", partial(_describe_triton, place, wire, address))
        yield Check(_TRITON, f"{wire}: infer", partial(_infer, place, wire, address))


def _client(place: Place, wire: str, address: str) -> tuple[Any, Any]:
    try:
        with urllib.request.urlopen(f"{place.http}/v2/health/live", timeout=30):
            pass
    except urllib.error.HTTPError as error:
        raise Skip(f"the server has no /v2 ({error.code})") from error
    try:
        module: Any = importlib.import_module(f"tritonclient.{wire}")
    except ImportError as error:
        raise Skip(f"not installed: {error}") from error
    return module, module.InferenceServerClient(address)


def _describe_triton(place: Place, wire: str, address: str) -> str:
    _, client = _client(place, wire, address)
    name = place.model.name
    require(client.is_server_live() and client.is_server_ready() and client.is_model_ready(name), "not ready")
    metadata = client.get_model_metadata(name)
    found = metadata if isinstance(metadata, dict) else {"name": metadata.name, "platform": metadata.platform}
    require(found["name"] == name, str(found))
    return str(found)


def _infer(place: Place, wire: str, address: str) -> str:
    module, client = _client(place, wire, address)
    found = [s for s in place.model.predicted() if s.name == "serving_default"] or list(place.model.lookups())
    if not found:
        raise Skip("the model has no signature for it")
    numbers = importlib.import_module("tritonclient.utils")
    inputs = []
    for name, tensor in found[0].tensors().items():
        sent = module.InferInput(name, list(tensor.shape), numbers.np_to_triton_dtype(tensor.dtype))
        sent.set_data_from_numpy(tensor)
        inputs.append(sent)
    result = client.infer(place.model.name, inputs)
    response = result.get_response()
    names = (
        [o["name"] for o in response["outputs"]] if isinstance(response, dict) else [o.name for o in response.outputs]
    )
    arrays = {name: result.as_numpy(name) for name in names}
    require(bool(arrays) and all(isinstance(array, np.ndarray) for array in arrays.values()), str(response))
    return ", ".join(f"{name} {array.dtype}{list(array.shape)}" for name, array in arrays.items())


CLIENTS: dict[str, Callable[[Place], Iterator[Check]]] = {
    "serving_api": serving_api_checks,
    "reflection": reflected_checks,
    "health": health_probe_checks,
    "curl": curl_checks,
    "triton": triton_checks,
    "own": own_client_checks,
}
