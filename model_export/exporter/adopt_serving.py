"""Answers requests for an adopted version and for its original with the server's own code, from bytes to bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from service.codecs.protos import message_class
from service.codecs.tensor_proto import encode_tensor
from service.core.engine import Engine
from service.core.registry import Registry
from service.core.servable import Servable
from service.core.types import Array, SignatureKind
from service.transports.grpc.methods import service_methods
from service.transports.grpc.paths import PREDICT

# A serialized PredictRequest to a serialized PredictResponse; raises ServiceError.
Answer = Callable[[bytes], bytes]


class _Unobserved:
    def finished(
        self,
        *,
        api: str,
        method: str,
        model: str,
        version: int | None,
        signature: str,
        kind: SignatureKind,
        error: BaseException | None,
        seconds: float,
        run_seconds: float,
        rows: int,
    ) -> None:
        """Counts nothing."""


def answering(servable: Servable) -> Answer:
    """Returns a function that answers a version's Predict requests as the reference gRPC server does."""
    registry = Registry(lambda model, status: None)
    registry.add_model(servable.name)
    registry.start(servable.name, servable.version)
    registry.publish(servable)
    engine = Engine(registry, _Unobserved())
    predict = service_methods(engine)[PREDICT]
    return lambda request: predict(request, None)


def predict_request(servable: Servable, signature_name: str, inputs: Mapping[str, Array]) -> bytes:
    """Returns a serialized PredictRequest."""
    request = message_class("tensorflow.serving.PredictRequest")()
    request.model_spec.name, request.model_spec.signature_name = servable.name, signature_name
    for name, array in inputs.items():
        request.inputs[name].ParseFromString(b"".join(encode_tensor(name, array)))
    data: bytes = request.SerializeToString()
    return data
