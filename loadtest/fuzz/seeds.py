"""Makes valid requests for the served model, over gRPC and HTTP, which the mutations change."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from loadtest.model_samples import ServedModel, Signature, Tensors
from loadtest.wire import message_class

_PREDICTION, _MODELS = "tensorflow.serving.PredictionService", "tensorflow.serving.ModelService"
PREDICT = f"/{_PREDICTION}/Predict"
RELOAD = f"/{_MODELS}/HandleReloadConfigRequest"
HEALTH = "/grpc.health.v1.Health/Check"
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
# Kind and size of a numpy dtype -> number in TensorFlow's DataType, and the TensorProto field of its values.
_FIELDS = {
    "f4": (1, "float_val"),
    "f8": (2, "double_val"),
    "i4": (3, "int_val"),
    "u1": (4, "int_val"),
    "i2": (5, "int_val"),
    "i1": (6, "int_val"),
    "O8": (7, "string_val"),
    "i8": (9, "int64_val"),
    "b1": (10, "bool_val"),
    "u2": (17, "int_val"),
}


@dataclass(frozen=True, slots=True)
class Route:
    """An HTTP route: its path, valid bodies, and keys of which a good answer has exactly one."""

    path: str
    documents: tuple[Any, ...]
    answers: tuple[str, ...]


def grpc_seeds(model: ServedModel) -> dict[str, list[bytes]]:
    examples = list(_examples())
    return {
        PREDICT: [request.SerializeToString() for request in _predict_requests(model, examples)],
        f"/{_PREDICTION}/Classify": _example_requests(model, "classify", "ClassificationRequest", examples),
        f"/{_PREDICTION}/Regress": _example_requests(model, "regress", "RegressionRequest", examples),
        f"/{_PREDICTION}/MultiInference": [_multi_inference(model, examples)],
        f"/{_PREDICTION}/GetModelMetadata": [_spec_request("GetModelMetadataRequest", model, metadata=True)],
        f"/{_MODELS}/GetModelStatus": [_spec_request("GetModelStatusRequest", model, metadata=False)],
        RELOAD: [_reload(model)],
        "/tensorflow.serving.SessionService/SessionRun": [b""],
        # Field numbers: service = 1 in the health request; list_services = 7, file_containing_symbol = 4 and
        # file_by_filename = 3 in reflection requests.
        HEALTH: [b"", _text(1, model.name), _text(1, _PREDICTION)],
        REFLECTION: [_text(7, ""), _text(4, _PREDICTION), _text(3, "tensorflow/core/framework/tensor.proto")],
    }


def http_seeds(model: ServedModel) -> list[Route]:
    version = f"/v1/models/{model.name}/versions/{model.version}"
    columns = [{"signature_name": s.name, "inputs": s.columns()} for s in model.predicted()]
    rows = [{"signature_name": s.name, "instances": _as_rows(s)} for s in model.predicted() if _as_rows(s)]
    lookups = [{"signature_name": s.name, "features": s.columns()} for s in model.lookups()]
    weighted = [
        {"features": s.columns(), "weights": {k: [[0.5] * len(row) for row in v] for k, v in _ragged(s).items()}}
        for s in model.lookups()
        if s.name == "lookup"
    ]
    example = {"x": 1.0, "s": "text", "b": {"b64": "AAE="}, "ids": [1, 2, 3]}
    inferences = [{"examples": [example, {}]}, {"context": {"x": 2.0}, "examples": [{"s": ["a", "b"]}]}]
    named = {kind: [{"signature_name": s.name, **inferences[0]} for s in model.of_method(kind)] for kind in _INFERENCES}
    any_predict = tuple(columns + rows) or ({"inputs": {"x": [1.0]}},)
    any_lookup = tuple(lookups + weighted) or ({"features": {"x": [1]}},)
    base = f"/v1/models/{model.name}"
    routes = [
        Route(f"{base}:predict", any_predict, ("predictions", "outputs")),
        Route(f"{version}:predict", any_predict, ("predictions", "outputs")),
        Route(f"{base}:lookup", any_lookup, ("embeddings",)),
        *(Route(f"{base}:{kind}", (*inferences, *named[kind]), ("results",)) for kind in _INFERENCES),
    ]
    routes += [Route(f"{base}/tables/{table}:rows", ({"ids": [1, 0, 1]},), ("rows",)) for table in model.tables]
    return routes


_INFERENCES = ("classify", "regress")


def infer_seeds(model: ServedModel) -> list[bytes]:
    found = []
    for signature, document in _infer_documents(model):
        for is_raw in (True, False):
            request = message_class("inference.ModelInferRequest")(model_name=model.name)
            request.parameters["signature_name"].string_param = signature.name
            for tensor in document["inputs"]:
                sent = request.inputs.add(name=tensor["name"], datatype=tensor["datatype"], shape=tensor["shape"])
                if is_raw:
                    request.raw_input_contents.append(_raw(tensor))
                else:
                    getattr(sent.contents, _CONTENTS[tensor["datatype"]]).extend(_typed(tensor))
            found.append(bytes(request.SerializeToString()))
    return found


def binary_seeds(model: ServedModel) -> list[Route]:
    documents = []
    for _, document in _infer_documents(model):
        tensors = [
            {key: tensor[key] for key in ("name", "datatype", "shape")}
            | {"parameters": {"binary_data_size": len(_raw(tensor))}}
            for tensor in document["inputs"]
        ]
        head = document | {"inputs": tensors}
        data = b"".join(map(_raw, document["inputs"]))
        documents += [
            (json.dumps(head).encode(), data),
            (json.dumps(head | {"parameters": head["parameters"] | {"binary_data_output": True}}).encode(), data),
        ]
    return [Route(_infer_path(model), tuple(documents), ("outputs",))] if documents else []


def more_routes(model: ServedModel) -> list[Route]:
    """Returns routes whose answers have several keys: inference in JSON, and searches for nearest rows."""
    infer = tuple(document for _, document in _infer_documents(model))
    routes = [Route(_infer_path(model), infer, ("outputs",))] if infer else []
    search = {"ids": [1, 0], "k": 2, "metric": "cosine", "exclude_ids": [1]}
    return routes + [
        Route(f"/v1/models/{model.name}/tables/{table}:neighbors", (search,), ("ids",)) for table in model.tables
    ]


def _infer_path(model: ServedModel) -> str:
    return f"/v2/models/{model.name}/infer"


def _infer_documents(model: ServedModel) -> Iterator[tuple[Signature, dict[str, Any]]]:
    for signature in model.predicted():
        inputs = [
            {
                "name": name,
                "datatype": _DATATYPES[f"{array.dtype.kind}{array.dtype.itemsize}"],
                "shape": list(array.shape),
                "data": [value.decode() if isinstance(value, bytes) else value for value in array.ravel().tolist()],
            }
            for name, array in signature.tensors().items()
        ]
        yield signature, {"parameters": {"signature_name": signature.name}, "inputs": inputs}


def _raw(tensor: dict[str, Any]) -> bytes:
    if tensor["datatype"] == "BYTES":
        return b"".join(len(text).to_bytes(4, "little") + text for text in _typed(tensor))
    return np.array(tensor["data"], _DTYPES[tensor["datatype"]]).tobytes()


def _typed(tensor: dict[str, Any]) -> list[Any]:
    return [value.encode() if isinstance(value, str) else value for value in tensor["data"]]


# Maps numpy's kind and size of a dtype to the Open Inference Protocol's datatype.
_DATATYPES = {"f4": "FP32", "f8": "FP64", "i4": "INT32", "i8": "INT64", "O8": "BYTES", "b1": "BOOL"}
_DTYPES = {"FP32": "f4", "FP64": "f8", "INT32": "i4", "INT64": "i8", "BOOL": "?"}
_CONTENTS = {
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "BYTES": "bytes_contents",
    "BOOL": "bool_contents",
}


def _as_rows(signature: Signature) -> list[dict[str, Any]]:
    columns = signature.columns()
    if len({len(column) for column in columns.values() if isinstance(column, list)}) != 1:
        return []
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _ragged(signature: Signature) -> dict[str, list[Any]]:
    names = signature.columns()
    return {name: names[name] for name in names if f"{name}__weights" in signature.inputs}


def _predict_requests(model: ServedModel, examples: list[Any]) -> Iterator[Any]:
    for signature in model.signatures:
        if not signature.inputs or signature.method_name != "tensorflow/serving/predict":
            continue
        tensors = signature.tensors()
        if signature.takes_examples:
            serialized = np.array([example.SerializeToString() for example in examples], object)
            tensors = {name: serialized for name in tensors}
        yield _predict_request(model, signature.name, tensors, as_content=False)
        if all(tensor.dtype != object for tensor in tensors.values()):
            yield _predict_request(model, signature.name, tensors, as_content=True)
        filtered = _predict_request(model, signature.name, tensors, as_content=False)
        filtered.output_filter.extend(list(tensors)[:1])
        filtered.model_spec.version.value = model.version
        yield filtered


def _predict_request(model: ServedModel, signature: str, tensors: Tensors, *, as_content: bool) -> Any:
    request = message_class("tensorflow.serving.PredictRequest")()
    request.model_spec.name, request.model_spec.signature_name = model.name, signature
    for name, array in tensors.items():
        tensor = request.inputs[name]
        tensor.dtype, field = _FIELDS[f"{array.dtype.kind}{array.dtype.itemsize}"]
        for size in array.shape:
            tensor.tensor_shape.dim.add().size = size
        if as_content:
            tensor.tensor_content = array.tobytes()
        else:
            getattr(tensor, field).extend(array.ravel().tolist())
    return request


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
