"""Writes a SavedModel whose answers are easy to compute by hand; needs no TensorFlow.

Row i of table `user` (V=5, D=2) is [i, 10 i], row i of `tag` (V=4, D=3) is [i, i*i, 1], both times `scale`. Strings
"red", "green", "blue" are rows 1, 2, 3 of `tag`, any other string is row 0.

    signature               features                                ids     notes
    lookup                  user  tags  tags_sum  tags_sqrtn        int64   weights may be left out
    lookup_tpu_tensor_core  user  tags  tags_sum                    int32   at most 3 ids a row, 4 rows
    serving_default         user  tags                              int64   predict: its graph is not in the file

`tags` is a mean, `tags_sum` a sum, `tags_sqrtn` a sqrtn; all three read `tag` and take its strings. A tensor of
three bytes precedes the tables, so that none of them is aligned.

The checkpoint writer below is written from TensorFlow's format alone, without code of service.artifact.bundle.

Source: tensorflow/core/lib/io/table_builder.cc, tensorflow/core/util/tensor_bundle/tensor_bundle.h (TensorFlow 2.21).
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from service.artifact.manifest import Manifest
from service.artifact.protos import message_class
from tests.stored_tables import nibbles

MANIFEST = Path("assets.extra/lookup_manifest.json")
INDEX = Path("variables/variables.index")
SHARD = Path("variables/variables.data-00000-of-00001")
TAG_STRINGS = ("red", "green", "blue")
COMBINERS = {"tags": "mean", "tags_sum": "sum", "tags_sqrtn": "sqrtn"}
BATCH_SIZES = (1, 4)

_FLOAT, _INT32, _INT64 = 1, 3, 9
_DTYPE_NUMBERS = {
    "float32": 1,
    "float64": 2,
    "int32": 3,
    "uint8": 4,
    "int8": 6,
    "int64": 9,
    "bfloat16": 14,
    "float16": 19,
}


def toy_tables(scale: int = 1) -> dict[str, np.ndarray]:
    """Returns the toy model's two tables by name, as float32 arrays."""
    return {
        "user": scale * np.array([[i, 10 * i] for i in range(5)], np.float32),
        "tag": scale * np.array([[i, i * i, 1] for i in range(4)], np.float32),
    }


def toy_tables_as(dtype: str, scale: int = 1) -> dict[str, np.ndarray]:
    """Returns the numbers that lookups read from tables of a dtype; only int4 changes the toy's numbers."""
    tables = toy_tables(scale)
    if dtype != "int4":
        return tables
    return {name: steps * scales for name, (steps, scales) in ((n, int4_steps(t)) for n, t in tables.items())}


