"""The checkpoint reader: right on what TensorFlow writes, and nothing but ArtifactError on what nobody wrote."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core.errors import ArtifactError
from service.lookup.bundle import BundleEntry, read_bundle
from tests.toy_model import INDEX, SHARD, proto_field, table_block, toy_tables, variable_name, varint, write_bundle

MAGIC = struct.pack("<Q", 0xDB4775248B80FB57)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint prefix whose index tests overwrite."""
    return tmp_path_factory.mktemp("bundle") / "variables"


@pytest.fixture(scope="module")
def good_index(toy_model: Path) -> bytes:
    """The bytes of a valid index."""
    return (toy_model / "1" / INDEX).read_bytes()


def read_index(prefix: Path, data: bytes) -> dict[str, BundleEntry]:
    """Reads an index with these bytes."""
    prefix.with_name(f"{prefix.name}.index").write_bytes(data)
    return read_bundle(prefix)


def table_of(*records: tuple[bytes, bytes]) -> bytes:
    """Returns an index of these records, checksums left out: they are not read."""
    return index_around(table_block(list(records)))


def index_around(block: bytes) -> bytes:
    """Returns an index of one data block."""
    index = table_block([(b"", varint(0) + varint(len(block)))])
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
        (table_of(HEADER, (b"x", proto_field(1, b"text"))), "a number was expected where the file has bytes"),
        (table_of(HEADER, (b"x", b"\x0b")), "unknown wire type 3"),
        (table_of(HEADER, (b"x", b"\xff" * 12)), "varint longer than 64 bits"),
        (table_of(HEADER, (b"x", b"\x12\x7f")), "field beyond its message"),
        # (shared, unshared, length) of a record that shares more than there is, or is longer than its block.
        (index_around(b"\0\0\2\x08\1" + b"\3\1\0x" + RESTARTS), "record beyond its block"),
        (index_around(b"\0\0\2\x08\1" + b"\0\1\x40x" + RESTARTS), "record beyond its block"),
        (index_around(b"\0\0\2\x08\1" + b"\0\x40\0x" + RESTARTS), "record beyond its block"),
    ],
)
def test_says_what_is_wrong_and_with_which_file(scratch: Path, data: bytes, message: str) -> None:
    with pytest.raises(ArtifactError, match=message) as caught:
        read_index(scratch, data)
    assert f"{scratch}.index" in caught.value.message


def test_a_compressed_block_is_refused(scratch: Path) -> None:
    data = bytearray(table_of(HEADER))
    data[len(table_block([HEADER]))] = 1
    with pytest.raises(ArtifactError, match=r"index block is compressed \(type 1\)"):
        read_index(scratch, bytes(data))


def test_a_missing_index_is_an_artifact_error(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"cannot read .*variables\.index: No such file or directory"):
        read_bundle(tmp_path / "variables")


def test_slices_shards_and_other_dtypes_are_told_apart(scratch: Path) -> None:
    entries = read_index(
        scratch,
        table_of(
            (b"", proto_field(1, 3)),
            (b"\0slice key", b""),
            (b"scalar", proto_field(1, 1) + proto_field(2, b"")),
            (b"sliced", proto_field(1, 1) + proto_field(7, proto_field(1, b""))),
            (b"strings", proto_field(1, 7) + proto_field(3, 2)),
        ),
    )
    assert list(entries) == ["scalar", "sliced", "strings"]
    assert entries["scalar"].shape == ()
    assert entries["sliced"].is_sliced
    assert entries["strings"].dtype == "other"
    assert entries["strings"].file.name == "variables.data-00002-of-00003"
