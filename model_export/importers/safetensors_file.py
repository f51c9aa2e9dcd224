"""Reads safetensors files, whole or sharded by an index, without the safetensors library.

The library would map the file, and its slices for numpy do not support bfloat16.

Source: huggingface/safetensors README.md "Format": 8 bytes little-endian N, N bytes of JSON, the tensors row-major.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from model_export.errors import ExportError
from model_export.importers.address import Address
from model_export.importers.raw_matrix import NumberType, RawMatrix
from model_export.importers.table_reader import TableReader

# Largest size in bytes of a safetensors file's header; the safetensors library has the same limit.
_MAX_HEADER_BYTES = 100_000_000
_NUMBERS = {
    "F16": NumberType(np.dtype("<f2")),
    "F32": NumberType(np.dtype("<f4")),
    "F64": NumberType(np.dtype("<f8")),
    "BF16": NumberType(np.dtype("<u2"), is_bfloat16=True),
}


def open_safetensors(address: Address) -> TableReader:
    header, first_byte = _read_header(address.path)
    name = address.chosen(sorted(header), "tensors")
    return _matrix(address.path, name, header[name], first_byte)


def open_sharded(address: Address) -> TableReader:
    """Opens the tensor NAME in its shard, which PATH.safetensors.index.json names; raises ExportError."""
    try:
        shards = json.loads(address.path.read_bytes())["weight_map"]
        names = sorted(shards)
    except (ValueError, KeyError, TypeError) as error:
        raise ExportError(f"{address.path} is no index of safetensors files: it has no weight_map") from error
    name = address.chosen(names, "tensors")
    shard = address.path.parent / str(shards[name])
    if not shard.is_file():
        raise ExportError(f"{address.path} says that {name!r} is in {shards[name]!r}, which is not beside it")
    header, first_byte = _read_header(shard)
    if name not in header:
        raise ExportError(f"{shard} has no {name!r}, although {address.path.name} says so")
    return _matrix(shard, name, header[name], first_byte)


def _read_header(path: Path) -> tuple[dict[str, Any], int]:
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        text = file.read(size) if 2 <= size <= _MAX_HEADER_BYTES else b""
    if len(text) != size or not text:
        raise ExportError(f"{path} is no safetensors file, or is cut short in its header")
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ExportError(f"{path} is no safetensors file: its header is not JSON ({error})") from error
    if not isinstance(header, dict):
        raise ExportError(f"{path} is no safetensors file: its header is not a JSON object")
    header.pop("__metadata__", None)
    return header, 8 + size


def _matrix(path: Path, name: str, entry: Any, first_byte: int) -> RawMatrix:
    try:
        dtype, shape = entry["dtype"], [int(size) for size in entry["shape"]]
        begin, end = (int(offset) for offset in entry["data_offsets"])
    except (KeyError, TypeError, ValueError) as error:
        raise ExportError(f"{path}:{name}: its header entry is malformed") from error
    if dtype not in _NUMBERS:
        raise ExportError(f"{path}:{name} holds {dtype}; a table holds {', '.join(_NUMBERS)}")
    if len(shape) != 2 or min(shape) < 0:
        raise ExportError(f"{path}:{name} has shape {shape}; a table is a matrix, [rows, numbers per row]")
    number = _NUMBERS[dtype]
    if begin < 0 or end - begin != shape[0] * shape[1] * number.dtype.itemsize:
        raise ExportError(f"{path}:{name}: {end - begin:,} bytes can not hold {shape} of {dtype}")
    return RawMatrix(path, first_byte + begin, shape[0], shape[1], number)
