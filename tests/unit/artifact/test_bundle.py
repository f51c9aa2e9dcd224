"""The checkpoint reader reads TensorFlow's files right, and raises only ArtifactError on damaged ones."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.artifact import bundle, protos
from service.artifact.bundle import BundleEntry, prefix_of, read_bundle
from service.errors import ArtifactError
from tests.toy_model import INDEX, SHARD, proto_field, table_block, toy_tables, variable_name, varint, write_bundle

MAGIC = struct.pack("<Q", 0xDB4775248B80FB57)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The prefix of a checkpoint whose index the tests of this file overwrite."""
    return tmp_path_factory.mktemp("bundle") / "variables"


@pytest.fixture(scope="module")
def good_index(toy_model: Path) -> bytes:
    """Returns the bytes of a valid checkpoint index."""
    return (toy_model / "1" / INDEX).read_bytes()


def read_index(prefix: Path, data: bytes) -> dict[str, BundleEntry]:
    """Writes these bytes as the index of a checkpoint, and reads the index."""
    prefix.with_name(f"{prefix.name}.index").write_bytes(data)
    return read_bundle(prefix)


def table_of(*records: tuple[bytes, bytes]) -> bytes:
    """Returns an index of these records, with empty checksums, which the reader does not check."""
    return index_around(table_block(list(records)))


def index_around(block: bytes, index: bytes | None = None) -> bytes:
    """Returns the bytes of an index file with one data block, which a block of handles points to."""
    index = index or table_block([(b"", varint(0) + varint(len(block)))])
    end = varint(0) + varint(0) + varint(len(block) + 5) + varint(len(index))
    return block + bytes(5) + index + bytes(5) + end.ljust(40, b"\0") + MAGIC


HEADER = (b"", proto_field(1, 1))
RESTARTS = struct.pack("<II", 0, 1)


def test_reads_where_every_tensor_lies(toy_model: Path) -> None:
    entries = read_bundle(toy_model / "1" / "variables" / "variables")
    shard = (toy_model / "1" / SHARD).read_bytes()
    assert list(entries) == ["_padding", variable_name("tag"), variable_name("user")]
    for name, table in toy_tables().items():
        entry = entries[variable_name(name)]
        assert (entry.shape, entry.dtype, entry.is_sliced) == (table.shape, "float32", False)
        assert entry.file == toy_model / "1" / SHARD
        assert shard[entry.offset : entry.offset + entry.nbytes] == table.tobytes()
    assert entries[variable_name("tag")].offset == 3, "unaligned, or the rest of the tests prove less than they say"


@pytest.mark.parametrize("count", [1, 15, 16, 17, 40])
def test_reads_keys_that_share_prefixes_across_restarts(tmp_path: Path, count: int) -> None:
    tensors = {f"layer/{i:02d}/kernel": np.full((i + 1, 2), i, np.float32) for i in range(count)}
    written = write_bundle(tmp_path / "v", tensors)
    entries = read_bundle(tmp_path / "v")
    assert {name: (e.shape, e.offset, e.crc32c) for name, e in entries.items()} == {
        name: (tensor.shape, written[name]["offset"], written[name]["crc32c"]) for name, tensor in tensors.items()
    }


def test_every_prefix_of_an_index_is_refused(scratch: Path, good_index: bytes) -> None:
    for length in range(len(good_index)):
        with pytest.raises(ArtifactError):
            read_index(scratch, good_index[:length])


@given(st.data())
def test_changed_bytes_give_entries_or_an_artifact_error(scratch: Path, good_index: bytes, data: st.DataObject) -> None:
    changed = bytearray(good_index)
    places = st.integers(0, len(good_index) - 1)
    for place, value in data.draw(st.lists(st.tuples(places, st.integers(0, 255)), min_size=1, max_size=4)):
        changed[place] = value
    try:
        read_index(scratch, bytes(changed))
    except ArtifactError:
        pass


@given(st.binary(max_size=200))
def test_any_bytes_with_the_right_ending_give_entries_or_an_artifact_error(scratch: Path, data: bytes) -> None:
    try:
        read_index(scratch, data + MAGIC)
    except ArtifactError:
        pass


