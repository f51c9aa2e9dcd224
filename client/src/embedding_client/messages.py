"""Encodes the request messages of TensorFlow Serving's gRPC services, and decodes the answer messages.

Numbers travel in tensor_content, which is the array's memory; strings in string_val.

Source: tensorflow_serving/apis/{predict,model,get_model_status,get_model_metadata}.proto and util/status.proto
(9d981c5), tensorflow/core/framework/tensor.proto and core/protobuf/meta_graph.proto (2.21), google/rpc/code.proto.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from embedding_client.calls import Where
from embedding_client.errors import invalid
from embedding_client.protobuf import (
    BYTES,
    VARINT,
    Buffer,
    as_bytes,
    bytes_field,
    field,
    fields,
    int_field,
    map_entry,
    repeated_field,
    tag,
    text,
    varint,
)
from embedding_client.tensor_proto import (
    DTYPE_NUMBERS,
    STRING,
    TensorParts,
    array_bytes,
    decode_shape,
    dtype_name,
    parse_tensor,
    tensor_array,
)
from embedding_client.types import (
    Array,
    ModelMetadata,
    Outputs,
    SignatureDescription,
    State,
    TensorDescription,
    VersionStatus,
)

_MAX_INT64 = 2**63 - 1
_CODES = (
    *("OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS"),
    *("PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED"),
    *("INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED"),
)


@lru_cache(maxsize=256)
def encode_model_spec(model: str, at: Where, signature: str) -> bytes:
    """Returns a ModelSpec {name = 1, version = 2 {value = 1}, signature_name = 3, version_label = 4}.

    Raises:
      InvalidRequest: the version is no int64 of 0 or more.
    """
    pieces = [field(1, model.encode())]
    if at.version is not None:
        if not 0 <= at.version <= _MAX_INT64:
            raise invalid(f"version is {at.version}: expected 0 or more, within 64 bits.")
        pieces.append(field(2, tag(1, VARINT) + varint(at.version)))
    if signature:
        pieces.append(field(3, signature.encode()))
    if at.label is not None:
        pieces.append(field(4, at.label.encode()))
    return b"".join(pieces)


def encode_predict(model_spec: bytes, inputs: Mapping[str, Array], outputs: Sequence[str]) -> bytes:
    """Returns a PredictRequest {model_spec = 1, inputs = 2, output_filter = 3}.

    Raises:
      InvalidRequest: an array of a dtype that TensorProto lacks.
    """
    pieces: list[Any] = [field(1, model_spec)]
    for name, array in inputs.items():
        if array.dtype == object:
            strings = b"".join([field(8, item) for item in array.reshape(-1).tolist()])
            pieces += [_entry_head(name, STRING, array.shape, len(strings)), strings]
            continue
        number = DTYPE_NUMBERS.get(array.dtype)
        if number is None:
            raise invalid(f'input "{name}": dtype {array.dtype} has no TensorProto form.')
        pieces.append(_entry_head(name, number, array.shape, array.nbytes))
        pieces.append(array_bytes(array))
    pieces += [field(3, name.encode()) for name in outputs]
    return b"".join(pieces)


@lru_cache(maxsize=4096)
def _entry_head(name: str, number: int, shape: tuple[int, ...], num_bytes: int) -> bytes:
    """Encodes an entry of PredictRequest.inputs, except the values of its tensor, which are the last bytes.

    An entry is {key = 1, value = 2}, a TensorProto {dtype = 1, tensor_shape = 2, tensor_content = 4, string_val = 8},
    a TensorShapeProto {dim = 2 {size = 1}}. Cached, because a client sends few names and shapes.
    """
    dims = b"".join(field(2, tag(1, VARINT) + varint(size)) for size in shape)
    tensor_head = tag(1, VARINT) + varint(number) + field(2, dims)
    if num_bytes and number != STRING:
        tensor_head += tag(4, BYTES) + varint(num_bytes)
    tensor_bytes = len(tensor_head) + num_bytes
    head = field(1, name.encode()) + tag(2, BYTES) + varint(tensor_bytes)
    return tag(2, BYTES) + varint(len(head) + tensor_bytes) + head + tensor_head


def encode_status(model_spec: bytes) -> bytes:
    """Returns a GetModelStatusRequest {model_spec = 1}."""
    return field(1, model_spec)


def encode_metadata(model_spec: bytes) -> bytes:
    """Returns a GetModelMetadataRequest {model_spec = 1, metadata_field = 2} for the signatures."""
    return field(1, model_spec) + field(2, b"signature_def")


class _Span(NamedTuple):
    """Where the numbers of an output lie in a PredictResponse; they are the only bytes that another answer may change.

    start: of the numbers. before: the bytes between the previous output's numbers and these.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    start: int
    before: bytes


