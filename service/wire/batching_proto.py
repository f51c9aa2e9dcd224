"""Parses batching parameters from the text form of TensorFlow Serving's BatchingParameters message.

tensorflow-serving-api does not have this message, so its few fields are declared here.

Source: tensorflow_serving/servables/tensorflow/session_bundle_config.proto, util/proto_util.h (9d981c5).
"""

from __future__ import annotations

from functools import cache
from typing import Any

from service.artifact.protos import Field, MessageClass, TextFormError, declared_class, fill_from_text
from service.engine.batching_parameters import BatchingParameters
from service.errors import InvalidRequest

_NAME = "tensorflow.serving.BatchingParameters"
# Field of BatchingParameters -> its number and wrapper message. The field is written `max_batch_size { value: 128 }`,
# so that a missing field differs from 0.
_WRAPPED = {
    "max_batch_size": (1, "Int64Value"),
    "batch_timeout_micros": (2, "Int64Value"),
    "max_enqueued_batches": (3, "Int64Value"),
    "num_batch_threads": (4, "Int64Value"),
    "thread_pool_name": (5, "StringValue"),
    "enable_large_batch_splitting": (8, "BoolValue"),
    "max_execution_batch_size": (9, "Int64Value"),
}


def parse_batching_text(text: str, source: str) -> BatchingParameters:
    """Parses the text of a --batching_parameters_file or of a version's batching_params.pbtxt.

    Args:
      source: the file's name, for error texts.

    Raises:
      InvalidRequest: the text is not the text form of a BatchingParameters, or its values conflict.
    """
    message = _message_class()()
    try:
        fill_from_text(message, text)
    except (TextFormError, UnicodeError) as error:
        raise InvalidRequest(f"Invalid protobuf file: '{source}': {error}") from error
    given: dict[str, Any] = {name: getattr(message, name).value for name in _WRAPPED if message.HasField(name)}
    parameters = BatchingParameters(
        **given,
        allowed_batch_sizes=tuple(message.allowed_batch_sizes),
        pad_variable_length_inputs=message.pad_variable_length_inputs,
    )
    try:
        parameters.check()
    except InvalidRequest as error:
        raise InvalidRequest(f"{source}: {error.message}") from error
    return parameters


@cache
def _message_class() -> MessageClass:
    wrapped = [Field(name, number, f"google.protobuf.{wrapper}") for name, (number, wrapper) in _WRAPPED.items()]
    plain = [
        Field("allowed_batch_sizes", 6, "int64", is_repeated=True),
        Field("pad_variable_length_inputs", 7, "bool"),
    ]
    return declared_class(_NAME, {"BatchingParameters": [*wrapped, *plain]})
