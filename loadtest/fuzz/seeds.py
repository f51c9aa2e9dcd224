"""Makes valid requests for the served model, over gRPC and HTTP, which the mutations change."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np

from loadtest.model_samples import ServedModel, Signature
from loadtest.wire import INFER_METHOD, PREDICT_METHOD, message_class
from tests.conformance.random_calls import Call, Drawn, encoded

_PREDICTION, _MODELS = "tensorflow.serving.PredictionService", "tensorflow.serving.ModelService"
RELOAD = f"/{_MODELS}/HandleReloadConfigRequest"
_INFERENCES = ("classify", "regress")
# Number of encodings of each signature: each chooses tensor_content, an output filter or a version at random.
_ENCODINGS = 8
_BINARY_HEADER = "Inference-Header-Content-Length"


@dataclass(frozen=True, slots=True)
class Route:
    """An HTTP route: its path, valid bodies, and keys of which a good answer has exactly one."""

    path: str
    documents: tuple[Any, ...]
    answers: tuple[str, ...]


def grpc_seeds(model: ServedModel) -> dict[str, list[bytes]]:
    """Returns valid messages by method."""
    calls, examples = list(_calls(model)), list(_examples())
    return {
        **{
            method: [call.body for call in calls if call.path == method] or [b""]
            for method in (PREDICT_METHOD, INFER_METHOD)
        },
        f"/{_PREDICTION}/Classify": _example_requests(model, "classify", "ClassificationRequest", examples),
        f"/{_PREDICTION}/Regress": _example_requests(model, "regress", "RegressionRequest", examples),
        f"/{_PREDICTION}/MultiInference": [_multi_inference(model, examples)],
        f"/{_PREDICTION}/GetModelMetadata": [_spec_request("GetModelMetadataRequest", model, metadata=True)],
        f"/{_MODELS}/GetModelStatus": [_spec_request("GetModelStatusRequest", model, metadata=False)],
        RELOAD: [_reload(model)],
        "/tensorflow.serving.SessionService/SessionRun": [b""],
        # Field numbers: service = 1 in the health request; list_services = 7, file_containing_symbol = 4 and
        # file_by_filename = 3 in reflection requests.
        "/grpc.health.v1.Health/Check": [b"", _text(1, model.name), _text(1, _PREDICTION)],
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": [
            *(_text(7, ""), _text(4, _PREDICTION), _text(3, "tensorflow/core/framework/tensor.proto"))
        ],
    }


def http_seeds(model: ServedModel) -> list[Route]:
    """Returns the routes that take JSON, with valid bodies."""
    base = f"/v1/models/{model.name}"
    found = {"lookup": [{"features": {"x": [1]}}], "predict": [{"inputs": {"x": [1.0]}}], "infer": list[Any]()}
    for call in _calls(model):
        if not (call.is_grpc or call.headers):
            found[call.path.replace("/", ":").rpartition(":")[2]].append(json.loads(call.body))
    example = {"x": 1.0, "s": "text", "b": {"b64": "AAE="}, "ids": [1, 2, 3]}
    inferences = [{"examples": [example, {}]}, {"context": {"x": 2.0}, "examples": [{"s": ["a", "b"]}]}]
    routes = [
        Route(f"{base}:predict", tuple(found["predict"]), ("predictions", "outputs")),
        Route(f"{base}/versions/{model.version}:predict", tuple(found["predict"]), ("predictions", "outputs")),
        Route(f"{base}:lookup", tuple(found["lookup"]), ("embeddings",)),
    ]
    for kind in _INFERENCES:
        named = [{"signature_name": s.name, **inferences[0]} for s in model.of_method(kind)]
        routes.append(Route(f"{base}:{kind}", (*inferences, *named), ("results",)))
    if found["infer"]:
        routes.append(Route(infer_path(model), tuple(found["infer"]), ("outputs",)))
    search = {"ids": [1, 0], "k": 2, "metric": "cosine", "exclude_ids": [1]}
    for table in model.tables:
        routes.append(Route(f"{base}/tables/{table}:rows", ({"ids": [1, 0, 1]},), ("rows",)))
        routes.append(Route(f"{base}/tables/{table}:neighbors", (search,), ("ids",)))
    return routes


def binary_seeds(model: ServedModel) -> list[tuple[bytes, bytes]]:
    """Returns bodies with binary tensors for infer_path(), each as its JSON and its tensors."""
    sizes = [(call.body, int(dict(call.headers)[_BINARY_HEADER])) for call in _calls(model) if call.headers]
    return [(body[:size], body[size:]) for body, size in sizes]


def infer_path(model: ServedModel) -> str:
    return f"/v2/models/{model.name}/infer"


def _calls(model: ServedModel) -> Iterator[Call]:
    """Yields requests to all signatures that Predict can call, in each form."""
    texts = np.array([example.SerializeToString() for example in _examples()], object)
    for signature in model.signatures:
        if signature.takes_examples and signature.method_name == "tensorflow/serving/predict":
            drawn = Drawn(model.name, signature.name, dict.fromkeys(signature.inputs, texts), {}, {}, [])
            yield encoded(Random(0), drawn)[0]
    for signature in model.predicted():
        columns = signature.columns()
        weights = {name: [[0.5] * len(row) for row in columns[name]] for name in _weighted(signature, columns)}
        for seed in range(_ENCODINGS):
            given = weights if seed % 2 and signature in model.lookups() else {}
            drawn = Drawn(model.name, signature.name, signature.tensors(), columns, given, list(signature.outputs))
            for call in encoded(Random(seed), drawn):
                if call.wire != "json lookup" or signature in model.lookups():
                    yield call


def _weighted(signature: Signature, columns: dict[str, Any]) -> list[str]:
    return [name for name in columns if f"{name}__weights" in signature.inputs]


def _examples() -> Iterator[Any]:
    for values in ((1, 2, 3), ()):
        example = message_class("tensorflow.Example")()
        features = example.features.feature
        features["x"].float_list.value.extend(float(value) for value in values)
        features["ids"].int64_list.value.extend(values)
        features["s"].bytes_list.value.extend(str(value).encode() for value in values)
        yield example


def _example_requests(model: ServedModel, method: str, message: str, examples: list[Any]) -> list[bytes]:
    found = []
    for signature in [s.name for s in model.of_method(method)] or ["serving_default"]:
        for with_context in (False, True):
            request = message_class(f"tensorflow.serving.{message}")()
            request.model_spec.name, request.model_spec.signature_name = model.name, signature
            if with_context:
                request.input.example_list_with_context.examples.extend(examples)
                request.input.example_list_with_context.context.CopyFrom(examples[0])
            else:
                request.input.example_list.examples.extend(examples)
            found.append(request.SerializeToString())
    return found


def _multi_inference(model: ServedModel, examples: list[Any]) -> bytes:
    request = message_class("tensorflow.serving.MultiInferenceRequest")()
    for method in _INFERENCES:
        task = request.tasks.add()
        found = model.of_method(method)
        task.model_spec.name = model.name
        task.model_spec.signature_name = found[0].name if found else "serving_default"
        task.method_name = f"tensorflow/serving/{method}"
    request.input.example_list.examples.extend(examples)
    return bytes(request.SerializeToString())


def _spec_request(message: str, model: ServedModel, *, metadata: bool) -> bytes:
    request = message_class(f"tensorflow.serving.{message}")()
    request.model_spec.name = model.name
    if metadata:
        request.metadata_field.append("signature_def")
    return bytes(request.SerializeToString())


def _reload(model: ServedModel) -> bytes:
    request = message_class("tensorflow.serving.ReloadConfigRequest")()
    config = request.config.model_config_list.config.add()
    # The path names a folder that does not exist, so that a mutated request which is valid by chance loads nothing.
    config.name, config.base_path, config.model_platform = model.name, "no_such_folder", "tensorflow"
    return bytes(request.SerializeToString())


def _text(number: int, text: str) -> bytes:
    return bytes([number << 3 | 2, len(text)]) + text.encode()
