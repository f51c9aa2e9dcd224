"""BatchingParameters, as the text of a file, to the parameters that it gives.

tensorflow-serving-api does not have this message, so its few fields are written down here.

Source: tensorflow_serving/servables/tensorflow/session_bundle_config.proto, util/proto_util.h (9d981c5).
"""

from __future__ import annotations

from functools import cache
from typing import Any

from google.protobuf import descriptor_pb2, message_factory, text_format

from service.codecs.protos import MessageClass, new_pool
from service.core.batching.parameters import BatchingParameters
from service.core.errors import InvalidRequest

_NAME = "tensorflow.serving.BatchingParameters"
# Field -> its number. Those in a wrapper are written `max_batch_size { value: 128 }`, and can be told from 0.
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
    """Reads the text of a --batching_parameters_file or a batching_params.pbtxt.

    Args:
      source: the file's name, for the message.

    Raises:
      InvalidRequest: it is not the text form of a BatchingParameters, or its values do not go together.
    """
    message = _message_class()()
    try:
        text_format.Parse(text, message)
    except (text_format.ParseError, UnicodeError) as error:
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
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="embedding_server/batching_parameters.proto",
        package="tensorflow.serving",
        syntax="proto3",
        dependency=["google/protobuf/wrappers.proto"],
    )
    message = file.message_type.add(name="BatchingParameters")
    for name, (number, wrapper) in _WRAPPED.items():
        message.field.add(
            name=name,
            number=number,
            type=kinds.TYPE_MESSAGE,
            type_name=f".google.protobuf.{wrapper}",
            label=kinds.LABEL_OPTIONAL,
        )
    message.field.add(name="allowed_batch_sizes", number=6, type=kinds.TYPE_INT64, label=kinds.LABEL_REPEATED)
    message.field.add(name="pad_variable_length_inputs", number=7, type=kinds.TYPE_BOOL, label=kinds.LABEL_OPTIONAL)
    pool = new_pool([file.SerializeToString()])
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(_NAME))
