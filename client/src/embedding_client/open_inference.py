"""Encodes requests of the Open Inference Protocol with binary tensors, and decodes the answers.

A body is JSON, which describes the tensors, and then the bytes of the tensors in the same order. Numbers are
little-endian; a string is its length in four bytes, and its bytes.

Source: Triton's binary tensor data extension; docs/open-inference.md.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from embedding_client.calls import Reply
from embedding_client.errors import invalid
from embedding_client.tensor_proto import DTYPE_NUMBERS, array_bytes, array_of_bytes, string_array
from embedding_client.types import FLOAT32, Array, Outputs

_LENGTH_BYTES = 4


def _datatype(dtype: np.dtype[Any]) -> str:
    if dtype.name == "bfloat16":
        return "BF16"
    return f"FP{dtype.itemsize * 8}" if dtype.kind == "f" else dtype.name.upper()


# The protocol has no complex numbers.
_DATATYPES = {dtype: _datatype(dtype) for dtype in DTYPE_NUMBERS if dtype.kind != "c"}
_DTYPES = {name: dtype for dtype, name in _DATATYPES.items()}
_BYTES = "BYTES"


class _Span(NamedTuple):
    """Where an output's bytes lie behind the JSON of an answer."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    start: int
    stop: int


def encode_infer(
    inputs: Mapping[str, Array], outputs: Sequence[str], signature: str, dtype: np.dtype[Any] = FLOAT32
) -> tuple[bytes, int]:
    """Returns the body of an `infer` request for binary outputs, and the length of the body's JSON.

    dtype: the dtype in which the server shall send float32 outputs.

    Raises:
      InvalidRequest: the protocol has no datatype for an array.
    """
    tensors: list[tuple[str, str, tuple[int, ...], int]] = []
    parts: list[Any] = [b""]
    for name, array in inputs.items():
        if array.dtype == object:
            datatype: str | None = _BYTES
            strings = array.reshape(-1).tolist()
            part: Any = b"".join([b"".join((len(item).to_bytes(_LENGTH_BYTES, "little"), item)) for item in strings])
        else:
            datatype = _DATATYPES.get(array.dtype)
            part = array_bytes(array)
        if datatype is None:
            raise invalid(f'input "{name}": dtype {array.dtype} has no Open Inference datatype; use gRPC.')
        tensors.append((name, datatype, array.shape, len(part)))
        parts.append(part)
    parts[0] = _head(signature, tuple(outputs), tuple(tensors), dtype)
    return b"".join(parts), len(parts[0])


@lru_cache(maxsize=1024)
def _head(
    signature: str,
    outputs: tuple[str, ...],
    tensors: tuple[tuple[str, str, tuple[int, ...], int], ...],
    dtype: np.dtype[Any],
) -> bytes:
    """Encodes the JSON of a request. Cached, because a client sends few names and shapes."""
    document: dict[str, Any] = {
        "parameters": {"signature_name": signature, "binary_data_output": True},
        "inputs": [
            {"name": name, "datatype": datatype, "shape": shape, "parameters": {"binary_data_size": size}}
            for name, datatype, shape, size in tensors
        ],
    }
    if dtype != FLOAT32:
        document["parameters"]["output_datatype"] = _DATATYPES[dtype]
    if outputs:
        document["outputs"] = [{"name": name} for name in outputs]
    return json.dumps(document, separators=(",", ":")).encode()


def decode_infer(reply: Reply) -> Outputs:
    """Decodes the answer to an `infer` request to writable arrays; raises ValueError or LookupError for other bytes."""
    # An answer whose only outputs are empty tensors of strings has no header with the length of the JSON.
    body, json_length = reply.body, len(reply.body) if reply.json_length is None else reply.json_length
    spans = _spans(body[:json_length])
    outputs = Outputs(version=reply.version)
    for name, datatype, shape, start, stop in spans:
        data = memoryview(body)[json_length + start : json_length + stop]
        flat = _strings(data) if datatype == _BYTES else array_of_bytes(data, _DTYPES[datatype])
        outputs[name] = flat.reshape(shape)
    if json_length + (spans[-1].stop if spans else 0) != len(body):
        raise ValueError("its bytes are not those of its outputs")
    return outputs


@lru_cache(maxsize=256)
def _spans(head: bytes) -> tuple[_Span, ...]:
    """Parses the JSON of an answer. Cached, because a server's answers have few names and shapes."""
    spans: list[_Span] = []
    stop = 0
    for tensor in json.loads(head)["outputs"]:
        name, datatype, shape = tensor["name"], tensor["datatype"], tuple(tensor["shape"])
        if datatype != _BYTES and datatype not in _DTYPES:
            raise ValueError(f'output "{name}": its datatype {datatype} can not be read')
        start, stop = stop, stop + tensor["parameters"]["binary_data_size"]
        if datatype != _BYTES and stop - start != math.prod(shape) * _DTYPES[datatype].itemsize:
            raise ValueError(f'output "{name}": {stop - start} bytes are no {datatype} of shape {list(shape)}')
        spans.append(_Span(name, datatype, shape, start, stop))
    return tuple(spans)


def _strings(data: memoryview) -> Array:
    items: list[memoryview] = []
    position = 0
    while position < len(data):
        start = position + _LENGTH_BYTES
        position = start + int.from_bytes(data[position:start], "little")
        items.append(data[start:position])
    if position != len(data):
        raise ValueError("a string is cut off")
    return string_array(items)
