"""A locust user that speaks TensorFlow Serving's gRPC, with messages built from the protocol's own descriptors."""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib.resources import files
from typing import Any

import grpc
import grpc.experimental.gevent
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from locust import User

# grpcio's own threads and locust's greenlets must share one loop.
grpc.experimental.gevent.init_gevent()

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


class GrpcUser(User):
    """Sends Predict requests and reports them to locust under the name "Predict SIGNATURE"."""

    abstract = True

    def __init__(self, environment: Any) -> None:
        super().__init__(environment)
        self._request_class, response_class = message_classes()
        channel = grpc.insecure_channel(environment.parsed_options.grpc_host)
        self._predict: Callable[..., Any] = channel.unary_unary(
            "/tensorflow.serving.PredictionService/Predict",
            request_serializer=self._request_class.SerializeToString,
            response_deserializer=response_class.FromString,
        )

    def predict(self, model: str, signature: str, tensors: dict[str, list[int]]) -> None:
        """Sends int64 tensors of rank 1."""
        request = self._request_class()
        request.model_spec.name = model
        request.model_spec.signature_name = signature
        for name, values in tensors.items():
            tensor = request.inputs[name]
            tensor.dtype = DT_INT64
            tensor.tensor_shape.dim.add().size = len(values)
            tensor.int64_val.extend(values)
        started = time.perf_counter()
        response, failure = None, None
        try:
            response = self._predict(request, timeout=10)
        except grpc.RpcError as error:
            failure = error
        self.environment.events.request.fire(
            request_type="grpc",
            name=f"Predict {signature}",
            response_time=(time.perf_counter() - started) * 1000,
            response_length=0 if response is None else response.ByteSize(),
            exception=failure,
        )
