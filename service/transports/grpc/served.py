"""What every gRPC server of ours serves, whatever carries the bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from service.codecs.protos import new_pool
from service.core.engine import Engine
from service.core.tracing import Tracing
from service.transports.grpc import health, inference_v2_methods, methods, server_reflection
from service.transports.grpc.inference_v2_methods import INFERENCE_SERVICE, open_inference_methods
from service.transports.grpc.methods import service_methods
from service.transports.grpc.paths import MODEL_SERVICE, PREDICT, PREDICTION_SERVICE, Handler, PredictDirectly

SERVICES = (PREDICTION_SERVICE, MODEL_SERVICE, INFERENCE_SERVICE, health.SERVICE_NAME, server_reflection.SERVICE_NAME)
# The server, its services, and the services as TensorFlow Serving calls them for health checks.
HEALTH_NAMES = ("", PREDICTION_SERVICE, MODEL_SERVICE, INFERENCE_SERVICE, "PredictionService", "ModelService")
# Paths that clients get UNIMPLEMENTED for, and the text.
UNIMPLEMENTED: Mapping[str, str] = {**methods.UNIMPLEMENTED, **inference_v2_methods.UNIMPLEMENTED}

# Request metadata: how this answer is to be written, "content" or "values", and "gzip" to have it compressed.
TENSOR_ENCODING_KEY = "x-tensor-encoding"
RESPONSE_ENCODING_KEY = "x-response-encoding"


def unary_handlers(
    engine: Engine, *, as_content: bool, predict_directly: PredictDirectly | None = None
) -> dict[str, Handler]:
    """Returns the handler of each method by its path; see methods.service_methods for the arguments.

    Concurrency: handlers may run in any thread.
    """
    methods = service_methods(engine, as_content=as_content, predict_directly=predict_directly)
    handlers = methods | open_inference_methods(engine)
    tracing = engine.tracing
    if tracing is None:
        return handlers
    if predict_directly is not None:
        # What is answered directly is not traced, and must not be spanned as if it were.
        general = service_methods(engine, as_content=as_content)[PREDICT]
        directly = partial(predict_directly, as_content=as_content)
        handlers[PREDICT] = partial(_predict, directly, partial(_traced, tracing, PREDICT, general))
        return handlers | {
            path: partial(_traced, tracing, path, handler) for path, handler in handlers.items() if path != PREDICT
        }
    return {path: partial(_traced, tracing, path, handler) for path, handler in handlers.items()}


def _traced(tracing: Tracing, path: str, handler: Handler, data: bytes, deadline_s: float | None) -> bytes:
    with tracing.request(path):
        return handler(data, deadline_s)


def _predict(
    directly: Callable[[bytes, float | None], bytes | None], general: Handler, data: bytes, deadline_s: float | None
) -> bytes:
    answer = directly(data, deadline_s)
    return general(data, deadline_s) if answer is None else answer


def descriptor_pool() -> Any:
    """Returns a pool for reflection, which needs all services in one; ours are not in protobuf's own."""
    return new_pool([health_pb2.DESCRIPTOR.serialized_pb, reflection_pb2.DESCRIPTOR.serialized_pb])
