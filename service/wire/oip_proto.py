"""Converts ModelInferRequest messages to arrays, and outputs to ModelInferResponse messages.

Source: kserve/open-inference-protocol, specification/protocol/open_inference_grpc.proto (29ca333).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from service.artifact.protobuf_wire import tag, varint
from service.errors import MalformedPayload
from service.types import Array, ModelRef
from service.wire.oip_models import REFUSED_PARAMETERS, SIGNATURE_PARAMETER, model_ref
from service.wire.oip_tensors import (
    BYTES,
    NUMPY_DTYPES,
    checked_shape,
    datatype_of,
    decode_binary,
    encode_binary,
    numpy_dtype,
    reshaped,
)
from service.wire.proto_message import parse_message

# Datatype of a tensor -> the field of InferTensorContents that has its values; FP16 and BF16 have no such field.
_CONTENTS: Mapping[str, str] = {
    "BOOL": "bool_contents",
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    "INT64": "int64_contents",
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    BYTES: "bytes_contents",
}


@dataclass(frozen=True, slots=True)
class InferRequest:
    """A parsed ModelInferRequest, whose tensors are protobuf messages and not arrays yet.

    signature_name: "" if the client named none.
    outputs: names of the requested outputs; none means all.
    """

    ref: ModelRef
    id: str
    signature_name: str
    outputs: tuple[str, ...]
    message: Any


def decode_infer_request(data: bytes) -> InferRequest:
    """Parses a ModelInferRequest, but does not convert its tensors; raises MalformedPayload and InvalidRequest."""
    message = parse_message("inference.ModelInferRequest", data)
    ref = model_ref(message.model_name, message.model_version)
    for kind, tensors in (("input", message.inputs), ("output", message.outputs)):
        for tensor in tensors:
            for name in REFUSED_PARAMETERS:
                if name in tensor.parameters:
                    raise MalformedPayload(f'{kind} "{tensor.name}": the parameter "{name}" is not supported.')
    signature_name = ""
    if SIGNATURE_PARAMETER in message.parameters:
        parameter = message.parameters[SIGNATURE_PARAMETER]
        if parameter.WhichOneof("parameter_choice") != "string_param":
            raise MalformedPayload(f'the parameter "{SIGNATURE_PARAMETER}" must be a string_param.')
        signature_name = parameter.string_param
    outputs = tuple([output.name for output in message.outputs])
    return InferRequest(ref, message.id, signature_name, outputs, message)


def decode_infer_inputs(request: InferRequest) -> dict[str, Array]:
    """Converts the inputs of a ModelInferRequest to arrays, by name; raises MalformedPayload and InputMismatch."""
    tensors, raw = request.message.inputs, request.message.raw_input_contents
    if raw and len(raw) != len(tensors):
        raise MalformedPayload(f"{len(raw)} raw_input_contents were sent for {len(tensors)} inputs.")
    arrays: dict[str, Array] = {}
    for i, tensor in enumerate(tensors):
        name = tensor.name
        if name in arrays:
            raise MalformedPayload(f'input "{name}" was sent twice.')
        if not raw:
            arrays[name] = _from_contents(name, tensor)
        elif tensor.HasField("contents"):
            raise MalformedPayload(f'input "{name}": it has contents beside raw_input_contents; send one of the two.')
        else:
            arrays[name] = decode_binary(name, tensor.datatype, tensor.shape, raw[i])
    return arrays


def encode_infer_response(
    outputs: Mapping[str, Array], request: InferRequest, *, model: str, version: int, signature_name: str
) -> bytes:
    """Encodes outputs as a ModelInferResponse; the bytes of arrays are copied only once.

    Raises:
      InputMismatch: the protocol has no datatype for an output's dtype.
    """
    # Field numbers of ModelInferResponse: model_name = 1, model_version = 2, id = 3, parameters = 4, outputs = 5,
    # raw_output_contents = 6.
    names, parameters = _head(model, version, signature_name)
    pieces: list[Any] = [names, _field(3, request.id.encode()) if request.id else b"", parameters]
    contents: list[Any] = []
    for name, array in outputs.items():
        pieces.append(_described(name, datatype_of(name, array), array.shape))
        data, num_bytes = encode_binary(array)
        contents += [tag(6, 2), varint(num_bytes), *data]
    return b"".join(pieces + contents)


def _from_contents(name: str, tensor: Any) -> Array:
    datatype = tensor.datatype
    dtype = numpy_dtype(name, datatype)
    shape, size = checked_shape(name, tensor.shape)
    field = _CONTENTS.get(datatype)
    if field is None:
        raise MalformedPayload(f'input "{name}": {datatype} has no contents field, send it as raw_input_contents.')
    values = getattr(tensor.contents, field)
    if len(values) != size:
        raise MalformedPayload(
            f'input "{name}": {len(values)} values in {field}, {datatype} of shape {list(shape)} needs {size}.'
        )
    if datatype == BYTES:
        flat: Array = np.empty(size, object)
        flat[:] = list(values)
    else:
        # np.array() is called on protobuf's repeated field itself, and not on a list, because this copies at memory
        # speed.
        flat = np.array(values)
        if flat.dtype != dtype:
            flat = _narrowed(name, datatype, flat)
    return reshaped(name, flat, shape, size)


def _narrowed(name: str, datatype: str, values: Array) -> Array:
    dtype = NUMPY_DTYPES[datatype]
    if values.size and dtype.kind in "iu":
        limits = np.iinfo(dtype)
        wrong = values[(values < limits.min) | (values > limits.max)]
        if wrong.size:
            raise MalformedPayload(f'input "{name}": {wrong[0]} does not fit {datatype}.')
    return values.astype(dtype)


@lru_cache(maxsize=256)
def _head(model: str, version: int, signature_name: str) -> tuple[bytes, bytes]:
    # The parameter signature_name is encoded as an entry {key = 1, value = 2} of a protobuf map, whose value is
    # InferParameter {string_param = 3}.
    entry = _field(1, SIGNATURE_PARAMETER.encode()) + _field(2, _field(3, signature_name.encode()))
    return _field(1, model.encode()) + _field(2, str(version).encode()), _field(4, entry)


@lru_cache(maxsize=1024)
def _described(name: str, datatype: str, shape: tuple[int, ...]) -> bytes:
    # Encodes InferOutputTensor {name = 1, datatype = 2, shape = 3}; the bytes are cached, because a server's answers
    # have few different shapes.
    sizes = b"".join(map(varint, shape))
    tensor = _field(1, name.encode()) + _field(2, datatype.encode()) + (_field(3, sizes) if shape else b"")
    return _field(5, tensor)


def _field(number: int, data: bytes) -> bytes:
    return tag(number, 2) + varint(len(data)) + data
