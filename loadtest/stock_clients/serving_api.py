"""Calls the server with the stubs and messages of tensorflow-serving-api, which import TensorFlow."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from functools import partial
from typing import Any

import grpc

from loadtest.model_samples import Signature
from loadtest.stock_clients.outcome import Check, Place, Skip, require

CLIENT = "tensorflow-serving-api"
_TIMEOUT_S = 60


def checks(place: Place) -> Iterator[Check]:
    """Yields a check for each call of TensorFlow Serving's API; a call that the model does not support is skipped."""
    try:
        stubs = _Stubs(place)
    except ImportError as error:
        yield Check(CLIENT, "import", partial(_skip, f"not installed: {error}"))
        return
    for signature in place.model.predicted():
        yield Check(CLIENT, f"Predict {signature.name}", partial(stubs.predict, signature))
    for method in ("classify", "regress"):
        found = place.model.of_method(method)
        if not found:
            yield Check(CLIENT, method.capitalize(), partial(_skip, f"the model has no signature to {method}"))
        for signature in found:
            yield Check(CLIENT, f"{method.capitalize()} {signature.name}", partial(getattr(stubs, method), signature))
    if place.model.of_method("regress") and place.model.of_method("classify"):
        yield Check(CLIENT, "MultiInference", stubs.multi_inference)
    yield Check(CLIENT, "GetModelMetadata", stubs.metadata)
    yield Check(CLIENT, "GetModelStatus", stubs.status)
    yield Check(CLIENT, "HandleReloadConfigRequest", stubs.reload)
    yield Check(CLIENT, "Predict of a model that is not there", stubs.unknown_model)


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
