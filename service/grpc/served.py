"""Lists the gRPC services of the server, and collects the handlers of their methods."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from service.artifact.protos import new_pool
from service.engine.engine import Engine
from service.engine.tracing import Tracing
from service.grpc import health, inference_v2_methods, methods, server_reflection
from service.grpc.inference_v2_methods import INFERENCE_SERVICE, open_inference_methods
from service.grpc.methods import service_methods
from service.wire.grpc_api import MODEL_SERVICE, PREDICTION_SERVICE, Handler

SERVICES = (PREDICTION_SERVICE, MODEL_SERVICE, INFERENCE_SERVICE, health.SERVICE_NAME, server_reflection.SERVICE_NAME)
# Names for which health checks have a status: the server (""), its gRPC services for models, and TensorFlow Serving's
# names for these services.
HEALTH_NAMES = ("", PREDICTION_SERVICE, MODEL_SERVICE, INFERENCE_SERVICE, "PredictionService", "ModelService")
# Path of a gRPC method that TensorFlow Serving or Triton has and this server lacks -> the text of its error
# UNIMPLEMENTED.
UNIMPLEMENTED: Mapping[str, str] = {**methods.UNIMPLEMENTED, **inference_v2_methods.UNIMPLEMENTED}

# Metadata key by which a request chooses its answer's form: tensors as "content" or "values".
TENSOR_ENCODING_KEY = "x-tensor-encoding"


def unary_handlers(engine: Engine, *, as_content: bool) -> dict[str, Handler]:
    """Returns the handlers of all unary gRPC methods, by path, with tracing; arguments as in methods.service_methods.

    Concurrency: handlers may run in any thread.
    """
    handlers = service_methods(engine, as_content=as_content) | open_inference_methods(engine)
    tracing = engine.tracing
    if tracing is None:
        return handlers
    return {path: partial(_traced, tracing, path, handler) for path, handler in handlers.items()}


def _traced(tracing: Tracing, path: str, handler: Handler, data: bytes, deadline_s: float | None) -> bytes:
    with tracing.request(path):
        return handler(data, deadline_s)


def descriptor_pool() -> Any:
    """Returns a descriptor pool with all gRPC services of this server, for reflection.

    Protobuf's default pool lacks some of them.
    """
    return new_pool([health_pb2.DESCRIPTOR.serialized_pb, reflection_pb2.DESCRIPTOR.serialized_pb])