@given(st.lists(st.tuples(st.binary(max_size=8), st.binary(max_size=30)), max_size=4))
def test_any_records_give_entries_or_an_artifact_error(scratch: Path, records: list[tuple[bytes, bytes]]) -> None:
    try:
        read_index(scratch, table_of(HEADER, *records))
    except ArtifactError:
        pass


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "wrong magic number"),
        (bytes(100), "wrong magic number"),
        (table_of((b"x", b"")), "truncated or corrupt"),
        (table_of((b"", proto_field(1, 1) + proto_field(2, 1))), "big-endian checkpoints are not supported"),
        (table_of(HEADER, (b"\xff\xfe", b"")), "truncated or corrupt"),
        (table_of(HEADER, (b"x", b"\x0b")), "truncated or corrupt"),
        (table_of(HEADER, (b"x", b"\xff" * 12)), "truncated or corrupt"),
        (table_of(HEADER, (b"x", b"\x12\x7f")), "truncated or corrupt"),
        (index_around(b"\xff" * 12 + RESTARTS), "varint longer than 64 bits"),
        # The first three bytes of a record are the numbers of shared key bytes, of further key bytes, and of value
        # bytes. Each record here shares more than there is, or is longer than its block.
        (index_around(b"\0\0\2\x08\1" + b"\3\1\0x" + RESTARTS), "record beyond its block"),
        (index_around(b"\0\0\2\x08\1" + b"\0\1\x40x" + RESTARTS), "record beyond its block"),
        (index_around(b"\0\0\2\x08\1" + b"\0\x40\0x" + RESTARTS), "record beyond its block"),
    ],
)
def test_says_what_is_wrong_and_with_which_file(scratch: Path, data: bytes, message: str) -> None:
    with pytest.raises(ArtifactError, match=message) as caught:
        read_index(scratch, data)
    assert f"{scratch}.index" in caught.value.message


