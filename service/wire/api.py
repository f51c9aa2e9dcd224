"""Names the HTTP and gRPC APIs and their services, and converts the messages that all services have.

Source: tensorflow_serving/apis/{get_model_status,status}.proto (9d981c5).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import orjson
from google.protobuf.message import DecodeError

from service.artifact.protos import MessageClass, message_class
from service.errors import MalformedPayload
from service.types import VersionStatus

# The name of the HTTP API in metrics and logs.
HTTP_API = "http"
# Default of the most rows of a table that one request to the HTTP route tables/{table}:rows may read.
DEFAULT_MAX_TABLE_ROWS = 65536

GRPC_API = "grpc"
PREDICTION_SERVICE = "tensorflow.serving.PredictionService"
MODEL_SERVICE = "tensorflow.serving.ModelService"
PREDICT = f"/{PREDICTION_SERVICE}/Predict"

# Type of a gRPC method's handler: takes the request's bytes and its deadline (on the engine's clock, or None), and
# returns the answer's bytes; raises ServiceError.
Handler = Callable[[bytes, float | None], bytes]


def parse_message(full_name: str, data: bytes) -> MessageClass:
    """Parses bytes as a protobuf message of the given type; raises MalformedPayload if they are no such message."""
    message = message_class(full_name)()
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        # As native/src/plan/foreign.rs words it for data requests.
        gzipped = ": it is compressed by gzip, but its compressed flag is not set; let the gRPC library compress it"
        hint = gzipped if data.startswith(b"\x1f\x8b") else ""
        raise MalformedPayload(f"The request is not a valid {full_name} message{hint}.") from error
    return message


def encode_statuses(statuses: Iterable[VersionStatus]) -> bytes:
    response = message_class("tensorflow.serving.GetModelStatusResponse")()
    codes = response.DESCRIPTOR.fields_by_name["model_version_status"].message_type.fields_by_name["status"]
    code_numbers = codes.message_type.fields_by_name["error_code"].enum_type.values_by_name
    for status in statuses:
        entry = response.model_version_status.add()
        entry.version = status.version
        entry.state = int(status.state)
        entry.status.error_code = code_numbers[status.code].number
        entry.status.error_message = status.message
    return bytes(response.SerializeToString())


def statuses_json(statuses: Iterable[VersionStatus]) -> bytes:
    return orjson.dumps(
        {
            "model_version_status": [
                {
                    "version": str(status.version),
                    "state": status.state.name,
                    "status": {"error_code": status.code, "error_message": status.message},
                }
                for status in statuses
            ]
        }
    )
