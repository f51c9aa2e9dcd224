"""Answers the unary gRPC methods of TensorFlow Serving and the Open Inference Protocol, and lists all services.

Source: tensorflow_serving/apis/{prediction_service,model_service}.proto; servables/tensorflow/
get_model_metadata_impl.cc, model_servers/{get_model_status,model_service}_impl.cc (9d981c5);
kserve/open-inference-protocol, specification/protocol/open_inference_grpc.proto (29ca333);
triton-inference-server/common, protobuf/grpc_service.proto for the extensions.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from service.artifact.protos import new_pool
from service.artifact.signature_def import encode_metadata
from service.control.engine import Engine, ModelDescription
from service.control.request_context import Call, Tracing
from service.errors import InvalidRequest, LabelNotFound, NotFound, NotReady, ServiceError, Unimplemented
from service.grpc.health import HEALTH_SERVICE, REFLECTION_SERVICE
from service.types import SignatureSpec
from service.versions.neighbors import SIGNATURE
from service.wire import oip_models
from service.wire.api import (
    GRPC_API,
    MODEL_SERVICE,
    PREDICT,
    PREDICTION_SERVICE,
    Handler,
    encode_statuses,
    parse_message,
)
from service.wire.config_protos import decode_reload_request, encode_reload_response
from service.wire.neighbor_tensors import decode_search, encode_answer
from service.wire.oip_models import encode_document, model_ref
from service.wire.predict_proto import PredictRequest, decode_inputs, decode_request, encode_response, read_model_spec

# Path of a TensorFlow Serving method that this server lacks -> the error text of its status UNIMPLEMENTED.
SERVING_UNIMPLEMENTED: Mapping[str, str] = {
    "/tensorflow.serving.SessionService/SessionRun": "SessionRun is not implemented; call Predict.",
}


def service_methods(engine: Engine, *, as_content: bool = False) -> dict[str, Handler]:
    """Returns the handlers of TensorFlow Serving's methods, by path. Concurrency: any thread may call them.

    Args:
      as_content: True puts Predict's values into tensor_content, False into the `*_val` fields.
    """

    # The native core forwards only searches for nearest rows, which name the signature "neighbors".
    def predict(data: bytes, deadline_s: float | None) -> bytes:
        call = Call(GRPC_API, "Predict", engine.clock(), deadline_s)
        try:
            request = decode_request(data)
        except ServiceError as error:
            engine.reject(error, call)
            raise
        if not engine.searches_by_signature(request.ref):
            # The model has a signature of this name, in a version that the core can not run.
            refusal = Unimplemented(
                f'Signature "{SIGNATURE}" of model "{request.ref.name}" can not be run; the server\'s log and its '
                "status page say why."
            )
            engine.reject(refusal, call, model=request.ref.name)
            raise refusal
        return _search(engine, request, call, as_content=as_content)

    def get_model_metadata(data: bytes, deadline_s: float | None) -> bytes:
        message = parse_message("tensorflow.serving.GetModelMetadataRequest", data)
        if not message.HasField("model_spec"):
            raise InvalidRequest("Missing ModelSpec")
        if not message.metadata_field:
            raise InvalidRequest("GetModelMetadataRequest must specify at least one metadata_field")
        for field in message.metadata_field:
            if field != "signature_def":
                raise InvalidRequest(f"Metadata field {field} is not supported")
        ref, _ = read_model_spec(message)
        description = engine.describe(ref)
        return encode_metadata(description.name, description.version, description.signatures)

    def get_model_status(data: bytes, deadline_s: float | None) -> bytes:
        message = parse_message("tensorflow.serving.GetModelStatusRequest", data)
        if not message.HasField("model_spec"):
            raise InvalidRequest("Missing ModelSpec")
        # As in TensorFlow Serving, a status request's label is ignored, and an empty model name counts as an unknown
        # model.
        spec = message.model_spec
        return encode_statuses(engine.statuses(spec.name, spec.version.value if spec.HasField("version") else None))

    def reload_config(data: bytes, deadline_s: float | None) -> bytes:
        request = decode_reload_request(data)
        engine.reload(request.models, deadline_s)
        return encode_reload_response(request.metric_names)

    return {
        PREDICT: predict,
        f"/{PREDICTION_SERVICE}/GetModelMetadata": get_model_metadata,
        f"/{MODEL_SERVICE}/GetModelStatus": get_model_status,
        f"/{MODEL_SERVICE}/HandleReloadConfigRequest": reload_config,
    }


def _search(engine: Engine, request: PredictRequest, call: Call, *, as_content: bool) -> bytes:
    """Searches for nearest rows, in a thread for searches, and returns the result as a PredictResponse. Blocks; raises
    as Engine.neighbors.
    """

    def run() -> bytes:
        try:
            table, query = decode_search(decode_inputs(request))
        except ServiceError as error:
            engine.reject(error, call, model=request.ref.name)
            raise
        found = engine.neighbors(request.ref, table, query, call)
        return encode_response(
            encode_answer(found, request.output_filter),
            model=request.ref.name,
            version=found.version,
            signature_name=SIGNATURE,
            as_content=as_content,
        )

    return engine.searches.submit(run).result()


INFERENCE_SERVICE = "inference.GRPCInferenceService"

# gRPC path of a Triton method that this server lacks -> the error text that it sends with status UNIMPLEMENTED.
INFERENCE_UNIMPLEMENTED: Mapping[str, str] = {
    f"/{INFERENCE_SERVICE}/{method}": text
    for method, text in {
        "ModelStreamInfer": "ModelStreamInfer is not implemented; call ModelInfer, any number at once on one channel.",
        "ModelStatistics": "ModelStatistics is not implemented; see /metrics of the HTTP port.",
        "RepositoryModelLoad": oip_models.NO_CONTROL,
        "RepositoryModelUnload": oip_models.NO_CONTROL,
        **{
            f"{kind}SharedMemory{action}": oip_models.NO_SHARED_MEMORY
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


SERVICES = (PREDICTION_SERVICE, MODEL_SERVICE, INFERENCE_SERVICE, HEALTH_SERVICE, REFLECTION_SERVICE)
# Names for which health checks have a status: the server (""), its gRPC services for models, and TensorFlow Serving's
# names for these services.
HEALTH_NAMES = ("", PREDICTION_SERVICE, MODEL_SERVICE, INFERENCE_SERVICE, "PredictionService", "ModelService")
# Path of a gRPC method that TensorFlow Serving or Triton has and this server lacks -> the text of its error
# UNIMPLEMENTED.
UNIMPLEMENTED: Mapping[str, str] = {**SERVING_UNIMPLEMENTED, **INFERENCE_UNIMPLEMENTED}

# Metadata key by which a request chooses its answer's form: "values", or one of those in tensor_content. Searches do
# not round their scores.
TENSOR_ENCODING_KEY = "x-tensor-encoding"


def unary_handlers(engine: Engine, *, as_content: bool) -> dict[str, Handler]:
    """Returns the handlers of all unary gRPC methods, by path, with tracing; any thread may call them."""
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
