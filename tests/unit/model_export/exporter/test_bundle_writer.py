"""Checkpoints written piece by piece, read by TensorFlow and by the server's reader."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from model_export.exporter.bundle_writer import BundleWriter
from service.files.crc32c import masked_of
from service.lookup.bundle import read_bundle
from tests.toy_model import stored_numbers

_TABLE = np.arange(30, dtype=np.float32).reshape(10, 3) - 4
_DTYPES = ("float32", "float16", "bfloat16", "int8")


def written(prefix: Path) -> dict[str, np.ndarray]:
    """Writes tables of every dtype in pieces, and more of them than one restart of the index has; returns them."""
    stored = {f"t/{dtype}": (dtype, stored_numbers(_TABLE, dtype)) for dtype in _DTYPES}
    stored |= {f"more/{i:02}": ("float32", _TABLE[: i + 1]) for i in range(40)}
    with BundleWriter(prefix) as writer:
        for key, (dtype, numbers) in stored.items():
            for start in range(0, len(numbers), 4):
                writer.append(numbers[start : start + 4])
            writer.end_tensor(key, dtype, numbers.shape)
    return {key: numbers for key, (_, numbers) in stored.items()}


def test_entries_say_where_the_bytes_are(tmp_path: Path) -> None:
    stored = written(tmp_path / "v")
    entries = read_bundle(tmp_path / "v")
    assert entries.keys() == stored.keys()
    data = (tmp_path / "v.data-00000-of-00001").read_bytes()
    for key, numbers in stored.items():
        entry = entries[key]
        assert data[entry.offset : entry.offset + entry.nbytes] == numbers.tobytes()
        assert entry.crc32c == masked_of(numbers.tobytes())
        assert (entry.shape, entry.offset % 64) == (numbers.shape, 0)


@pytest.mark.tf
def test_tensorflow_reads_it(tmp_path: Path) -> None:
    from model_export.tensorflow_setup import tf

    stored = written(tmp_path / "v")
    reader = tf.train.load_checkpoint(str(tmp_path / "v"))
    assert set(reader.get_variable_to_shape_map()) == set(stored)
    assert {reader.get_variable_to_dtype_map()[f"t/{dtype}"] for dtype in _DTYPES} == set(map(tf.as_dtype, _DTYPES))
    # TensorFlow compares the checksum of what it reads.
    for key, numbers in stored.items():
        read = reader.get_tensor(key)
        np.testing.assert_array_equal(read.view(numbers.dtype), numbers)


def test_a_failure_leaves_no_index(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), BundleWriter(tmp_path / "v") as writer:
        writer.append(_TABLE)
        raise RuntimeError
    assert not (tmp_path / "v.index").exists()
