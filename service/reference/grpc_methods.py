"""Answers the gRPC methods Predict, GetModelStatus, GetModelMetadata and the health Check with grpcio.

Source: tensorflow_serving/apis/{prediction_service,model_service}.proto; servables/tensorflow/
get_model_metadata_impl.cc, model_servers/get_model_status_impl.cc (9d981c5); grpc/health/v1/health.proto.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NoReturn

import grpc
import numpy as np
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2

from service.artifact.protos import message_class
from service.artifact.signature_def import encode_metadata
from service.artifact.tensor_proto import MAX_SPREAD_ELEMENTS, NUMPY_DTYPES, decode_tensor, dtype_number, encode_tensor
from service.configuration.settings import StartError
from service.errors import InvalidRequest, MalformedPayload, NotFound, ServiceError, Unimplemented
from service.reference.models import Models
from service.types import Array, ModelRef

logger = logging.getLogger(__name__)

PREDICTION_SERVICE = "tensorflow.serving.PredictionService"
MODEL_SERVICE = "tensorflow.serving.ModelService"
# Longest text of an error; the details of a status travel in a header.
_MAX_DETAIL_BYTES = 1024

Method = Callable[[bytes, grpc.ServicerContext], bytes]

# Value of the metadata "x-tensor-encoding" -> whether numbers are in tensor_content, and the dtype of float32 outputs.
_ENCODINGS = {
    "values": (False, "float32"),
    "content": (True, "float32"),
    "float16": (True, "float16"),
    "bfloat16": (True, "bfloat16"),
}


def create_grpc_server(
    models: Models, *, threads: int, max_message_bytes: int, arguments: list[tuple[str, int | str]], as_content: bool
) -> grpc.Server:
    """Returns a gRPC server without ports.

    Args:
      threads: requests that run at a time.
      arguments: channel arguments of gRPC.
      as_content: puts the values of answers into tensor_content, and not into the `*_val` fields.
    """
    options = [("grpc.max_receive_message_length", max_message_bytes), ("grpc.max_send_message_length", -1)]
    methods: dict[str, Method] = {
        f"/{PREDICTION_SERVICE}/Predict": partial(_predict, models, as_content),
        f"/{PREDICTION_SERVICE}/GetModelMetadata": partial(_metadata, models),
        f"/{MODEL_SERVICE}/GetModelStatus": partial(_status, models),
        "/grpc.health.v1.Health/Check": partial(_check, models),
    }
    server = grpc.server(ThreadPoolExecutor(threads, "grpc"), options=[("grpc.so_reuseport", 0), *options, *arguments])
    server.add_generic_rpc_handlers((_Handlers(methods),))
    return server


def open_port(server: grpc.Server, address: str) -> int:
    """Adds an address to a gRPC server that has not started; returns the port's number. Raises StartError."""
    try:
        return server.add_insecure_port(address)
    except RuntimeError as error:
        raise StartError(f"cannot listen on {address} for gRPC: {error}") from error


class _Handlers(grpc.GenericRpcHandler):
    """The methods by path, from bytes to bytes."""

    def __init__(self, methods: dict[str, Method]) -> None:
        self._methods: dict[str, Any] = {
            path: grpc.unary_unary_rpc_method_handler(_answering(run)) for path, run in methods.items()
        }

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """Returns the handler of a method; None for an unknown one, which grpcio answers with UNIMPLEMENTED."""
        return self._methods.get(handler_call_details.method)


def _answering(run: Method) -> Callable[[bytes, grpc.ServicerContext], bytes]:
    def answer(data: bytes, context: grpc.ServicerContext) -> bytes:
        try:
            return run(data, context)
        except ServiceError as error:
            if error.code == "INTERNAL":
                logger.error("request failed: %s", error.message, exc_info=error)
            _abort(context, error.code, error.message)
        except Exception as error:
            logger.error("unexpected error", exc_info=error)
            _abort(context, "INTERNAL", "Internal error; the server's log has the cause.")

    return answer


def _abort(context: grpc.ServicerContext, code: str, text: str) -> NoReturn:
    data = text.encode("utf-8", "replace")
    cut = data[:_MAX_DETAIL_BYTES].decode("utf-8", "ignore")
    context.abort(grpc.StatusCode[code], cut if len(data) <= _MAX_DETAIL_BYTES else f"{cut}...TRUNCATED")


def _parsed(full_name: str, data: bytes) -> Any:
    message = message_class(full_name)()
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise MalformedPayload(f"The request is not a valid {full_name} message.") from error
    if not message.HasField("model_spec"):
        raise InvalidRequest("Missing ModelSpec")
    return message


