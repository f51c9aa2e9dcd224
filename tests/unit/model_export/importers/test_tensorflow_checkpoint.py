"""Reads variables from checkpoints of TensorFlow: whole, partitioned by rows and by columns, in every dtype."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from model_export.errors import ExportError
from model_export.tensorflow_setup import tf
from tests.toy_model import write_toy_model
from tests.unit.model_export.importers.reading import matrix, read_all, small_chunks

pytestmark = pytest.mark.tf


def save(prefix: Path, **variables: object) -> None:
    """Saves arrays as an object-based checkpoint of TensorFlow."""
    tf.train.Checkpoint(**{k: tf.Variable(v) for k, v in variables.items()}).write(str(prefix))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "bfloat16"])
def test_whole_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str) -> None:
    small_chunks(monkeypatch)
    save(tmp_path / "ckpt", user=tf.cast(matrix(13, 3), dtype), bias=np.zeros(3, np.float32))
    rows, keys = read_all(f"{tmp_path}/ckpt:user")
    assert keys is None
    np.testing.assert_array_equal(rows, matrix(13, 3))
    np.testing.assert_array_equal(read_all(tmp_path / "ckpt.index")[0], matrix(13, 3))


@pytest.mark.parametrize("parts", [(4, 1), (1, 3), (3, 2)])
def test_partitioned_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parts: tuple[int, int]) -> None:
    small_chunks(monkeypatch)
    table = matrix(10, 6)
    rows, columns = (np.array_split(np.arange(n), count) for n, count in zip(table.shape, parts, strict=True))
    pieces = [(table[np.ix_(r, c)], f"10 6 {r[0]},{len(r)}:{c[0]},{len(c)}") for r in reversed(rows) for c in columns]
    tf.raw_ops.SaveV2(
        prefix=str(tmp_path / "ckpt"),
        tensor_names=["user"] * len(pieces),
        shape_and_slices=[spec for _, spec in pieces],
        tensors=[piece for piece, _ in pieces],
    )
    np.testing.assert_array_equal(read_all(f"{tmp_path}/ckpt:user")[0], table)


def test_a_saved_model(tmp_path: Path) -> None:
    folder = write_toy_model(tmp_path / "1")
    assert read_all(f"{folder}:user")[0].tolist() == [[i, 10 * i] for i in range(5)]


def test_names_that_are_not_there_and_checksums_that_differ(tmp_path: Path) -> None:
    save(tmp_path / "ckpt", user=matrix(4, 2) + 100, item=matrix(5, 2), step=np.int64(3))
    with pytest.raises(ExportError, match=r"variable 'film' is not there\nCandidates:\n.*item.*\n.*user"):
        read_all(f"{tmp_path}/ckpt:film")
    with pytest.raises(ExportError, match=r"say which variable with ckpt:VARIABLE"):
        read_all(f"{tmp_path}/ckpt")
    with pytest.raises(ExportError, match=r"variable 'step' is int64 \[\]; a table is a matrix of float16 or float32"):
        read_all(f"{tmp_path}/ckpt:step")
    shard = tmp_path / "ckpt.data-00000-of-00001"
    data = bytearray(shard.read_bytes())
    position = data.find((matrix(4, 2) + 100).tobytes())
    data[position] ^= 1
    shard.write_bytes(data)
    with pytest.raises(ExportError, match="is damaged: its numbers do not have the checksum"):
        read_all(f"{tmp_path}/ckpt:user")
    shard.write_bytes(data[: position + 3])
    with pytest.raises(ExportError, match="is cut short"):
        read_all(f"{tmp_path}/ckpt:user")
    shard.unlink()
    with pytest.raises(ExportError, match="is missing: it holds a part of 'user'"):
        read_all(f"{tmp_path}/ckpt:user")
