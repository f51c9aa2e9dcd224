"""Handles TensorFlow Serving's gRPC methods, from request bytes to answer bytes, without a gRPC library.

Source: tensorflow_serving/apis/{prediction_service,model_service}.proto; servables/tensorflow/
get_model_metadata_impl.cc, model_servers/{get_model_status,model_service}_impl.cc (9d981c5).
"""

from __future__ import annotations

from collections.abc import Mapping

from service.artifact.signature_def import encode_metadata
from service.engine.bound import NOT_HERE
from service.engine.call import Call
from service.engine.engine import Engine
from service.errors import InvalidRequest, ServiceError, Unimplemented
from service.grpc.inference_methods import inference_methods
from service.grpc.neighbor_search import is_search, search
from service.wire.grpc_api import API, MODEL_SERVICE, PREDICT, PREDICTION_SERVICE, Handler
from service.wire.model_config_proto import decode_reload_request, encode_reload_response
from service.wire.predict_proto import decode_request, read_model_spec
from service.wire.proto_message import parse_message
from service.wire.status import encode_statuses

# Path of a TensorFlow Serving method that this server lacks -> the error text of its status UNIMPLEMENTED.
UNIMPLEMENTED: Mapping[str, str] = {
    "/tensorflow.serving.SessionService/SessionRun": "SessionRun is not implemented; call Predict.",
}


def service_methods(engine: Engine, *, as_content: bool = False) -> dict[str, Handler]:
    """Returns the handlers of TensorFlow Serving's methods, by path. Concurrency: any thread may call them.

    Args:
      as_content: True puts Predict's values into tensor_content, False into the `*_val` fields.
    """

    # The native core answers all other Predict requests.
    def predict(data: bytes, deadline_s: float | None) -> bytes:
        call = Call(API, "Predict", engine.clock(), deadline_s)
        try:
            request = decode_request(data)
        except ServiceError as error:
            engine.reject(error, call)
            raise
        if is_search(engine, request):
            return search(engine, request, call, as_content=as_content)
        refusal = Unimplemented(NOT_HERE)
        engine.reject(refusal, call, model=request.ref.name)
        raise refusal

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
        **inference_methods(engine),
        PREDICT: predict,
        f"/{PREDICTION_SERVICE}/GetModelMetadata": get_model_metadata,
        f"/{MODEL_SERVICE}/GetModelStatus": get_model_status,
        f"/{MODEL_SERVICE}/HandleReloadConfigRequest": reload_config,
    }
