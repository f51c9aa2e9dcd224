"""BundleWriter writes checkpoints tensor by tensor; the server and TensorFlow read them, and check their checksums."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model_export.errors import ExportError
from model_export.exporter.bundle_writer import BundleWriter
from model_export.exporter.versions import existing_versions, new_version_folder
from service.artifact.bundle import read_bundle, read_records
from tests.toy_model import masked_crc32c, stored_numbers, write_bundle

TABLE = np.arange(30, dtype=np.float32).reshape(10, 3) - 4
STEP = np.array(7, np.int64)
DTYPES = ("float32", "float16", "bfloat16", "int8", "uint8")


def new_tensors() -> dict[str, tuple[str, np.ndarray]]:
    """Returns key -> (dtype, numbers): every dtype, and more keys than follow one restart point of the index."""
    stored = {f"t/{dtype}": (dtype, stored_numbers(TABLE + 4, dtype)) for dtype in DTYPES}
    return stored | {f"more/{i:02}": ("float32", TABLE[: i % 9 + 1]) for i in range(40)}


def written(folder: Path, source: Path | None = None) -> dict[str, np.ndarray]:
    """Writes a bundle folder/made of a source's tensors without "step", and then of new ones; returns the new ones."""
    added = new_tensors()
    with BundleWriter(folder / "made") as writer:
        if source is not None:
            writer.copy(source, lambda key: not key.startswith("step"))
        for key, (dtype, numbers) in added.items():
            shape = writer.add(key, dtype, (numbers[start : start + 4] for start in range(0, len(numbers), 4)))
            assert shape == numbers.shape
    return {key: numbers for key, (_, numbers) in added.items()}


@pytest.mark.parametrize("is_copied", [False, True])
def test_entries_say_where_the_bytes_are(tmp_path: Path, is_copied: bool) -> None:
    write_bundle(tmp_path / "old", {"step": STEP, "table": TABLE})
    stored = written(tmp_path, tmp_path / "old" if is_copied else None)
    if is_copied:
        stored["table"] = TABLE
    entries = read_bundle(tmp_path / "made")
    assert entries.keys() == stored.keys()
    data = (tmp_path / "made.data-00000-of-00001").read_bytes()
    for key, numbers in stored.items():
        entry = entries[key]
        assert data[entry.offset : entry.offset + entry.nbytes] == numbers.tobytes()
        assert entry.crc32c == masked_crc32c(numbers.tobytes())
        assert (entry.shape, entry.offset % 64) == (numbers.shape, 0)
    assert {entries[f"t/{dtype}"].dtype for dtype in DTYPES} == set(DTYPES)


def test_pieces_that_do_not_lie_in_one_row_are_written_as_they_read(tmp_path: Path) -> None:
    with BundleWriter(tmp_path / "new" / "made") as writer:
        assert writer.add("t", "float32", [TABLE.T[:, ::2], TABLE.T[:, ::2] + 1]) == (6, 5)
    data = (tmp_path / "new" / "made.data-00000-of-00001").read_bytes()
    assert np.frombuffer(data, np.float32).reshape(6, 5)[0].tolist() == [-4, 2, 8, 14, 20]
    assert np.frombuffer(data, np.float32).reshape(6, 5)[5].tolist() == [-1, 5, 11, 17, 23]


def test_a_failure_leaves_no_index(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), BundleWriter(tmp_path / "v") as writer:
        writer.add("t", "float32", [TABLE])
        raise RuntimeError
    assert not (tmp_path / "v.index").exists()


def test_a_shard_that_ends_too_early_is_an_error(tmp_path: Path) -> None:
    write_bundle(tmp_path / "old", {"step": STEP, "table": TABLE})
    shard = tmp_path / "old.data-00000-of-00001"
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(OSError, match="ends before a tensor does"):
        written(tmp_path, tmp_path / "old")
    assert not (tmp_path / "made.index").exists()


def save(tf: Any, prefix: Path, tensors: dict[str, Any], slices: list[str] | None = None) -> str:
    """Saves a checkpoint of one shard with TensorFlow; returns its prefix."""
    tf.raw_ops.SaveV2(
        prefix=str(prefix),
        tensor_names=list(tensors),
        shape_and_slices=slices or [""] * len(tensors),
        tensors=[tf.constant(value) for value in tensors.values()],
    )
    return str(prefix)


@pytest.mark.tf
def test_tensorflow_reads_what_is_added(tf: Any, tmp_path: Path) -> None:
    stored = written(tmp_path)
    reader = tf.train.load_checkpoint(str(tmp_path / "made"))
    assert set(reader.get_variable_to_shape_map()) == set(stored)
    assert {reader.get_variable_to_dtype_map()[f"t/{dtype}"] for dtype in DTYPES} == set(map(tf.as_dtype, DTYPES))
    # TensorFlow compares the checksum of each tensor that it reads.
    for key, numbers in stored.items():
        read = reader.get_tensor(key)
        np.testing.assert_array_equal(read.view(numbers.dtype), numbers)


@pytest.mark.tf
def test_tensorflow_reads_what_is_copied_from_several_shards(tf: Any, tmp_path: Path) -> None:
    words = np.array([b"x", b"long" * 99], object)
    # Rows 0 to 3 of each partitioned tensor are in one shard of the checkpoint, rows 4 to 9 in the other.
    parts = [
        save(
            tf,
            tmp_path / f"part{number}",
            {"parted": TABLE[start:stop], "step_parts": TABLE[start:stop], **whole},
            [f"10 3 {start},{stop - start}:-"] * 2 + [""] * len(whole),
        )
        for number, (start, stop, whole) in enumerate(
            [(0, 4, {"table": TABLE, "name": words}), (4, 10, {"step": STEP})]
        )
    ]
    tf.raw_ops.MergeV2Checkpoints(checkpoint_prefixes=parts, destination_prefix=str(tmp_path / "old"))
    assert len(list(tmp_path.glob("old.data-*-of-00002"))) == 2
    stored = written(tmp_path, tmp_path / "old")
    reader = tf.train.load_checkpoint(str(tmp_path / "made"))
    assert set(reader.get_variable_to_shape_map()) == {"parted", "table", "name", *stored}
    assert np.array_equal(reader.get_tensor("table"), TABLE)
    assert reader.get_tensor("name").tolist() == words.tolist()
    read = tf.raw_ops.RestoreV2(
        prefix=str(tmp_path / "made"), tensor_names=["parted"], shape_and_slices=[""], dtypes=[tf.float32]
    )
    np.testing.assert_array_equal(read[0], TABLE)
    # A partitioned tensor that is left out of the new checkpoint leaves no records of its parts in the index.
    keys = read_records((tmp_path / "made.index").read_bytes())
    assert sum(key.startswith(b"\0") for key in keys) == 2


def test_the_first_is_1_and_then_the_number_after_the_highest(tmp_path: Path) -> None:
    base = tmp_path / "model"
    assert new_version_folder(base, None) == base / "1"
    for name in ("1", "10", "2", ".tmp-99", "notes"):
        (base / name).mkdir(parents=True)
    assert existing_versions(base) == [1, 2, 10]
    assert new_version_folder(base, None) == base / "11"
    assert new_version_folder(base, 5) == base / "5"


@pytest.mark.parametrize(("version", "message"), [(3, "never overwritten"), (0, "positive"), (-1, "positive")])
def test_a_version_that_can_not_be_written_is_refused(tmp_path: Path, version: int, message: str) -> None:
    (tmp_path / "3").mkdir()
    with pytest.raises(ExportError, match=message):
        new_version_folder(tmp_path, version)
