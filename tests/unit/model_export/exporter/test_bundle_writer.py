"""Checkpoints written tensor by tensor: TensorFlow reads them, and holds every tensor against its checksum."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model_export.exporter.bundle_writer import BundleWriter
from service.lookup.bundle import read_bundle
from tests.toy_model import masked_crc32c, write_bundle

TABLE = np.arange(12, dtype=np.float32).reshape(4, 3)
STEP = np.array(7, np.int64)


def written(folder: Path, source: Path) -> Path:
    """Copies "table" of a checkpoint and adds two tensors, one of them in chunks; returns the new one's prefix."""
    writer = BundleWriter(folder / "made")
    try:
        writer.copy(source, lambda key: key != "step")
        writer.add("numbers", "uint8", (2, 300), (bytes([i % 256]) * 100 for i in range(6)))
        writer.add("halves", "bfloat16", (1, 2), [np.array([0x3F80, 0xC000], "<u2").tobytes()])
        writer.finish()
    finally:
        writer.close()
    return folder / "made"


def test_what_is_copied_and_what_is_added_is_read_back(tmp_path: Path) -> None:
    write_bundle(tmp_path / "old", {"step": STEP, "table": TABLE})
    found = read_bundle(written(tmp_path, tmp_path / "old"))
    assert set(found) == {"table", "numbers", "halves"}
    assert (found["numbers"].dtype, found["numbers"].shape) == ("uint8", (2, 300))
    assert (found["halves"].dtype, found["halves"].shape, found["halves"].nbytes) == ("bfloat16", (1, 2), 4)
    data = (tmp_path / "made.data-00000-of-00001").read_bytes()
    assert len(data) == TABLE.nbytes + 600 + 4
    for entry in found.values():
        assert entry.crc32c == masked_crc32c(data[entry.offset : entry.offset + entry.nbytes])
    table = found["table"]
    assert data[table.offset : table.offset + table.nbytes] == TABLE.tobytes()


def test_a_shard_that_ends_too_early_is_an_error(tmp_path: Path) -> None:
    write_bundle(tmp_path / "old", {"step": STEP, "table": TABLE})
    shard = tmp_path / "old.data-00000-of-00001"
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(OSError, match="ends before a tensor does"):
        written(tmp_path, tmp_path / "old")


@pytest.mark.tf
def test_tensorflow_reads_it_and_its_own_shards_are_copied(tf: Any, tmp_path: Path) -> None:
    v1, sources = tf.compat.v1, []
    for number, tensors in enumerate(
        [{"table": TABLE, "name": np.array([b"x", b"long" * 99], object)}, {"step": STEP}]
    ):
        sources.append(str(tmp_path / f"part{number}"))
        tf.raw_ops.SaveV2(
            prefix=sources[-1],
            tensor_names=list(tensors),
            shape_and_slices=[""] * len(tensors),
            tensors=[tf.constant(value) for value in tensors.values()],
        )
    tf.raw_ops.MergeV2Checkpoints(checkpoint_prefixes=sources, destination_prefix=str(tmp_path / "old"))
    assert len(list(tmp_path.glob("old.data-*-of-00002"))) == 2
    reader = v1.train.NewCheckpointReader(str(written(tmp_path, tmp_path / "old")))
    assert set(reader.get_variable_to_shape_map()) == {"table", "name", "numbers", "halves"}
    assert np.array_equal(reader.get_tensor("table"), TABLE)
    assert reader.get_tensor("name").tolist() == [b"x", b"long" * 99]
    assert reader.get_tensor("numbers").reshape(-1)[::100].tolist() == [0, 1, 2, 3, 4, 5]
    assert reader.get_tensor("halves").astype(np.float32).tolist() == [[1, -2]]
