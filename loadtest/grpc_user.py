"""A locust user that calls TensorFlow Serving's gRPC API, with messages made from the protocol's descriptors."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import grpc
import grpc.experimental.gevent
from locust import User

from loadtest.wire import PREDICT_METHOD, message_classes, predict_request

# init_gevent() makes grpcio use locust's gevent loop.
grpc.experimental.gevent.init_gevent()


class GrpcUser(User):
    """A locust user that sends Predict requests and reports them to locust under the name "Predict SIGNATURE"."""

    abstract = True

    def __init__(self, environment: Any) -> None:
        super().__init__(environment)
        self._request_class, response_class = message_classes()
        channel = grpc.insecure_channel(environment.parsed_options.grpc_host)
        self._predict: Callable[..., Any] = channel.unary_unary(
            PREDICT_METHOD,
            request_serializer=self._request_class.SerializeToString,
            response_deserializer=response_class.FromString,
        )

    def predict(self, model: str, signature: str, tensors: dict[str, list[int]]) -> None:
        """Calls Predict with int64 tensors of rank 1, and reports time and outcome of the call to locust."""
        request = predict_request(self._request_class, model, signature, tensors)
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
