"""The checkpoint format is TensorFlow's: TensorFlow reads what our writers write, and our reader what it writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.artifact.bundle import BundleEntry, read_bundle, read_string
from service.artifact.manifest import Manifest, VocabularyEntry
from service.errors import ArtifactError, IdOutOfRange
from service.tables.vocabulary import open_vocabularies
from tests.toy_model import SHARD, toy_tables, variable_name, write_bundle

pytestmark = pytest.mark.tf

TENSORS = {variable_name(name): table for name, table in toy_tables().items()} | {"_padding": np.zeros(3, np.uint8)}


def save(tf: Any, prefix: Path, tensors: dict[str, Any]) -> None:
    """Saves a checkpoint of tensors with TensorFlow."""
    names = sorted(tensors)
    tf.raw_ops.SaveV2(
        prefix=str(prefix), tensor_names=names, shape_and_slices=[""] * len(names), tensors=[tensors[n] for n in names]
    )


@pytest.mark.parametrize("text", [b"", b"abc", bytes(range(256)) * 80])
def test_a_string_of_tensorflows_is_read_and_a_damaged_one_refused(tf: Any, tmp_path: Path, text: bytes) -> None:
    prefix = tmp_path / "variables"
    save(tf, prefix, {"before": np.ones(3, np.float32), "text": np.array(text, object)})
    assert read_string(prefix, "text") == text
    with pytest.raises(ArtifactError, match="has no entry 'nothing'"):
        read_string(prefix, "nothing")
    entry = read_bundle(prefix)["text"]
    data = entry.file.read_bytes()
    for place in range(entry.offset, entry.offset + min(entry.nbytes, 12)):
        entry.file.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        with pytest.raises(ArtifactError, match="'text'"):
            read_string(prefix, "text")
    entry.file.write_bytes(data[: entry.offset + entry.nbytes - 1])
    with pytest.raises(ArtifactError, match="'text'"):
        read_string(prefix, "text")
    entry.file.unlink()
    with pytest.raises(ArtifactError, match="cannot read"):
        read_string(prefix, "text")


def values_of(entry: BundleEntry) -> np.ndarray:
    """Reads a tensor's bytes from its file; returns them as an array."""
    data = entry.file.read_bytes()[entry.offset : entry.offset + entry.nbytes]
    return np.frombuffer(data, entry.dtype).reshape(entry.shape)


def test_tensorflow_reads_the_toy_models_checkpoint(tf: Any, toy_model: Path) -> None:
    reader = tf.train.load_checkpoint(str(toy_model / "1" / "variables" / "variables"))
    assert sorted(reader.get_variable_to_shape_map()) == sorted(TENSORS)
    for name, tensor in TENSORS.items():
        assert np.array_equal(reader.get_tensor(name), tensor)


def test_tensorflow_writes_the_toy_models_data_byte_for_byte(tf: Any, toy_model: Path, tmp_path: Path) -> None:
    save(tf, tmp_path / "variables", TENSORS)
    assert (tmp_path / SHARD.name).read_bytes() == (toy_model / "1" / SHARD).read_bytes()
    theirs, ours = read_bundle(tmp_path / "variables"), read_bundle(toy_model / "1" / "variables" / "variables")
    for name, entry in theirs.items():
        assert (entry.offset, entry.nbytes, entry.crc32c) == (ours[name].offset, ours[name].nbytes, ours[name].crc32c)


def test_reads_every_numeric_dtype_that_tensorflow_writes(tf: Any, tmp_path: Path) -> None:
    dtypes = [
        *("float32", "float64", "float16", "bool"),
        *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    ]
    tensors = {f"{dtype}/{i}": np.arange(6).reshape(2, 3).astype(dtype) for i, dtype in enumerate(dtypes)}
    save(tf, tmp_path / "v", tensors | {"scalar": np.float32(7), "empty": np.zeros((0, 4), np.float32)})
    entries = read_bundle(tmp_path / "v")
    assert sorted(entries) == sorted([*tensors, "scalar", "empty"])
    for name, tensor in tensors.items():
        assert np.array_equal(values_of(entries[name]), tensor)
        assert entries[name].dtype == tensor.dtype.name
    assert values_of(entries["scalar"]) == 7
    assert (entries["empty"].shape, entries["empty"].nbytes) == ((0, 4), 0)


def test_reads_an_index_of_many_blocks(tf: Any, tmp_path: Path) -> None:
    tensors = {f"layer_{i:05d}/some/long/name/of/a/kernel": np.full((2, 2), i, np.float32) for i in range(3000)}
    save(tf, tmp_path / "v", tensors)
    entries = read_bundle(tmp_path / "v")
    assert len(entries) == len(tensors)
    data = entries["layer_00000/some/long/name/of/a/kernel"].file.read_bytes()
    for name, tensor in tensors.items():
        entry = entries[name]
        assert data[entry.offset : entry.offset + entry.nbytes] == tensor.tobytes()


def test_strings_and_bfloat16_are_told_apart(tf: Any, tmp_path: Path) -> None:
    save(tf, tmp_path / "v", {"text": tf.constant(["a"]), "half": tf.ones([2], tf.bfloat16)})
    entries = read_bundle(tmp_path / "v")
    assert (entries["text"].dtype, entries["half"].dtype) == ("other", "bfloat16")


