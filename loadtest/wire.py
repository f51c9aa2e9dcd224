"""Makes messages of TensorFlow Serving and of the Open Inference Protocol from the protocols' descriptors."""

from __future__ import annotations

import threading
from functools import cache
from importlib.resources import files
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PREDICTION, _MODELS = "/tensorflow.serving.PredictionService/", "/tensorflow.serving.ModelService/"
PREDICT_METHOD, INFER_METHOD = f"{PREDICTION}Predict", "/inference.GRPCInferenceService/ModelInfer"
STATUS_METHOD, METADATA_METHOD = f"{_MODELS}GetModelStatus", f"{PREDICTION}GetModelMetadata"
RELOAD_METHOD = f"{_MODELS}HandleReloadConfigRequest"
# Method -> the name of the message that answers it.
ANSWERS = {
    INFER_METHOD: "inference.ModelInferResponse",
    f"{PREDICTION}Classify": "tensorflow.serving.ClassificationResponse",
    f"{PREDICTION}Regress": "tensorflow.serving.RegressionResponse",
    RELOAD_METHOD: "tensorflow.serving.ReloadConfigResponse",
    **{f"{PREDICTION}{name}": f"tensorflow.serving.{name}Response" for name in ("Predict", "MultiInference")},
    METADATA_METHOD: "tensorflow.serving.GetModelMetadataResponse",
    STATUS_METHOD: "tensorflow.serving.GetModelStatusResponse",
}
DT_STRING, DT_INT64 = 7, 9


# protobuf makes a message class at its first use; without the lock, two threads could get different classes for one
# message.
_lock = threading.Lock()


@cache
def _pool(descriptor_file: str) -> descriptor_pool.DescriptorPool:
    descriptors = descriptor_pb2.FileDescriptorSet()
    descriptors.ParseFromString(files("service").joinpath(f"artifact/{descriptor_file}").read_bytes())
    pool = descriptor_pool.DescriptorPool()
    for file in descriptors.file:
        pool.Add(file)  # type: ignore[no-untyped-call]
    return pool


def message_class(name: str) -> type[Any]:
    """Returns the protobuf class of a message by its full name; TensorFlow's own messages too, without TensorFlow."""
    descriptor_file = "open_inference.pb" if name.startswith("inference.") else "serving_protos.pb"
    with _lock:
        return message_factory.GetMessageClass(_pool(descriptor_file).FindMessageTypeByName(name))


def framed(message: bytes, flag: int = 0) -> bytes:
    """Returns a message with gRPC's prefix: a flag that says whether it is compressed, and its length."""
    return bytes([flag]) + len(message).to_bytes(4, "big") + message


def varint(number: int, padding: int = 0) -> bytes:
    """Encodes a protobuf varint; padding adds bytes that do not change its value.

    >>> varint(300).hex(), varint(1, padding=2).hex()
    ('ac02', '818000')
    """
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    for _ in range(padding):
        out[-1] |= 0x80
        out.append(0)
    return bytes(out)


def message_classes() -> tuple[type[Any], type[Any]]:
    return message_class("tensorflow.serving.PredictRequest"), message_class("tensorflow.serving.PredictResponse")


def predict_request(request_class: type[Any], model: str, signature: str, tensors: dict[str, list[int]]) -> Any:
    """Makes a PredictRequest of int64 tensors of rank 1."""
    request = request_class(model_spec={"name": model, "signature_name": signature})
    for name, values in tensors.items():
        tensor = request.inputs[name]
        tensor.dtype = DT_INT64
        tensor.tensor_shape.dim.add().size = len(values)
        tensor.int64_val.extend(values)
    return request
