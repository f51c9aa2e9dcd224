"""Writes a model with 10 GB of tables in sparse files: only rows that the requests read hold numbers.

The rest of the artifact is copied from an exported one, because a lookup's description does not depend on table sizes.

Source of the index's layout: tensorflow/core/lib/io/format.h and table_builder.cc, protobuf/tensor_bundle.proto
(TensorFlow 2.21): one block of entries, without compression.
"""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from loadtest.bench.messages import varint
from loadtest.bench.workloads import Arrays

TABLES = {"user": (30_000_000, 64), "item": (9_000_000, 64), "tag": (50_000, 32)}
_DATA, _INDEX = "variables/variables.data-00000-of-00001", "variables/variables.index"
_MANIFEST = "assets.extra/lookup_manifest.json"
_MAGIC = 0xDB4775248B80FB57


def write_large_model(small: Path, target: Path, tables: Mapping[str, tuple[int, int]] = TABLES) -> None:
    """Writes a version folder whose tables are larger than those of an exported version.

    Args:
      small: an exported version folder with tables of the same names.
    """
    shutil.copytree(small, target, ignore=shutil.ignore_patterns("variables.*"))
    manifest = json.loads((small / _MANIFEST).read_text())
    offset = 0
    with (target / _DATA).open("wb") as file:
        for name, (rows, dim) in tables.items():
            entry = manifest["tables"][name]
            entry |= {"vocabulary_size": rows, "offset": offset, "nbytes": rows * dim * 4, "crc32c": 0, "file": _DATA}
            for row in written_rows(rows):
                file.seek(offset + row * dim * 4)
                file.write(row_of(name, row, dim).tobytes())
            offset += entry["nbytes"]
        file.truncate(offset)
    _write_index(target, manifest)
    paths = [path for path in target.rglob("*") if path.is_file()]
    sizes = {path.relative_to(target).as_posix(): path.stat().st_size for path in paths}
    sizes.pop(_MANIFEST, None)
    manifest["files"] = sizes
    (target / _MANIFEST).write_text(json.dumps(manifest))


def write_checksums(target: Path, checksum: Callable[[np.ndarray[Any, Any]], int]) -> None:
    """Writes the checksums of the tables of a large model, as they are now, to its manifest and its index."""
    manifest = json.loads((target / _MANIFEST).read_text())
    data = np.memmap(target / _DATA, np.uint8, "r")
    for entry in manifest["tables"].values():
        entry["crc32c"] = checksum(data[entry["offset"] : entry["offset"] + entry["nbytes"]])
    # The new index is as long as the old one, so the file sizes in the manifest stay right.
    _write_index(target, manifest)
    (target / _MANIFEST).write_text(json.dumps(manifest))


def _write_index(target: Path, manifest: dict[str, Any]) -> None:
    entries = {entry["variable"].encode(): _entry(entry) for entry in manifest["tables"].values()}
    # num_shards: 1.
    (target / _INDEX).write_bytes(_sorted_table({b"": b"\x08\x01", **entries}))


def written_rows(rows: int) -> tuple[int, ...]:
    """Returns the rows that hold numbers: the last row, which would show an overflowing offset, and two others."""
    return (0, rows // 2, rows - 1)


def row_of(table: str, row: int, dim: int) -> np.ndarray[Any, Any]:
    """Returns the random numbers that the model holds in one row of a table."""
    return np.random.default_rng([*table.encode(), row]).standard_normal(dim, np.float32)


def request(tables: Mapping[str, tuple[int, int]]) -> tuple[dict[str, Any], Arrays]:
    """Returns the ids of a lookup that reads only the rows of written_rows(), and the embeddings that it must get."""
    features = {"user": "user", "item": "item", "tags": "tag"}
    ids = {feature: list(written_rows(tables[table][0])) for feature, table in features.items()}
    expected = {
        feature: np.stack([row_of(table, row, tables[table][1]) for row in ids[feature]])
        for feature, table in features.items()
    }
    # Each request row has one tag, so the mean over its tags is that tag's row.
    return {**ids, "tags": [[row] for row in ids["tags"]]}, expected


def _entry(entry: Mapping[str, Any]) -> bytes:
    shape, offset, nbytes = (entry["vocabulary_size"], entry["embedding_dim"]), entry["offset"], entry["nbytes"]
    dims = b"".join(b"\x12" + varint(len(size)) + size for size in (b"\x08" + varint(n) for n in shape))
    # In the record of a tensor, dtype 1 is float32, and crc32c is a fixed32 field.
    parts = [b"\x08\x01", b"\x12" + varint(len(dims)) + dims, b"\x20" + varint(offset), b"\x28" + varint(nbytes)]
    return b"".join([*parts, b"\x35" + struct.pack("<I", entry["crc32c"])])


def _sorted_table(records: Mapping[bytes, bytes]) -> bytes:
    out = b""
    handles = []
    for block in (_block(records), _block({})):
        handles.append(varint(len(out)) + varint(len(block)))
        # In the index file, each block is followed by its compression type, 0, and a checksum. The checksum is left 0:
        # our readers do not check it, because the manifest has other checksums.
        out += block + bytes(5)
    index = _block({max(records): handles[0]})
    index_handle = varint(len(out)) + varint(len(index))
    footer = (handles[1] + index_handle).ljust(40, b"\0")
    return out + index + bytes(5) + footer + struct.pack("<Q", _MAGIC)


def _block(records: Mapping[bytes, bytes]) -> bytes:
    rows = [varint(0) + varint(len(k)) + varint(len(v)) + k + v for k, v in sorted(records.items())]
    # A block of the index file ends with a list of its restart points; the only one here is the start of the block.
    return b"".join(rows) + struct.pack("<II", 0, 1)
