"""TensorFlow Serving's Predict messages, built from the protocol's own descriptors."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PREDICT_METHOD = "/tensorflow.serving.PredictionService/Predict"
DT_INT64 = 9


def message_classes() -> tuple[type[Any], type[Any]]:
    """Returns PredictRequest and PredictResponse; tensorflow-serving-api would import all of TensorFlow for them."""
    descriptors = descriptor_pb2.FileDescriptorSet()
    descriptors.ParseFromString(files("service").joinpath("codecs/serving_protos.pb").read_bytes())
    pool = descriptor_pool.DescriptorPool()
    for file in descriptors.file:
        pool.Add(file)  # type: ignore[no-untyped-call]
    name = "tensorflow.serving.Predict"
    get = message_factory.GetMessageClass
    return get(pool.FindMessageTypeByName(f"{name}Request")), get(pool.FindMessageTypeByName(f"{name}Response"))


def predict_request(request_class: type[Any], model: str, signature: str, tensors: dict[str, list[int]]) -> Any:
    """Returns a PredictRequest of int64 tensors of rank 1."""
    request = request_class()
    request.model_spec.name = model
    request.model_spec.signature_name = signature
    for name, values in tensors.items():
        tensor = request.inputs[name]
        tensor.dtype = DT_INT64
        tensor.tensor_shape.dim.add().size = len(values)
        tensor.int64_val.extend(values)
    return request