class _Layout(NamedTuple):
    """The layout of a PredictResponse: its spans, and the bytes behind the last, from a position."""

    spans: tuple[_Span, ...]
    end: int
    after: bytes
    version: int | None

    def read(self, data: bytes) -> Outputs | None:
        """Decodes a message that has this layout; returns None if it has another."""
        outputs = Outputs(version=self.version)
        for name, dtype, shape, start, before in self.spans:
            if not data.startswith(before, start - len(before)):
                return None
            outputs[name] = np.ndarray(shape, dtype, data, start).copy()
        return outputs if data.startswith(self.after, self.end) else None


# Layouts by the length of the message: answers to requests of equal shapes differ in their numbers only, and to find
# these takes a tenth of the time that parsing does.
_layouts: dict[int, _Layout] = {}
_MAX_LAYOUTS = 256


def decode_predict(data: bytes) -> Outputs:
    """Decodes a PredictResponse {outputs = 1, model_spec = 2} to Outputs; raises ValueError for other bytes."""
    layout = _layouts.get(len(data))
    if layout is not None and (found := layout.read(data)) is not None:
        return found
    outputs = Outputs()
    tensors: dict[str, TensorParts] = {}
    for number, value in fields(memoryview(data)):
        if number == 1:
            name, tensor = map_entry(as_bytes(value))
            try:
                tensors[name] = parse_tensor(tensor)
                outputs[name] = tensor_array(tensors[name])
            except ValueError as error:
                raise ValueError(f'output "{name}": {error}') from error
        elif number == 2:
            outputs.version = _version(as_bytes(value))
    _remember(data, tensors, outputs.version)
    return outputs


def _remember(data: bytes, tensors: Mapping[str, TensorParts], version: int | None) -> None:
    spans: list[_Span] = []
    end = 0
    for name, tensor in tensors.items():
        raw = tensor.raw()
        if raw is None or not raw[1]:
            return
        dtype, numbers = raw
        start = _address(numbers) - _address(data)
        if start < end:
            return
        spans.append(_Span(name, dtype, tensor.shape, start, data[end:start]))
        end = start + len(numbers)
    if len(_layouts) >= _MAX_LAYOUTS:
        _layouts.clear()
    _layouts[len(data)] = _Layout(tuple(spans), end, data[end:], version)


def _address(data: Buffer) -> int:
    address: int = np.frombuffer(data, np.uint8).__array_interface__["data"][0]
    return address


def decode_statuses(data: bytes) -> tuple[VersionStatus, ...]:
    """Returns the states of a GetModelStatusResponse {model_version_status = 1}; raises ValueError."""
    return tuple(map(_status, repeated_field(data, 1)))


def decode_metadata(model: str, data: bytes) -> ModelMetadata:
    """Returns the signatures of a GetModelMetadataResponse {model_spec = 1, metadata = 2}; raises ValueError.

    The metadata is a map to google.protobuf.Any {value = 2}, here of a SignatureDefMap {signature_def = 1}.
    """
    metadata = dict(map(map_entry, repeated_field(data, 2)))
    signatures = map(map_entry, repeated_field(bytes_field(metadata.get("signature_def", b""), 2), 1))
    described = {name: _signature(signature) for name, signature in sorted(signatures)}
    return ModelMetadata(model, _version(bytes_field(data, 1)), described)


def _version(model_spec: Buffer) -> int:
    return int_field(bytes_field(model_spec, 2), 1)


def _status(data: Buffer) -> VersionStatus:
    """Decodes a ModelVersionStatus {version = 1, state = 2, status = 3 {error_code = 1, error_message = 2}}."""
    status = bytes_field(data, 3)
    code, message = _CODES[int_field(status, 1)], text(bytes_field(status, 2))
    return VersionStatus(int_field(data, 1), State(int_field(data, 2)), code, message)


def _signature(data: Buffer) -> SignatureDescription:
    """Decodes a SignatureDef {inputs = 1, outputs = 2, method_name = 3}."""
    return SignatureDescription(text(bytes_field(data, 3)), _tensors(data, 1), _tensors(data, 2))


def _tensors(data: Buffer, number: int) -> dict[str, TensorDescription]:
    """Decodes a protobuf map from tensor names to TensorInfo {dtype = 2, tensor_shape = 3}."""
    infos = sorted(map(map_entry, repeated_field(data, number)))
    return {
        name: TensorDescription(dtype_name(int_field(info, 2)), decode_shape(bytes_field(info, 3)))
        for name, info in infos
    }
