"""Writes a model of gigabytes, in TensorFlow's checkpoint format, in which all numbers of a version are the same.

Source: tensorflow/core/lib/io/format.h, protobuf/tensor_bundle.proto and lib/hash/crc32c.h (TensorFlow 2.21). The
checksum of a repeated block is computed from that of one block, because appending a block to a CRC is linear over
GF(2), as in zlib's crc32_combine.
"""

from __future__ import annotations

import json
import struct
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from loadtest.wire import DT_INT64, message_class, varint

DIM = 64
TABLES = ("user", "item")
_ROW_BYTES = 4 * DIM
_BLOCK_BYTES = 1 << 20
_DATA, _INDEX = "variables/variables.data-00000-of-00001", "variables/variables.index"
_MANIFEST = "assets.extra/lookup_manifest.json"
_FLOAT = 1
_POLYNOMIAL = 0x82F63B78
_MAGIC = 0xDB4775248B80FB57


def rows_of(gigabytes: float) -> dict[str, int]:
    """Returns the number of rows of each table; the first table has nine tenths of the bytes."""
    blocks = max(round(gigabytes * 2**30) // _BLOCK_BYTES, 10)
    sizes = (blocks * 9 // 10, blocks - blocks * 9 // 10)
    return {name: size * _BLOCK_BYTES // _ROW_BYTES for name, size in zip(TABLES, sizes, strict=True)}


def write_version(folder: Path, number: int, gigabytes: float) -> None:
    """Writes a version folder in which every number of every table is `number`."""
    for name in ("variables", "assets.extra"):
        (folder / name).mkdir(parents=True)
    block = np.full(_BLOCK_BYTES // 4, number, "<f4").tobytes()
    tables, entries, offset = {}, {}, 0
    with (folder / _DATA).open("wb", buffering=0) as file:
        for name, rows in rows_of(gigabytes).items():
            blocks = rows * _ROW_BYTES // _BLOCK_BYTES
            for _ in range(blocks):
                file.write(block)
            crc = _masked(_crc_of_repeated(block, blocks))
            where = {"offset": offset, "nbytes": rows * _ROW_BYTES, "crc32c": crc}
            tables[name] = {
                "variable": name,
                "vocabulary_size": rows,
                "embedding_dim": DIM,
                "dtype": "float32",
                "file": _DATA,
                **where,
            }
            entries[name.encode()] = tensor_entry((rows, DIM), **where)
            offset += rows * _ROW_BYTES
    (folder / _INDEX).write_bytes(sorted_table({b"": b"\x08\x01", **entries}))
    (folder / "saved_model.pb").write_bytes(_saved_model())
    files = {path: (folder / path).stat().st_size for path in (_DATA, _INDEX, "saved_model.pb")}
    features = {name: {"ids": name, "output": name} for name in TABLES}
    manifest = {
        "format_version": 1,
        "tables": tables,
        "vocabularies": {},
        "features": {name: {"table": name} for name in TABLES},
        "signatures": {"lookup": {"kind": "lookup", "device": "cpu", "features": features}},
        "files": files,
    }
    (folder / _MANIFEST).write_text(json.dumps(manifest))


def _saved_model() -> bytes:
    message = message_class("tensorflow.SavedModel")()
    message.saved_model_schema_version = 1
    meta_graph = message.meta_graphs.add()
    meta_graph.meta_info_def.tags.append("serve")
    signature = meta_graph.signature_def["lookup"]
    signature.method_name = "tensorflow/serving/predict"
    for tensors, dtype, shape in ((signature.inputs, DT_INT64, [-1]), (signature.outputs, _FLOAT, [-1, DIM])):
        for name in TABLES:
            tensors[name].name, tensors[name].dtype = f"{name}:0", dtype
            for size in shape:
                tensors[name].tensor_shape.dim.add().size = size
    return bytes(message.SerializeToString())


def tensor_entry(shape: tuple[int, ...], *, offset: int, nbytes: int, crc32c: int) -> bytes:
    """Encodes the record of a float32 tensor in a checkpoint's index."""
    dims = b"".join(b"\x12" + varint(len(size)) + size for size in (b"\x08" + varint(n) for n in shape))
    parts = [b"\x08\x01", b"\x12" + varint(len(dims)) + dims, b"\x20" + varint(offset), b"\x28" + varint(nbytes)]
    return b"".join([*parts, b"\x35", struct.pack("<I", crc32c)])


def sorted_table(records: dict[bytes, bytes]) -> bytes:
    """Encodes the records of a checkpoint's index as a table file of one block, without compression."""
    out, handles = b"", []

    def append(block: dict[bytes, bytes]) -> None:
        nonlocal out
        rows = [varint(0) + varint(len(k)) + varint(len(v)) + k + v for k, v in sorted(block.items())]
        # A block of the index has one restart point, at its start; its compression type, 0, and its checksum follow the
        # block.
        data = b"".join(rows) + struct.pack("<II", 0, 1) + b"\0"
        handles.append(varint(len(out)) + varint(len(data) - 1))
        out += data + struct.pack("<I", _masked(_crc32c(data)))

    append(records)
    append({})
    append({max(records): handles[0]})
    return out + (handles[1] + handles[2]).ljust(40, b"\0") + struct.pack("<Q", _MAGIC)


@cache
def _byte_table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (_POLYNOMIAL if byte & 1 else 0)
        table.append(byte)
    return table


def _crc32c(data: bytes) -> int:
    table, crc = _byte_table(), 0xFFFFFFFF
    for byte in data:
        crc = table[(crc ^ byte) & 255] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def _crc_of_repeated(block: bytes, times: int) -> int:
    one, shift, crc = _crc32c(block), _shift_by(len(block)), 0
    for _ in range(times):
        crc = _apply(shift, crc) ^ one
    return crc


def _shift_by(num_bytes: int) -> list[int]:
    """Returns the 32 x 32 bit matrix that updates a CRC for num_bytes appended zero bytes (a power of two)."""
    matrix = [_POLYNOMIAL, *(1 << bit for bit in range(31))]
    for _ in range((8 * num_bytes).bit_length() - 1):
        matrix = [_apply(matrix, column) for column in matrix]
    return matrix


def _apply(matrix: list[int], crc: int) -> int:
    result, bit = 0, 0
    while crc:
        if crc & 1:
            result ^= matrix[bit]
        crc >>= 1
        bit += 1
    return result


def _masked(crc: int) -> int:
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def numbers_of(answer: Any) -> set[float]:
    return {number for rows in answer["embeddings"].values() for row in rows for number in row}
