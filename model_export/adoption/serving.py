"""Answers requests for an adopted version and for its original with the server's own code, from bytes to bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from service.artifact.protos import message_class
from service.artifact.tensor_proto import encode_tensor
from service.engine.engine import Engine
from service.engine.registry import Registry
from service.engine.servable import Servable
from service.grpc.methods import service_methods
from service.loading.native_graphs import native_graphs
from service.native.choice import has_core
from service.native.native_servable import CompiledServable, compile_native
from service.tables.backend import OpenedLookups
from service.types import Array, SignatureKind
from service.wire.grpc_api import PREDICT

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


def answering(servable: Servable, lookups: OpenedLookups | None) -> Answer:
    """Returns a function that answers a version's Predict requests as a server does: the native core, or Python.

    Args:
      lookups: of the version's manifest, if it has one.
    """
    reference, forms = _reference(servable), _native_forms(servable, lookups)
    if forms is None:
        return reference

    def answer(request: bytes) -> bytes:
        try:
            answered: bytes = forms.grpc(PREDICT, request)
        except ValueError:
            # The core forwards this request.
            return reference(request)
        return answered

    return answer


def _native_forms(servable: Servable, lookups: OpenedLookups | None) -> Any:
    """Returns the native core's forms over a version; None where the core is not built or can not serve the version."""
    if not has_core():
        return None
    from service import _native

    native = compile_native(servable, lookups, native_graphs(servable)).native
    if not isinstance(native, CompiledServable):
        return None
    return _native.Forms([(servable.name, [(servable.version, native.compiled)], {}, 0.0)])


def _reference(servable: Servable) -> Answer:
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