def test_records_that_share_a_long_key_are_refused_before_they_take_all_memory(
    scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = b"k" * 10_000
    block = varint(0) + varint(0) + varint(2) + HEADER[1] + varint(0) + varint(len(key)) + varint(0) + key
    # Each further record of eight bytes has the first 10,000 bytes of its key from the record before.
    block += b"".join(varint(len(key)) + varint(4) + varint(0) + n.to_bytes(4, "big") for n in range(200))
    monkeypatch.setattr(bundle, "_MAX_BYTES", 1_000_000)
    with pytest.raises(ArtifactError, match="its records take more than 1000000 bytes of memory"):
        read_index(scratch, index_around(block + RESTARTS))


def test_an_entry_of_too_many_fields_is_refused_before_it_is_parsed(
    scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protos, "MAX_FIELDS", 100)
    with pytest.raises(ArtifactError, match=r"an entry of .*variables\.index has .* more than 100 protobuf fields"):
        read_index(scratch, table_of(HEADER, (b"x", proto_field(7, b"") * 101)))


@pytest.mark.parametrize("count", [1, 17, 300])
def test_a_compressed_index_says_the_same(tmp_path: Path, count: int) -> None:
    tensors = {f"layer/{i:02d}/kernel": np.full((i % 7 + 1, 2), i, np.float32) for i in range(count)}
    write_bundle(tmp_path / "plain", tensors)
    write_bundle(tmp_path / "packed", tensors, is_compressed=True)
    plain, packed = ((tmp_path / f"{name}.index").read_bytes() for name in ("plain", "packed"))
    assert len(packed) < len(plain) or count == 1
    packed_entries = read_index(tmp_path / "plain", packed)
    assert packed_entries == read_index(tmp_path / "plain", plain)
    assert len(packed_entries) == count


def test_every_prefix_of_a_compressed_index_is_refused(tmp_path: Path) -> None:
    write_bundle(
        tmp_path / "v", {f"layer/{i:02d}/kernel": np.ones((2, 2), np.float32) for i in range(20)}, is_compressed=True
    )
    data = (tmp_path / "v.index").read_bytes()
    for length in range(len(data)):
        with pytest.raises(ArtifactError):
            read_index(tmp_path / "v", data[:length])


@given(st.data())
def test_changed_bytes_of_a_compressed_index_give_entries_or_an_artifact_error(
    scratch: Path, data: st.DataObject
) -> None:
    write_bundle(scratch, {"a/kernel": np.ones((2, 2), np.float32), "a/kernel_2": np.ones(3)}, is_compressed=True)
    changed = bytearray(scratch.with_name(f"{scratch.name}.index").read_bytes())
    places = st.integers(0, len(changed) - 1)
    for place, value in data.draw(st.lists(st.tuples(places, st.integers(0, 255)), min_size=1, max_size=4)):
        changed[place] = value
    try:
        read_index(scratch, bytes(changed))
    except ArtifactError:
        pass


def test_an_unknown_compression_is_refused(scratch: Path) -> None:
    data = bytearray(table_of(HEADER))
    data[len(table_block([HEADER]))] = 4
    with pytest.raises(ArtifactError, match=r"compressed in an unknown way \(type 4\)"):
        read_index(scratch, bytes(data))


def test_a_block_that_is_no_snappy_is_refused(scratch: Path) -> None:
    data = bytearray(table_of(HEADER))
    data[len(table_block([HEADER]))] = 1
    with pytest.raises(ArtifactError, match=r"variables\.index: snappy: "):
        read_index(scratch, bytes(data))


def test_blocks_named_twice_are_refused(scratch: Path) -> None:
    block = table_block([HEADER, (b"x", proto_field(1, 1))])
    handle = varint(0) + varint(len(block))
    with pytest.raises(ArtifactError, match="index blocks overlap"):
        read_index(scratch, index_around(block, table_block([(b"a", handle), (b"b", handle)])))


def test_tensorflow_servings_own_compressed_index_is_read(tf_serving_testdata: Path) -> None:
    (index,) = (tf_serving_testdata / "saved_model_half_plus_two_tf2_cpu").rglob("variables.index")
    assert b"ATTRIBUTES/VARIABLE_VALUE" in index.read_bytes()
    entries = read_bundle(index.with_suffix(""))
    shard = index.with_name("variables.data-00000-of-00001").read_bytes()
    found = {name[0]: entry for name, entry in entries.items() if name.endswith("/.ATTRIBUTES/VARIABLE_VALUE")}
    # The model computes a x + b and a x + c.
    values = {name: struct.unpack_from("<f", shard, entry.offset)[0] for name, entry in found.items()}
    assert values == {"a": 0.5, "b": 2.0, "c": 3.0}
    assert all((entry.shape, entry.nbytes, entry.dtype) == ((), 4, "float32") for entry in found.values())


def test_a_missing_index_is_an_artifact_error(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"cannot read .*variables\.index: No such file or directory"):
        read_bundle(tmp_path / "variables")


def dims(*sizes: int) -> bytes:
    """Returns the bytes of the shape in a bundle's entry."""
    return proto_field(2, b"".join(proto_field(2, proto_field(1, size)) for size in sizes))


def extent(start: int, length: int | None = None) -> bytes:
    """Returns the protobuf bytes of a slice's extent in one dimension; without a length it is the whole dimension."""
    return proto_field(1, proto_field(1, start) + (b"" if length is None else proto_field(2, length)))


def sliced(*slices: bytes, shape: bytes = dims(5, 2)) -> tuple[bytes, bytes]:
    """Returns the key and the record of partitioned variable t in a checkpoint's index."""
    return b"t", proto_field(1, 1) + shape + b"".join(proto_field(7, part) for part in slices)


# Two slices of variable t, each with all columns: UPPER has rows 3 and 4, LOWER has rows 0 to 2.
UPPER, LOWER = extent(3, 2) + extent(0), extent(0, 3) + extent(0)
UPPER_KEY, LOWER_KEY = b"\0t\0\1\1\2\x83\x82\x80\x7f", b"\0t\0\1\1\2\x80\x83\x80\x7f"


def part(rows: int, offset: int, dtype: int = 1) -> bytes:
    """Returns the record of a slice with `rows` rows, at a byte offset in the second shard."""
    return proto_field(1, dtype) + dims(rows, 2) + proto_field(3, 1) + proto_field(4, offset) + proto_field(5, 8 * rows)


def test_slices_are_found_and_ordered_by_their_start(scratch: Path) -> None:
    entries = read_index(
        scratch,
        table_of((b"", proto_field(1, 2)), (LOWER_KEY, part(3, 40)), (UPPER_KEY, part(2, 16)), sliced(UPPER, LOWER)),
    )
    assert list(entries) == ["t"]
    assert (entries["t"].shape, entries["t"].nbytes, entries["t"].is_sliced) == ((5, 2), 0, True)
    shard = scratch.with_name(f"{scratch.name}.data-00001-of-00002")
    found = [(piece.start, piece.entry.shape, piece.entry.offset, piece.entry.file) for piece in entries["t"].slices]
    assert found == [((0, 0), (3, 2), 40, shard), ((3, 0), (2, 2), 16, shard)]


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([sliced(UPPER)], r"'t' has a slice \[\(3, 2\), \(0, -1\)\] that is not there"),
        ([(UPPER_KEY, part(2, 0)), sliced(UPPER, shape=dims(5))], r"is not there or is none of \(5,\)"),
        ([(UPPER_KEY, part(3, 0)), sliced(UPPER)], r"a slice of float32 \(3, 2\), expected float32 \(2, 2\)"),
        ([(UPPER_KEY, part(2, 0, 2)), sliced(UPPER)], r"a slice of float64 \(2, 2\), expected float32 \(2, 2\)"),
        ([sliced(extent(2**56))], "a slice has the number 72057594037927936"),
    ],
)
def test_slices_that_do_not_fit_are_refused(scratch: Path, records: list[tuple[bytes, bytes]], message: str) -> None:
    with pytest.raises(ArtifactError, match=message):
        read_index(scratch, table_of(HEADER, *records))


@pytest.mark.parametrize("name", ["variables", "v.data-0-of-1", "v.data-00000-of-00001.tmp", ".data-00000-of-00001"])
def test_only_a_shards_name_has_a_prefix(name: str) -> None:
    assert prefix_of(Path("a/v.data-00012-of-00345")) == Path("a/v")
    with pytest.raises(ArtifactError, match="is not named as a data file of a checkpoint"):
        prefix_of(Path("a") / name)


def test_shards_and_other_dtypes_are_told_apart(scratch: Path) -> None:
    entries = read_index(
        scratch,
        table_of(
            (b"", proto_field(1, 3)),
            (b"\0slice key", b""),
            (b"scalar", proto_field(1, 1) + proto_field(2, b"")),
            (b"strings", proto_field(1, 7) + proto_field(3, 2)),
        ),
    )
    assert list(entries) == ["scalar", "strings"]
    assert entries["scalar"].shape == ()
    assert entries["strings"].dtype == "other"
    assert entries["strings"].file.name == "variables.data-00002-of-00003"
