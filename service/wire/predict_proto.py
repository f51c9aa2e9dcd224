"""Converts PredictRequest messages to arrays, and outputs to PredictResponse messages.

Source: tensorflow_serving/apis/{predict,model}.proto (9d981c5).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from service.artifact.protos import message_class
from service.artifact.tensor_proto import MAX_SPREAD_ELEMENTS, decode_tensor, encode_tensor
from service.errors import InvalidRequest
from service.types import Array, ModelRef
from service.wire.api import parse_message


@dataclass(frozen=True, slots=True)
class PredictRequest:
    """A parsed PredictRequest, whose tensors are protobuf messages and not arrays yet.

    signature_name: "" if the client named none.
    num_bytes: size of the whole message.
    """

    ref: ModelRef
    signature_name: str
    output_filter: tuple[str, ...]
    tensors: Mapping[str, Any]
    num_bytes: int


def decode_request(data: bytes) -> PredictRequest:
    """Parses a PredictRequest, but does not convert its tensors.

    Raises:
      MalformedPayload: the bytes are no such message.
      InvalidRequest: the model spec is missing or has no name.
    """
    message = parse_message("tensorflow.serving.PredictRequest", data)
    ref, signature_name = read_model_spec(message)
    return PredictRequest(ref, signature_name, tuple(message.output_filter), message.inputs, len(data))


def read_model_spec(message: Any) -> tuple[ModelRef, str]:
    """Returns the model reference and the signature name in a request's ModelSpec; raises InvalidRequest."""
    if not message.HasField("model_spec"):
        raise InvalidRequest("Missing ModelSpec")
    spec = message.model_spec
    name = spec.name
    if not name:
        raise InvalidRequest("ModelSpec has no name specified.")
    choice = spec.WhichOneof("version_choice")
    if choice == "version_label":
        return ModelRef(name, label=spec.version_label), spec.signature_name
    return ModelRef(name, spec.version.value if choice else None), spec.signature_name


def decode_inputs(request: PredictRequest) -> dict[str, Array]:
    """Converts the inputs of a PredictRequest to arrays, by name; raises MalformedPayload, InputMismatch."""
    # Number of elements that the inputs not yet decoded may have together. Only tensors whose last value is repeated to
    # fill the shape can exceed it, because each sent element takes at least a byte.
    max_elements = max(request.num_bytes, MAX_SPREAD_ELEMENTS)
    arrays: dict[str, Array] = {}
    for name, tensor in request.tensors.items():
        arrays[name] = array = decode_tensor(name, tensor, max_elements)
        max_elements -= array.size
    return arrays


def encode_request(
    model: str, signature_name: str, inputs: Mapping[str, Array], output_filter: Iterable[str] = ()
) -> bytes:
    request = message_class("tensorflow.serving.PredictRequest")()
    request.model_spec.name, request.model_spec.signature_name = model, signature_name
    for name, array in inputs.items():
        request.inputs[name].ParseFromString(b"".join(encode_tensor(name, array)))
    request.output_filter.extend(output_filter)
    return bytes(request.SerializeToString())


def decode_response(data: bytes) -> dict[str, Array]:
    """Converts the outputs of a PredictResponse to arrays, by name; raises MalformedPayload."""
    outputs = parse_message("tensorflow.serving.PredictResponse", data).outputs
    return {name: decode_tensor(name, tensor, max(len(data), MAX_SPREAD_ELEMENTS)) for name, tensor in outputs.items()}


def encode_response(
    outputs: Mapping[str, Array], *, model: str, version: int, signature_name: str, as_content: bool = False
) -> bytes:
    """Encodes outputs as a PredictResponse.

    Args:
      as_content: True puts the values into tensor_content, False into the `*_val` fields.
    """
    response = message_class("tensorflow.serving.PredictResponse")()
    response.model_spec.name, response.model_spec.signature_name = model, signature_name
    response.model_spec.version.value = version
    for name, array in outputs.items():
        response.outputs[name].ParseFromString(b"".join(encode_tensor(name, array, as_content=as_content)))
    return bytes(response.SerializeToString())
