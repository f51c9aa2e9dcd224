"""Handles the Open Inference Protocol's gRPC methods, from request bytes to answer bytes.

Source: kserve/open-inference-protocol, specification/protocol/open_inference_grpc.proto (29ca333);
triton-inference-server/common, protobuf/grpc_service.proto for the extensions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from service.engine.engine import Engine, ModelDescription
from service.errors import LabelNotFound, NotFound, NotReady
from service.types import SignatureSpec
from service.wire import oip_models
from service.wire.grpc_api import Handler
from service.wire.oip_models import encode_document, model_ref
from service.wire.proto_message import parse_message

INFERENCE_SERVICE = "inference.GRPCInferenceService"
_NO_SHARED_MEMORY = "Shared memory is not implemented; send tensors in the request."
_NO_CONTROL = "Loading and unloading a model is not implemented; change the folder of models or the list of models."

# gRPC path of a Triton method that this server lacks -> the error text that it sends with status UNIMPLEMENTED.
UNIMPLEMENTED: Mapping[str, str] = {
    f"/{INFERENCE_SERVICE}/{method}": text
    for method, text in {
        "ModelStreamInfer": "ModelStreamInfer is not implemented; call ModelInfer, any number at once on one channel.",
        "ModelStatistics": "ModelStatistics is not implemented; see /metrics of the HTTP port.",
        "RepositoryModelLoad": _NO_CONTROL,
        "RepositoryModelUnload": _NO_CONTROL,
        **{
            f"{kind}SharedMemory{action}": _NO_SHARED_MEMORY
            for kind in ("System", "Cuda")
            for action in ("Status", "Register", "Unregister")
        },
        "TraceSetting": "Tracing is not implemented.",
        "LogSettings": "Changing the log's settings is not implemented.",
    }.items()
}


def open_inference_methods(engine: Engine) -> dict[str, Handler]:
    """Returns the handlers of the Open Inference Protocol's methods, by path. Concurrency: any thread may call them."""

    def server_live(data: bytes, deadline_s: float | None) -> bytes:
        return encode_document("inference.ServerLiveResponse", {"live": True})

    def server_ready(data: bytes, deadline_s: float | None) -> bytes:
        return encode_document("inference.ServerReadyResponse", {"ready": engine.is_ready})

    def model_ready(data: bytes, deadline_s: float | None) -> bytes:
        message = parse_message("inference.ModelReadyRequest", data)
        ref = model_ref(message.name, message.version)
        try:
            engine.require_ready(ref)
        except (NotFound, NotReady, LabelNotFound):
            # ModelReady answers "ready: false" and no error, as in Triton: clients repeat the request until it is true.
            return encode_document("inference.ModelReadyResponse", {"ready": False})
        return encode_document("inference.ModelReadyResponse", {"ready": True})

    def server_metadata(data: bytes, deadline_s: float | None) -> bytes:
        return encode_document("inference.ServerMetadataResponse", oip_models.server_metadata())

    def model_metadata(data: bytes, deadline_s: float | None) -> bytes:
        description, spec = described(parse_message("inference.ModelMetadataRequest", data))
        document = oip_models.model_metadata(description.name, engine.statuses(description.name), spec)
        return encode_document("inference.ModelMetadataResponse", document)

    def model_config(data: bytes, deadline_s: float | None) -> bytes:
        description, spec = described(parse_message("inference.ModelConfigRequest", data))
        document = {"config": oip_models.model_config(description.name, spec)}
        return encode_document("inference.ModelConfigResponse", document)

    def described(message: Any) -> tuple[ModelDescription, SignatureSpec]:
        description = engine.describe(model_ref(message.name, message.version))
        return description, description.signature(fallback=oip_models.FALLBACK_SIGNATURE)

    def repository_index(data: bytes, deadline_s: float | None) -> bytes:
        message = parse_message("inference.RepositoryIndexRequest", data)
        models = oip_models.repository_index(engine.all_statuses(), engine.problems(), only_ready=message.ready)
        return encode_document("inference.RepositoryIndexResponse", {"models": models})

    handlers = {
        "ServerLive": server_live,
        "ServerReady": server_ready,
        "ModelReady": model_ready,
        "ServerMetadata": server_metadata,
        "ModelMetadata": model_metadata,
        "ModelConfig": model_config,
        "RepositoryIndex": repository_index,
    }
    return {f"/{INFERENCE_SERVICE}/{name}": handler for name, handler in handlers.items()}
