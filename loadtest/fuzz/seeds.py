"""Makes valid requests for the served model, over gRPC and HTTP, which the mutations change."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np

from loadtest import wire
from loadtest.model_samples import ServedModel
from tests.conformance.random_calls import Call, Drawn, encoded

_INFERENCES = ("classify", "regress")
_DEFAULT = "serving_default"
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
    calls, spec = list(_calls(model)), {"name": model.name}
    return {
        **{
            at: [call.body for call in calls if call.path == at] or [b""]
            for at in (wire.PREDICT_METHOD, wire.INFER_METHOD)
        },
        f"{wire.PREDICTION}Classify": _example_requests(model, "classify", "ClassificationRequest"),
        f"{wire.PREDICTION}Regress": _example_requests(model, "regress", "RegressionRequest"),
        f"{wire.PREDICTION}MultiInference": [_multi_inference(model)],
        wire.METADATA_METHOD: [_message("GetModelMetadataRequest", model_spec=spec, metadata_field=["signature_def"])],
        wire.STATUS_METHOD: [_message("GetModelStatusRequest", model_spec=spec)],
        wire.RELOAD_METHOD: [_reload(model)],
        "/tensorflow.serving.SessionService/SessionRun": [b""],
        # Field numbers: service = 1 in the health request; list_services = 7, file_containing_symbol = 4 and
        # file_by_filename = 3 in reflection requests.
        "/grpc.health.v1.Health/Check": [b"", _text(1, model.name), _text(1, wire.PREDICTION[1:-1])],
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": [
            *(_text(7, ""), _text(4, wire.PREDICTION[1:-1]), _text(3, "tensorflow/core/framework/tensor.proto"))
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
        weighted = [name for name in columns if f"{name}__weights" in signature.inputs]
        weights = {name: [[0.5] * len(row) for row in columns[name]] for name in weighted}
        for seed in range(_ENCODINGS):
            given = weights if seed % 2 and signature in model.lookups() else {}
            drawn = Drawn(model.name, signature.name, signature.tensors(), columns, given, list(signature.outputs))
            for call in encoded(Random(seed), drawn):
                if call.wire != "json lookup" or signature in model.lookups():
                    yield call


def _examples() -> Iterator[Any]:
    feature = wire.message_class("tensorflow.Feature")
    for values in ((1, 2, 3), ()):
        features = {
            "x": feature(float_list={"value": values}),
            "ids": feature(int64_list={"value": values}),
            "s": feature(bytes_list={"value": [str(value).encode() for value in values]}),
        }
        yield wire.message_class("tensorflow.Example")(features={"feature": features})


def _example_requests(model: ServedModel, method: str, message: str) -> list[bytes]:
    examples = list(_examples())
    inputs = (
        {"example_list": {"examples": examples}},
        {"example_list_with_context": {"examples": examples, "context": examples[0]}},
    )
    names = [s.name for s in model.of_method(method)] or [_DEFAULT]
    specs = [{"name": model.name, "signature_name": name} for name in names]
    return [_message(message, model_spec=spec, input=given) for spec in specs for given in inputs]


def _multi_inference(model: ServedModel) -> bytes:
    tasks = []
    for method in _INFERENCES:
        (name, *_) = [*(s.name for s in model.of_method(method)), _DEFAULT]
        spec = {"name": model.name, "signature_name": name}
        tasks.append({"model_spec": spec, "method_name": f"tensorflow/serving/{method}"})
    return _message("MultiInferenceRequest", tasks=tasks, input={"example_list": {"examples": list(_examples())}})


def _reload(model: ServedModel) -> bytes:
    # The path names a folder that does not exist, so that a mutated request which is valid by chance loads nothing.
    config = {"name": model.name, "base_path": "no_such_folder", "model_platform": "tensorflow"}
    return _message("ReloadConfigRequest", config={"model_config_list": {"config": [config]}})


def _message(name: str, **fields: Any) -> bytes:
    return bytes(wire.message_class(f"tensorflow.serving.{name}")(**fields).SerializeToString())


def _text(number: int, text: str) -> bytes:
    return bytes([number << 3 | 2, len(text)]) + text.encode()