def _ref(spec: Any) -> ModelRef:
    if not spec.name:
        raise InvalidRequest("ModelSpec has no name specified.")
    choice = spec.WhichOneof("version_choice")
    if choice == "version_label":
        return ModelRef(spec.name, label=spec.version_label)
    return ModelRef(spec.name, spec.version.value if choice else None)


def _predict(models: Models, as_content: bool, data: bytes, context: grpc.ServicerContext) -> bytes:
    as_content, dtype = _encoding(context, as_content)
    request = _parsed("tensorflow.serving.PredictRequest", data)
    with models.lease(_ref(request.model_spec)) as model:
        spec = model.signature(request.model_spec.signature_name)
        outputs = model.run(spec, lambda: _decoded(request, len(data)), request.inputs, tuple(request.output_filter))
    response = message_class("tensorflow.serving.PredictResponse")()
    response.model_spec.name, response.model_spec.version.value = model.name, model.version
    response.model_spec.signature_name = spec.name
    for name, array in outputs.items():
        if array.dtype == np.float32:
            # A number that is too large for float16 becomes infinite.
            with np.errstate(over="ignore"):
                array = array.astype(dtype)
        response.outputs[name].ParseFromString(b"".join(encode_tensor(name, array, as_content=as_content)))
    return bytes(response.SerializeToString())


def _encoding(context: grpc.ServicerContext, as_content: bool) -> tuple[bool, np.dtype[Any]]:
    """Returns whether an answer has its numbers in tensor_content, and the dtype of its float32 outputs."""
    chosen = dict(context.invocation_metadata() or ()).get("x-tensor-encoding")
    if chosen is None:
        return as_content, np.dtype(np.float32)
    if chosen not in _ENCODINGS:
        known = ", ".join(_ENCODINGS)
        raise InvalidRequest(f'The metadata "x-tensor-encoding" is "{chosen!s}"; expected one of {known}.')
    as_content, name = _ENCODINGS[chosen]
    dtype = NUMPY_DTYPES.get(dtype_number(name))
    if dtype is None:
        raise Unimplemented(f"The reference server needs the package ml_dtypes for answers in {name}.")
    return as_content, dtype


def _decoded(request: Any, num_bytes: int) -> dict[str, Array]:
    # A tensor repeats its last value to fill its shape: all together may have as many elements as the request has
    # bytes, or as one such tensor.
    left = max(num_bytes, MAX_SPREAD_ELEMENTS)
    arrays: dict[str, Array] = {}
    for name, tensor in request.inputs.items():
        arrays[name] = decode_tensor(name, tensor, left)
        left -= arrays[name].size
    return arrays


def _metadata(models: Models, data: bytes, _: grpc.ServicerContext) -> bytes:
    request = _parsed("tensorflow.serving.GetModelMetadataRequest", data)
    if not request.metadata_field:
        raise InvalidRequest("GetModelMetadataRequest must specify at least one metadata_field")
    for field in request.metadata_field:
        if field != "signature_def":
            raise InvalidRequest(f"Metadata field {field} is not supported")
    with models.lease(_ref(request.model_spec)) as model:
        return encode_metadata(model.name, model.version, model.signatures)


def _status(models: Models, data: bytes, _: grpc.ServicerContext) -> bytes:
    # A label is ignored, and a model without a name is an unknown one, as in TensorFlow Serving.
    spec = _parsed("tensorflow.serving.GetModelStatusRequest", data).model_spec
    response = message_class("tensorflow.serving.GetModelStatusResponse")()
    for status in models.registry.statuses(spec.name, spec.version.value if spec.HasField("version") else None):
        entry = response.model_version_status.add()
        entry.version, entry.state = status.version, int(status.state)
        entry.status.error_code = grpc.StatusCode[status.code].value[0]
        entry.status.error_message = status.message
    return bytes(response.SerializeToString())


def _check(models: Models, data: bytes, _: grpc.ServicerContext) -> bytes:
    """Answers a health check of the server (""), of one of its services, or of a model."""
    try:
        service = health_pb2.HealthCheckRequest.FromString(data).service
    except DecodeError as error:
        raise MalformedPayload("The request is not a valid grpc.health.v1.HealthCheckRequest message.") from error
    if service in ("", PREDICTION_SERVICE, MODEL_SERVICE):
        is_serving = models.registry.is_ready
    elif service in models.registry.models():
        is_serving = service not in models.problems() and not models.registry.is_draining
    else:
        raise NotFound(f"Unknown service: {service[:100]}")
    status = health_pb2.HealthCheckResponse
    return bytes(status(status=status.SERVING if is_serving else status.NOT_SERVING).SerializeToString())