def int4_steps(table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns [V, D] integers from -7 to 7 and [V, 1] float32 scales; the scale is a row's largest magnitude / 7.

    >>> [part.tolist() for part in int4_steps(np.float32([[3, -14], [0, 0]]))]
    [[[2.0, -7.0], [0.0, 0.0]], [[2.0], [0.0]]]
    """
    scales = np.abs(table).max(axis=1, keepdims=True) / np.float32(7)
    return np.rint(table / np.where(scales > 0, scales, np.float32(1))), scales


def write_toy_model(
    folder: Path,
    *,
    scale: int = 1,
    padding: int = 3,
    dtype: str = "float32",
    tables: Mapping[str, np.ndarray] | None = None,
    edit_manifest: Callable[[dict[str, Any]], None] | None = None,
) -> Path:
    """Writes a version folder of the toy model, and returns the folder.

    Args:
      scale: multiplies every table, so that an answer reveals its version.
      padding: number of bytes before the first table.
      dtype: dtype of the stored tables; all dtypes but int4 (toy_tables_as) hold the numbers exactly, int8 with `scale`
        for every row.
      tables: replaces the tables by others of the same shapes.
      edit_manifest: function that changes the manifest's JSON before it is written.
    """
    for name in ("variables", "assets", "assets.extra"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    tensors = {"_padding": np.zeros(padding, np.uint8)}
    for name, table in (tables or toy_tables(scale)).items():
        tensors[variable_name(name)] = stored_numbers(table / scale if dtype == "int8" else table, dtype)
        if dtype == "int8":
            tensors[variable_name(name, "scales")] = np.full(len(table), scale, np.float32)
        elif dtype == "int4":
            tensors[variable_name(name, "scales")] = int4_steps(table)[1][:, 0]
    half = {variable_name(name): dtype for name in toy_tables()} if dtype == "bfloat16" else {}
    entries = write_bundle(folder / "variables" / "variables", tensors, dtypes=half)
    (folder / "assets" / "tag.txt").write_text("".join(f"{string}\n" for string in TAG_STRINGS))
    (folder / "saved_model.pb").write_bytes(saved_model(toy_signatures(), optional="__weights"))
    write_manifest(folder, toy_manifest(entries, dtype))
    if edit_manifest is not None:
        rewrite_manifest(folder, edit_manifest)
    return folder


def write_manifest(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Writes the manifest of a version folder, and lists all other files of the folder in it."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    files = {path.relative_to(folder).as_posix(): path.stat().st_size for path in paths}
    (folder / MANIFEST).write_text(json.dumps({**manifest, "files": files}))


def table_entry(
    name: str, shape: tuple[int, ...], entries: Mapping[str, Mapping[str, int]], dtype: str = "float32"
) -> dict[str, Any]:
    """Returns a table's entry in the manifest; entries: the result of write_bundle()."""
    found = {"variable": variable_name(name), "vocabulary_size": shape[0], "embedding_dim": shape[1], "dtype": dtype}
    scale = variable_name(name, "scales")
    more = {"scale": {"variable": scale, "file": SHARD.as_posix(), **entries[scale]}} if scale in entries else {}
    return {**found, "file": SHARD.as_posix(), **entries[variable_name(name)], **more}


def add_filler(folder: Path, num_bytes: int) -> Path:
    """Adds a file of random bytes to a version and to the manifest's list of files; returns the file's path."""
    filler = folder / "assets" / "filler"
    filler.parent.mkdir(exist_ok=True)
    filler.write_bytes(os.urandom(num_bytes))
    rewrite_manifest(folder, lambda manifest: manifest["files"].update({"assets/filler": num_bytes}))
    return filler


def manifest_of(version: Path) -> Manifest:
    """Reads the manifest of a version that has one."""
    manifest = Manifest.read(version)
    assert manifest is not None
    return manifest


def rewrite_manifest(folder: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    """Changes the manifest file in a version folder."""
    data = json.loads((folder / MANIFEST).read_text())
    edit(data)
    (folder / MANIFEST).write_text(json.dumps(data))


def variable_name(table: str, kind: str = "tables") -> str:
    """Returns the checkpoint key of a table."""
    return f"{kind}/{table}/.ATTRIBUTES/VARIABLE_VALUE"


def stored_numbers(table: np.ndarray, dtype: str) -> np.ndarray:
    """Converts float32 numbers to a dtype that holds them exactly: bfloat16 as 16-bit integers, int4 as packed bytes.

    >>> stored_numbers(np.float32([1, -2]), "bfloat16")
    array([16256, 49152], dtype=uint16)
    """
    if dtype == "bfloat16":
        return (table.view(np.uint32) >> 16).astype(np.uint16)
    return nibbles(int4_steps(table)[0]) if dtype == "int4" else table.astype(dtype)


def toy_manifest(entries: Mapping[str, Mapping[str, int]], dtype: str = "float32") -> dict[str, Any]:
    """Returns the manifest as a JSON object, without `files`; entries: the result of write_bundle()."""
    cpu = {"user": {"ids": "user", "output": "user"}}
    for feature, combiner in COMBINERS.items():
        cpu[feature] = _ragged(feature) | {"weights": f"{feature}__weights", "output": feature, "combiner": combiner}
    tensor_core = {
        name: cpu[name] | ({} if name == "user" else {"mean_divisor": "at_least_one", "max_ids_per_row": 3})
        for name in ("user", "tags", "tags_sum")
    }
    return {
        "format_version": {"float32": 1, "int4": 4}.get(dtype, 3),
        "tables": {name: table_entry(name, table.shape, entries, dtype) for name, table in toy_tables().items()},
        "vocabularies": {"tag": {"file": "assets/tag.txt", "size": len(TAG_STRINGS), "first_id": 1, "oov_id": 0}},
        "features": {"user": {"table": "user"}} | {name: {"table": "tag", "vocabulary": "tag"} for name in COMBINERS},
        "signatures": {
            "lookup": {"kind": "lookup", "device": "cpu", "features": cpu},
            "lookup_tpu_tensor_core": {
                "kind": "lookup",
                "device": "tpu_tensor_core",
                "batch_sizes": list(BATCH_SIZES),
                "features": tensor_core,
            },
            "serving_default": {
                "kind": "predict",
                "features": {"user": {"ids": "user"}, "tags": _ragged("tags") | {"combiner": "mean"}},
            },
        },
    }


def _ragged(feature: str) -> dict[str, str]:
    return {"ids": f"{feature}__values", "row_splits": f"{feature}__row_splits"}


TensorInfo = tuple[int, tuple[int, ...]]


def toy_signatures() -> dict[str, tuple[dict[str, TensorInfo], dict[str, TensorInfo]]]:
    """Returns each signature of the toy model by name: its (inputs, outputs); a tensor is (DataType number, shape)."""

    def inputs(features: tuple[str, ...], ids: int, *, weighted: bool) -> dict[str, TensorInfo]:
        result: dict[str, TensorInfo] = {"user": (ids, (-1,))}
        for feature in features:
            result[f"{feature}__values"] = (ids, (-1,))
            result[f"{feature}__row_splits"] = (_INT64, (-1,))
            if weighted:
                result[f"{feature}__weights"] = (_FLOAT, (-1,))
        return result

    def outputs(features: tuple[str, ...]) -> dict[str, TensorInfo]:
        return {"user": (_FLOAT, (-1, 2))} | {feature: (_FLOAT, (-1, 3)) for feature in features}

    padded = ("tags", "tags_sum")
    return {
        "lookup": (inputs(tuple(COMBINERS), _INT64, weighted=True), outputs(tuple(COMBINERS))),
        "lookup_tpu_tensor_core": (inputs(padded, _INT32, weighted=True), outputs(padded)),
        "serving_default": (inputs(("tags",), _INT64, weighted=False), {"score": (_FLOAT, (-1,))}),
    }


def saved_model(
    signatures: Mapping[str, tuple[Mapping[str, TensorInfo], Mapping[str, TensorInfo]]],
    tags: tuple[str, ...] = ("serve",),
    *,
    optional: str = "",
) -> bytes:
    """Returns the bytes of a saved_model.pb that has these signatures and an empty graph.

    Args:
      optional: the end of the names of the inputs whose default is empty; "": no input has a default.
    """
    message = message_class("tensorflow.SavedModel")()
    message.saved_model_schema_version = 1
    meta_graph = message.meta_graphs.add()
    meta_graph.meta_info_def.tags.extend(tags)
    for name, (inputs, outputs) in signatures.items():
        signature = meta_graph.signature_def[name]
        signature.method_name = "tensorflow/serving/predict"
        for tensors, infos, prefix in ((inputs, signature.inputs, name), (outputs, signature.outputs, "Call")):
            for key, (dtype, shape) in tensors.items():
                infos[key].name = f"{prefix}_{key}:0"
                infos[key].dtype = dtype
                for size in shape:
                    infos[key].tensor_shape.dim.add().size = size
        for key in [key for key in inputs if optional and key.endswith(optional)]:
            signature.defaults[key].dtype = inputs[key][0]
            signature.defaults[key].tensor_shape.dim.add().size = 0
    return bytes(message.SerializeToString(deterministic=True))


def write_bundle(
    prefix: Path,
    tensors: Mapping[str, np.ndarray],
    *,
    is_compressed: bool = False,
    dtypes: Mapping[str, str] | None = None,
) -> dict[str, dict[str, int]]:
    """Writes a checkpoint with one data file; returns the offset, nbytes and crc32c of each tensor.

    Args:
      is_compressed: whether the index is compressed.
      dtypes: tensor -> dtype, where it differs from numpy's.
    """
    data, entries, described = bytearray(), {}, {}
    for name in sorted(tensors):
        tensor = np.ascontiguousarray(tensors[name])
        raw = tensor.tobytes()
        entries[name] = {"offset": len(data), "nbytes": len(raw), "crc32c": masked_crc32c(raw)}
        described[name] = ((dtypes or {}).get(name, tensor.dtype.name), tensor.shape, entries[name])
        data += raw
    prefix.with_name(f"{prefix.name}.data-00000-of-00001").write_bytes(data)
    prefix.with_name(f"{prefix.name}.index").write_bytes(bundle_index(described, is_compressed=is_compressed))
    return entries


def bundle_index(
    tensors: Mapping[str, tuple[str, tuple[int, ...], Mapping[str, int]]], *, is_compressed: bool = False
) -> bytes:
    """Returns a checkpoint's index; tensors: name -> its dtype, shape, and place in the only data file."""
    records = {b"": proto_field(1, 1) + proto_field(3, proto_field(1, 1))}
    for name, (dtype, shape, where) in tensors.items():
        sizes = b"".join(proto_field(2, proto_field(1, size)) for size in shape)
        records[name.encode()] = (
            proto_field(1, _DTYPE_NUMBERS[dtype])
            + proto_field(2, sizes)
            + (proto_field(4, where["offset"]) if where["offset"] else b"")
            + proto_field(5, where["nbytes"])
            + b"\x35"
            + struct.pack("<I", where["crc32c"])
        )
    return _sorted_table(records, is_compressed)


def _sorted_table(records: Mapping[bytes, bytes], is_compressed: bool) -> bytes:
    out = bytearray()

    def append(block: bytes) -> bytes:
        block, kind = (snappy(block), b"\1") if is_compressed else (block, b"\0")
        handle = varint(len(out)) + varint(len(block))
        out.extend(block + kind + struct.pack("<I", masked_crc32c(block + kind)))
        return handle

    keys = sorted(records)
    data_handle = append(table_block([(key, records[key]) for key in keys]))
    meta_handle = append(table_block([]))
    index_handle = append(table_block([(keys[-1], data_handle)]))
    return bytes(out + (meta_handle + index_handle).ljust(40, b"\0") + struct.pack("<Q", 0xDB4775248B80FB57))


def snappy(data: bytes) -> bytes:
    """Compresses data to raw snappy: repeated bytes as copies of 4 to 64 bytes, all others as literals.

    >>> snappy(b"ab" * 4 + b"c")
    b'\\t\\x04ab\\x16\\x02\\x00\\x00c'
    """
    out, seen, literal, at = bytearray(varint(len(data))), dict[bytes, int](), bytearray(), 0

    def flush() -> None:
        while literal:
            out.append(len(literal[:60]) - 1 << 2)
            out.extend(literal[:60])
            del literal[:60]

    while at < len(data):
        word = data[at : at + 4]
        before = seen.get(word, -1) if len(word) == 4 else -1
        seen[word] = at
        length = 4
        if not 0 <= before < at or at - before > 0xFFFF:
            literal.append(data[at])
            at += 1
            continue
        while length < 64 and at + length < len(data) and data[before + length] == data[at + length]:
            length += 1
        flush()
        out += bytes([length - 1 << 2 | 2]) + struct.pack("<H", at - before)
        at += length
    flush()
    return bytes(out)


def table_block(records: list[tuple[bytes, bytes]]) -> bytes:
    """Encodes one block of a sorted table (the format of checkpoint indexes), without the block's checksum."""
    # A key is written without the prefix that it shares with the previous key; every 16th key, a restart point, is
    # written whole.
    out, restarts, last = bytearray(), [0], b""
    for i, (key, value) in enumerate(records):
        shared = 0
        if i % 16 == 0 and i:
            restarts.append(len(out))
        elif i:
            while shared < min(len(key), len(last)) and key[shared] == last[shared]:
                shared += 1
        out += varint(shared) + varint(len(key) - shared) + varint(len(value)) + key[shared:] + value
        last = key
    return bytes(out + b"".join(struct.pack("<I", restart) for restart in [*restarts, len(restarts)]))


def proto_field(number: int, value: int | bytes) -> bytes:
    """Encodes one field of a protobuf message: a varint, or bytes with their length."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def varint(value: int) -> bytes:
    """Encodes a non-negative integer as a protobuf varint."""
    out = bytearray()
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def masked_crc32c(data: bytes) -> int:
    """Computes the masked CRC32C that TensorFlow stores for blocks and tensors.

    >>> hex(masked_crc32c(b"123456789"))
    '0xc78ab0e5'
    """
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC_TABLE[(crc ^ byte) & 255] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _crc_table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


_CRC_TABLE = _crc_table()
