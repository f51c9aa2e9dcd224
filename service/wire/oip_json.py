"""Converts HTTP bodies of the Open Inference Protocol's inference requests to arrays, and outputs to answers.

A body is a JSON object, followed by the binary data of the tensors with binary_data_size, in their order. The header
Inference-Header-Content-Length has the length of the JSON; without it the whole body is JSON.

Source: kserve/open-inference-protocol, specification/protocol/inference_rest.md (29ca333);
triton-inference-server/server, docs/protocol/extension_binary_data.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import orjson

from service.errors import InputMismatch, MalformedPayload
from service.types import Array, TensorSpec
from service.wire.json_arrays import dense_array
from service.wire.json_body import bound_tokens
from service.wire.json_document import describe, dump, parse_object
from service.wire.oip_models import REFUSED_PARAMETERS, SIGNATURE_PARAMETER
from service.wire.oip_tensors import (
    BF16,
    BYTES,
    Buffer,
    checked_shape,
    datatype_of,
    decode_binary,
    encode_binary,
    numpy_dtype,
    reshaped,
)

_BINARY_SIZE = "binary_data_size"
_MAX_SIZE = 2**63 - 1
Json = Mapping[str, Any]


class InferInput(NamedTuple):
    """One input tensor of an Open Inference Protocol request in JSON; its data are JSON values or bytes."""

    name: str
    datatype: str
    shape: list[int]
    data: list[Any] | Buffer


@dataclass(frozen=True, slots=True)
class InferBody:
    """A parsed JSON body of an Open Inference Protocol request, whose input tensors are not arrays yet.

    id: None if the client sent none.
    signature_name: "" if the client named none.
    outputs: names of the requested outputs; none means all.
    binary: output -> whether it is to be binary, for outputs with a parameter of their own.
    is_binary: whether the other outputs are to be binary.
    """

    id: str | None
    signature_name: str
    inputs: tuple[InferInput, ...]
    outputs: tuple[str, ...]
    binary: Mapping[str, bool]
    is_binary: bool


def decode_infer(body: bytes, header_length: str | None, *, strict: bool = False) -> InferBody:
    """Parses an Open Inference Protocol request's body, but does not convert the tensors' values to arrays.

    Args:
      header_length: value of the header Inference-Header-Content-Length; None: there is no such header.
      strict: refuses bare NaN and Infinity.

    Raises:
      MalformedPayload: the body is not JSON or not an inference request, or its binary data do not have the given
        sizes.
    """
    length = len(body) if header_length is None else _header_length(header_length, len(body))
    document = _parse(body if length == len(body) else body[:length], strict=strict)
    parameters = _parameters(document, "the request")
    request_id = document.get("id")
    if request_id is not None:
        request_id = _text(document, "id", "the request")
    outputs, binary = _read_outputs(document)
    return InferBody(
        id=request_id,
        signature_name=_text(parameters, SIGNATURE_PARAMETER, "parameters", ""),
        inputs=_read_inputs(document, memoryview(body)[length:], has_header=header_length is not None),
        outputs=outputs,
        binary=binary,
        is_binary=_flag(parameters, "binary_data_output", "parameters"),
    )


def decode_inputs(body: InferBody) -> dict[str, Array]:
    """Converts the inputs of an inference request to arrays, by name; raises MalformedPayload and InputMismatch."""
    arrays: dict[str, Array] = {}
    for name, datatype, sizes, data in body.inputs:
        if isinstance(data, list):
            arrays[name] = _from_values(name, datatype, sizes, data)
        else:
            arrays[name] = decode_binary(name, datatype, sizes, data)
    return arrays


def encode_infer(
    outputs: Mapping[str, Array],
    body: InferBody,
    *,
    model: str,
    version: int,
    signature_name: str,
    strict: bool = False,
) -> tuple[bytes, int | None]:
    """Encodes an inference answer; returns its body, and the length of the JSON part if binary data follow (else None).

    Args:
      strict: writes null for NaN and infinity.

    Raises:
      InputMismatch: an output can not be written in the requested form.
    """
    pieces: list[Any] = [b""]
    described = []
    for name, array in outputs.items():
        output: dict[str, Any] = {
            "name": name,
            "datatype": datatype_of(name, array),
            "shape": list(array.shape),
        }
        if body.binary.get(name, body.is_binary):
            data, num_bytes = encode_binary(array)
            output["parameters"] = {_BINARY_SIZE: num_bytes}
            pieces += data
        else:
            output["data"] = _values(name, output["datatype"], array)
        described.append(output)
    document: dict[str, Any] = {"model_name": model, "model_version": str(version)}
    if body.id is not None:
        document["id"] = body.id
    document["parameters"] = {SIGNATURE_PARAMETER: signature_name}
    document["outputs"] = described
    pieces[0] = dump(document, strict=strict)
    if len(pieces) == 1:
        return pieces[0], None
    return b"".join(pieces), len(pieces[0])


def _header_length(text: str, num_bytes: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 19):
        raise MalformedPayload(f"Inference-Header-Content-Length: {ascii(text[:32])} is not a length in bytes.")
    if int(text) > num_bytes:
        raise MalformedPayload(f"Inference-Header-Content-Length is {text}, but the body has {num_bytes} bytes.")
    return int(text)


def _parse(header: bytes, *, strict: bool) -> dict[str, Any]:
    """Parses the JSON of a body as parse_object does, but faster for bodies with keys in nested objects."""
    bound_tokens(header)
    try:
        document = orjson.loads(header)
    except orjson.JSONDecodeError:
        return parse_object(header, strict=strict)
    if type(document) is dict and header.count(b":") == _count_keys(document):
        return document
    return parse_object(header, strict=strict)


def _count_keys(document: dict[str, Any]) -> int:
    count = len(document) + _size(document.get("parameters"))
    for key in ("inputs", "outputs"):
        tensors = document.get(key)
        if type(tensors) is list:
            count += sum(_size(tensor) + _size(tensor.get("parameters")) for tensor in tensors if type(tensor) is dict)
    return count


def _size(value: Any) -> int:
    return len(value) if type(value) is dict else 0


def _read_inputs(document: Json, binary: memoryview, *, has_header: bool) -> tuple[InferInput, ...]:
    inputs: dict[str, InferInput] = {}
    position = 0
    for tensor in _tensors(document, "inputs", is_required=True):
        name = _text(tensor, "name", "an input")
        if name in inputs:
            raise MalformedPayload(f'input "{name}" was sent twice.')
        where = f'input "{name}"'
        size = _parameters(tensor, where).get(_BINARY_SIZE)
        data = tensor.get("data")
        if size is None:
            if type(data) is not list:
                raise MalformedPayload(f'{where}: expected "data" to be a list, got JSON Value: {describe(data)}')
        elif data is not None:
            raise MalformedPayload(f'{where}: it has both "data" and {_BINARY_SIZE}.')
        elif not has_header:
            raise MalformedPayload(f"{where}: binary data needs the header Inference-Header-Content-Length.")
        else:
            if type(size) is not int or not 0 <= size <= len(binary) - position:
                shown = describe(size).partition(" Type: ")[0]
                raise MalformedPayload(
                    f"{where}: {_BINARY_SIZE} is {shown}, but {len(binary) - position} bytes are left of the body."
                )
            data = binary[position : position + size]
            position += size
        inputs[name] = InferInput(name, _text(tensor, "datatype", where), _shape(tensor, where), data)
    if position != len(binary):
        raise MalformedPayload(f"{len(binary) - position} bytes of the body belong to no input.")
    return tuple(inputs.values())


def _read_outputs(document: Json) -> tuple[tuple[str, ...], dict[str, bool]]:
    names, binary = [], {}
    for tensor in _tensors(document, "outputs"):
        name = _text(tensor, "name", "an output")
        names.append(name)
        parameters = _parameters(tensor, f'output "{name}"')
        if "binary_data" in parameters:
            binary[name] = _flag(parameters, "binary_data", f'output "{name}"')
    return tuple(names), binary


def _tensors(document: Json, key: str, *, is_required: bool = False) -> list[Json]:
    tensors = document.get(key)
    if tensors is None and not is_required:
        return []
    if type(tensors) is not list or not set(map(type, tensors)) <= {dict}:
        raise MalformedPayload(f'expected "{key}" to be a list of objects, got JSON Value: {describe(tensors)}')
    return tensors


def _parameters(owner: Json, where: str) -> Json:
    parameters = owner.get("parameters")
    if parameters is None:
        return {}
    if type(parameters) is not dict:
        raise MalformedPayload(
            f'{where}: expected "parameters" to be an object, got JSON Value: {describe(parameters)}'
        )
    for name in REFUSED_PARAMETERS:
        if name in parameters:
            raise MalformedPayload(f'{where}: the parameter "{name}" is not supported.')
    return parameters


def _text(owner: Json, key: str, where: str, default: str | None = None) -> str:
    value = owner.get(key, default)
    if type(value) is not str:
        raise MalformedPayload(f'{where}: expected "{key}" to be a string, got JSON Value: {describe(value)}')
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise MalformedPayload(f'{where}: "{key}" holds a lone surrogate, which UTF-8 can not write.') from error
    return value


def _flag(owner: Json, key: str, where: str) -> bool:
    value = owner.get(key, False)
    if type(value) is not bool:
        raise MalformedPayload(f'{where}: expected "{key}" to be true or false, got JSON Value: {describe(value)}')
    return value


def _shape(tensor: Json, where: str) -> list[int]:
    shape = tensor.get("shape")
    if type(shape) is not list or not set(map(type, shape)) <= {int} or any(abs(size) > _MAX_SIZE for size in shape):
        raise MalformedPayload(
            f'{where}: expected "shape" to be a list of integers of 64 bits, got JSON Value: {describe(shape)}'
        )
    return shape


def _from_values(name: str, datatype: str, sizes: list[int], values: list[Any]) -> Array:
    dtype = numpy_dtype(name, datatype)
    shape, size = checked_shape(name, sizes)
    # Values of a BF16 tensor in a JSON body are read as float32, which can represent each of them, and then converted
    # to bfloat16.
    written = {BYTES: "string", BF16: "float32"}.get(datatype, dtype.name)
    array = dense_array(name, values, TensorSpec(name, written, None))
    return reshaped(name, array if datatype != BF16 else array.astype(dtype), shape, size)


def _values(name: str, datatype: str, array: Array) -> Any:
    flat = array.reshape(-1)
    if datatype == BF16:
        return flat.astype(np.float32)
    if datatype != BYTES:
        return np.ascontiguousarray(flat)
    try:
        return [item if isinstance(item, str) else item.decode() for item in flat.tolist()]
    except UnicodeDecodeError as error:
        raise InputMismatch(
            f'output "{name}": it holds bytes that are not UTF-8, which JSON can not carry; ask for it with the '
            'parameter "binary_data": true.'
        ) from error
