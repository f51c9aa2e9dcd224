"""Handles TensorFlow Serving's gRPC methods that the native core does not answer, from request bytes to answer bytes.

Source: tensorflow_serving/apis/{prediction_service,model_service}.proto; servables/tensorflow/
get_model_metadata_impl.cc, model_servers/{get_model_status,model_service}_impl.cc (9d981c5).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import copy_context

from service.artifact.signature_def import encode_metadata
from service.engine.call import Call
from service.engine.engine import Engine
from service.engine.neighbors import SIGNATURE
from service.errors import InvalidRequest, ServiceError, Unimplemented
from service.wire.grpc_api import API, MODEL_SERVICE, PREDICT, PREDICTION_SERVICE, Handler
from service.wire.model_config_proto import decode_reload_request, encode_reload_response
from service.wire.neighbor_tensors import decode_search, encode_answer
from service.wire.predict_proto import PredictRequest, decode_inputs, decode_request, encode_response, read_model_spec
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

    # The native core forwards only searches for nearest rows, which name the signature "neighbors".
    def predict(data: bytes, deadline_s: float | None) -> bytes:
        call = Call(API, "Predict", engine.clock(), deadline_s)
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
    """Searches for nearest rows, in a thread for searches, and returns the result as a PredictResponse. Blocks.

    Raises:
      ServiceError: as Engine.neighbors; Overloaded or DeadlineExceeded if no thread is free in time.
    """

    def run(refusal: ServiceError | None) -> bytes:
        try:
            if refusal is not None:
                raise refusal
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

    # copy_context() carries the request's id, its trace and its caller's grant to the thread.
    context = copy_context()
    job = engine.searches.pool.submit(
        engine.share_of(request.ref.name), lambda refusal: context.run(run, refusal), call.deadline_s
    )
    answer: bytes = job.result()
    return answer
