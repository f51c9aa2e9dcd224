"""Reads safetensors files that the library wrote, as numpy does, and refuses headers with wrong claims."""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from model_export.errors import ExportError
from tests.unit.model_export.importers.reading import matrix, read_all, small_chunks


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_tensors_of_every_dtype(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: type) -> None:
    small_chunks(monkeypatch)
    tensors = {"emb.weight": matrix(13, 4, dtype), "other": matrix(2, 3)}
    save_file(tensors, tmp_path / "m.safetensors", metadata={"format": "np"})
    rows, keys = read_all(f"{tmp_path}/m.safetensors:emb.weight")
    assert rows.dtype == dtype and keys is None
    np.testing.assert_array_equal(rows, tensors["emb.weight"])


def test_bfloat16(tmp_path: Path) -> None:
    table = matrix(5, 4).astype(ml_dtypes.bfloat16)
    save_file({"t": table}, tmp_path / "m.safetensors")
    np.testing.assert_array_equal(read_all(tmp_path / "m.safetensors")[0], table.astype(np.float32))


def test_a_sharded_file(tmp_path: Path) -> None:
    save_file({"a": matrix(3, 2)}, tmp_path / "m-1.safetensors")
    save_file({"b": matrix(4, 2)}, tmp_path / "m-2.safetensors")
    index = tmp_path / "m.safetensors.index.json"
    shards = {"a": "m-1.safetensors", "b": "m-2.safetensors", "c": "m-2.safetensors", "d": "m-3.safetensors"}
    index.write_text(json.dumps({"weight_map": shards}))
    np.testing.assert_array_equal(read_all(f"{index}:b")[0], matrix(4, 2))
    with pytest.raises(ExportError, match="has no 'c', although"):
        read_all(f"{index}:c")
    with pytest.raises(ExportError, match="in 'm-3.safetensors', which is not beside it"):
        read_all(f"{index}:d")
    index.write_text("[]")
    with pytest.raises(ExportError, match="it has no weight_map"):
        read_all(f"{index}:b")


def test_what_is_no_table(tmp_path: Path) -> None:
    file = tmp_path / "m.safetensors"
    save_file({"ids": np.arange(4), "bias": np.zeros(3, np.float32)}, file)
    with pytest.raises(ExportError, match="m.safetensors:ids holds I64; a table holds F16, F32, F64, BF16"):
        read_all(f"{file}:ids")
    with pytest.raises(ExportError, match=r"bias has shape \[3\]"):
        read_all(f"{file}:bias")
    with pytest.raises(ExportError, match="has no 'emb'; its tensors are 'bias', 'ids'"):
        read_all(f"{file}:emb")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is no safetensors file, or is cut short"),
        (b"\xff" * 20, "is no safetensors file, or is cut short"),
        ((100).to_bytes(8, "little") + b"{}", "is no safetensors file, or is cut short"),
        ((2).to_bytes(8, "little") + b"[]", "its header is not a JSON object"),
        ((3).to_bytes(8, "little") + b"{a}", "its header is not JSON"),
    ],
)
def test_files_that_are_none(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "m.safetensors").write_bytes(content)
    with pytest.raises(ExportError, match=message):
        read_all(tmp_path / "m.safetensors")


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}, "is cut short: 2 rows of 2 numbers"),
        ({"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 8]}, r"8 bytes can not hold \[2, 2\] of F32"),
        ({"dtype": "F32", "shape": [2, 2], "data_offsets": [-16, 0]}, "can not hold"),
        ({"dtype": "F32", "shape": [2, 2]}, "its header entry is malformed"),
        ({"dtype": "F32", "shape": "xy", "data_offsets": [0, 8]}, "its header entry is malformed"),
    ],
)
def test_headers_that_promise_other_bytes(tmp_path: Path, entry: object, message: str) -> None:
    header = json.dumps({"t": entry}).encode()
    (tmp_path / "m.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(12))
    with pytest.raises(ExportError, match=message):
        read_all(f"{tmp_path}/m.safetensors:t")