def test_a_partitioned_variable_is_marked_as_sliced(tf: Any, tmp_path: Path) -> None:
    table = np.arange(8, dtype=np.float32).reshape(4, 2)
    tf.raw_ops.SaveV2(
        prefix=str(tmp_path / "v"),
        tensor_names=["t", "t"],
        shape_and_slices=["4 2 0,2:-", "4 2 2,2:-"],
        tensors=[table[:2], table[2:]],
    )
    entries = read_bundle(tmp_path / "v")
    assert list(entries) == ["t"]
    assert (entries["t"].is_sliced, entries["t"].shape) == (True, (4, 2))
    assert [piece.start for piece in entries["t"].slices] == [(0, 0), (2, 0)]
    assert [values_of(piece.entry).tolist() for piece in entries["t"].slices] == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]


# Starts of slices around each value at which OrderedCode needs one more byte, and two names, one of which has bytes to
# escape.
@pytest.mark.parametrize("start", [0, 1, 63, 64, 8191, 8192, 2**20 - 1, 2**20, 2**27, 2**34, 2**41, 2**48])
@pytest.mark.parametrize("name", ["t", "é/\x01"])
def test_slices_anywhere_in_a_huge_variable_are_found(tf: Any, tmp_path: Path, start: int, name: str) -> None:
    piece = np.arange(6, dtype=np.float32).reshape(3, 2)
    tf.raw_ops.SaveV2(
        prefix=str(tmp_path / "v"),
        tensor_names=[name, name],
        shape_and_slices=[f"{2**50} 2 {start},3:-", f"{2**50} 2 {2**49},1:0,2"],
        tensors=[piece, piece[:1]],
    )
    entry = read_bundle(tmp_path / "v")[name]
    assert entry.shape == (2**50, 2)
    assert [part.start for part in entry.slices] == [(start, 0), (2**49, 0)]
    assert np.array_equal(values_of(entry.slices[0].entry), piece)


def test_the_slices_of_a_partitioned_v1_variable_are_found(tf: Any, tmp_path: Path) -> None:
    v1, table = tf.compat.v1, np.arange(22, dtype=np.float32).reshape(11, 2)

    def rows(shape: Any, partition_info: Any, **_: Any) -> Any:
        start = partition_info.var_offset[0]
        return tf.constant(table[start : start + shape[0]])

    with v1.Graph().as_default(), v1.Session() as session:
        variable = v1.get_variable("emb/t", [11, 2], initializer=rows, partitioner=v1.fixed_size_partitioner(3))
        session.run(v1.global_variables_initializer())
        v1.train.Saver({"emb/t": variable}).save(session, str(tmp_path / "v"))
    entry = read_bundle(tmp_path / "v")["emb/t"]
    assert [(piece.start[0], piece.entry.shape[0]) for piece in entry.slices] == [(0, 4), (4, 4), (8, 3)]
    assert np.array_equal(np.concatenate([values_of(piece.entry) for piece in entry.slices]), table)


def test_tensorflow_reads_the_compressed_index_that_tests_write(tf: Any, tmp_path: Path) -> None:
    tensors = {f"layer/{i:03d}/kernel": np.full((i % 5 + 1, 2), i, np.float32) for i in range(60)}
    write_bundle(tmp_path / "v", tensors, is_compressed=True)
    reader = tf.train.load_checkpoint(str(tmp_path / "v"))
    for name, tensor in tensors.items():
        assert np.array_equal(reader.get_tensor(name), tensor)


def test_many_tensors_of_ours_are_read_by_tensorflow(tf: Any, tmp_path: Path) -> None:
    tensors = {f"layer/{i:03d}/kernel": np.full((i % 5 + 1, 2), i, np.float32) for i in range(60)}
    write_bundle(tmp_path / "v", tensors)
    reader = tf.train.load_checkpoint(str(tmp_path / "v"))
    for name, tensor in tensors.items():
        assert np.array_equal(reader.get_tensor(name), tensor)


@pytest.mark.parametrize("data", [b"a\nb\nc\n", b"a\nb\nc", b"a\r\nb\r\nc\r\n", b"a b\nc\n", b"a\xff\nb\x0b\nc\r\r\n"])
def test_a_vocabulary_file_means_what_it_means_to_tensorflow(tf: Any, tmp_path: Path, data: bytes) -> None:
    (tmp_path / "v.txt").write_bytes(data)
    whole_line, line_number = tf.lookup.TextFileIndex.WHOLE_LINE, tf.lookup.TextFileIndex.LINE_NUMBER
    lines = tf.lookup.TextFileInitializer(str(tmp_path / "v.txt"), tf.string, whole_line, tf.int64, line_number)
    theirs = tf.lookup.StaticHashTable(lines, default_value=-1)
    entry = VocabularyEntry("v.txt", int(theirs.size()))
    ours = open_vocabularies(tmp_path, Manifest({}, {}, {}, {"v": entry}))["v"]
    for key in {piece for line in data.split(b"\n") for piece in (line, line.strip(), line + b"\r", line[:-1])}:
        expected = int(theirs.lookup(tf.constant([key]))[0])
        try:
            found = int(ours.ids_of(np.array([key], object), "x")[0])
        except IdOutOfRange:
            found = -1
        assert found == expected, key


def test_a_string_twice_is_an_error_to_both(tf: Any, tmp_path: Path) -> None:
    (tmp_path / "v.txt").write_bytes(b"a\nb\na\n")
    with pytest.raises(ArtifactError, match="holds 'a' twice"):
        open_vocabularies(tmp_path, Manifest({}, {}, {}, {"v": VocabularyEntry("v.txt", 3)}))
    whole_line, line_number = tf.lookup.TextFileIndex.WHOLE_LINE, tf.lookup.TextFileIndex.LINE_NUMBER
    with pytest.raises(tf.errors.FailedPreconditionError):
        tf.lookup.StaticHashTable(
            tf.lookup.TextFileInitializer(str(tmp_path / "v.txt"), tf.string, whole_line, tf.int64, line_number), -1
        )
