"""Checksums, compression, keys and protobuf are read and written as others do."""

from __future__ import annotations

import io
import os
import re
import struct
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf import descriptor_pb2
from hypothesis import given
from hypothesis import strategies as st

from service.artifact import protos, tensor_proto
from service.artifact.bundle import decompress, slice_key
from service.artifact.files import read_plain_file
from service.artifact.hashes import crc32c, masked
from service.artifact.protos import MAX_FIELDS, check_num_fields, message_class, new_pool, num_fields
from service.artifact.signature_def import read_meta_graph
from service.artifact.tf_record import read_records
from service.errors import ArtifactError
from tests.toy_model import masked_crc32c, proto_field, saved_model, snappy, toy_signatures, varint


def checksum(data: bytes, before: int = 0) -> int:
    """Returns the CRC32C of bytes that follow others with the CRC32C `before`."""
    return int(crc32c(np.frombuffer(data, np.uint8), before))


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
        (b"", 0),
    ],
)
def test_the_examples_of_the_standard(data: bytes, expected: int) -> None:
    assert checksum(data) == expected


def test_pieces_give_what_the_whole_gives() -> None:
    data = np.random.default_rng(0).bytes(1000)
    for cut in (0, 1, 7, 8, 9, 500, 999, 1000):
        assert checksum(data[cut:], checksum(data[:cut])) == checksum(data)


def test_a_masked_checksum_is_what_the_checkpoint_writer_keeps() -> None:
    for data in (b"", b"a", bytes(range(256)) * 5):
        assert masked(checksum(data)) == masked_crc32c(data)


LONG = bytes(range(256)) * 300

# Tags by hand. Literal: size - 1 << 2 up to 60, 60..63 << 2 where the size stands in 1..4 bytes. Copy of up to 11:
# size - 4 << 2 | 1 and three bits of the offset; of up to 64: size - 1 << 2 | 2 or 3, the offset in 2 or 4 bytes.
BY_HAND: dict[str, tuple[bytes, bytes]] = {
    "nothing": (b"\0", b""),
    "a short literal": (b"\x03\x08abc", b"abc"),
    "a literal of 60": (b"\x3c\xec" + b"x" * 60, b"x" * 60),
    "a literal of 61": (b"\x3d\xf0\x3c" + b"x" * 61, b"x" * 61),
    "a literal with a size of two bytes": (varint(300) + b"\xf4\x2b\x01" + LONG[:300], LONG[:300]),
    "a literal with a size of three bytes": (varint(76800) + b"\xf8\xff\x2b\x01" + LONG, LONG),
    "a literal with a size of four bytes": (b"\x01\xfc\0\0\0\0a", b"a"),
    "a copy with an offset of one byte": (b"\x08\x0cabcd\x01\x04", b"abcdabcd"),
    "the longest such copy": (b"\x0c\x00a\x1d\x01", b"a" * 12),
    "such a copy from over 255 bytes before": (
        varint(264) + b"\xf4\x03\x01" + LONG[:260] + b"\x21\x04",
        LONG[:260] + LONG[:4],
    ),
    "a copy with an offset of two bytes": (b"\x05\x08abc\x06\x03\0", b"abcab"),
    "the longest such copy from one byte before": (b"\x41\x00a\xfe\x01\0", b"a" * 65),
    "a copy with an offset of four bytes": (b"\x04\x04ab\x07\x02\0\0\0", b"abab"),
    "a copy that reaches into itself": (b"\x09\x08abc\x16\x03\0", b"abcabcabc"),
    "a copy of a part": (b"\x06\x0cabcd\x06\x03\0", b"abcdbc"),
}


@pytest.mark.parametrize(("data", "expected"), BY_HAND.values(), ids=BY_HAND.keys())
def test_as_worked_out_by_hand(data: bytes, expected: bytes) -> None:
    assert decompress(data) == expected


FAULTS: dict[str, tuple[bytes, str]] = {
    "no bytes": (b"", "the length is cut off"),
    "a length that does not end": (b"\x80", "the length is cut off"),
    "a length of more than 32 bits": (b"\xff" * 6, "the length is cut off or too large"),
    "a bomb": (varint(2**32 - 1) + b"\0a", "7 bytes promise 4294967295"),
    "more than the densest copies give": (varint(200) + b"\0a\xfe\x01\0\xfe\x01\0", "10 bytes promise 200|129 bytes"),
    "less than promised": (b"\x04\x08abc", "3 bytes or more instead of 4"),
    "more than promised": (b"\x02\x08abc", "3 bytes or more instead of 2"),
    "much more than promised": (b"\x02\0a" + b"\xfe\x01\0" * 100, "65 bytes or more instead of 2"),
    "a literal cut off": (b"\x03\x08ab", "a literal is cut off"),
    "a literal's size cut off": (b"\x3d\xf4\x01", "a literal is cut off"),
    "a copy from nowhere": (b"\x04\x01\x01", "a copy from 1 bytes before, of 0"),
    "a copy from before the start": (b"\x05\0a\x01\x02", "a copy from 2 bytes before, of 1"),
    "a copy from itself": (b"\x05\0a\x01\0", "a copy from 0 bytes before"),
    "an offset of one byte cut off": (b"\x05\0a\x01", "an offset is cut off"),
    "an offset of two bytes cut off": (b"\x05\0a\x0e\x01", "an offset is cut off"),
    "an offset of four bytes cut off": (b"\x05\0a\x0f\x01\0\0", "an offset is cut off"),
}


@pytest.mark.parametrize(("data", "message"), FAULTS.values(), ids=FAULTS.keys())
def test_each_fault_is_named(data: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decompress(data)


@given(st.lists(st.sampled_from([b"a", b"ab", b"abcde", b"\0" * 70, b"\xff"]), max_size=60).map(b"".join))
def test_what_was_compressed_comes_back(data: bytes) -> None:
    assert decompress(snappy(data)) == data


@given(st.binary(max_size=60), st.integers(0, 80))
def test_any_bytes_give_what_they_promise_or_a_value_error(data: bytes, promised: int) -> None:
    try:
        assert len(decompress(varint(promised) + data)) == promised
    except ValueError as error:
        assert re.match("snappy: ", str(error))


def test_every_part_of_a_text_is_refused() -> None:
    data = snappy(b"layer/kernel layer/bias layer/kernel layer/bias")
    for length in range(len(data)):
        with pytest.raises(ValueError, match="snappy"):
            decompress(data[:length])


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, b"\x80"),
        (1, b"\x81"),
        (63, b"\xbf"),
        (64, b"\xc0\x40"),
        (-1, b"\x7f"),
        (-64, b"\x40"),
        (-65, b"\x3f\xbf"),
        (8191, b"\xdf\xff"),
        (8192, b"\xe0\x20\x00"),
        (2**31, b"\xf8\x80\x00\x00\x00"),
        (2**55 - 1, b"\xff\x7f\xff\xff\xff\xff\xff\xff"),
    ],
)
def test_numbers(value: int, expected: bytes) -> None:
    assert slice_key("t", ((value, 0),)) == b"\0t\0\1\1\1" + expected + b"\x80"


def test_names_are_escaped_and_dimensions_counted() -> None:
    assert slice_key("a\0b/é", ()) == b"\0a\0\xffb/\xc3\xa9\0\1\0"
    assert slice_key("t", ((0, -1), (0, -1), (2, 3))) == b"\0t\0\1\1\3\x80\x7f\x80\x7f\x82\x83"


def test_keys_sort_as_their_slices_do() -> None:
    starts = [0, 1, 63, 64, 8191, 8192, 2**20, 2**27, 2**31, 2**40, 2**48, 2**54]
    keys = [slice_key("t", ((start, 1),)) for start in starts]
    assert sorted(keys) == keys


def test_what_no_file_has_room_for_is_refused() -> None:
    with pytest.raises(ValueError, match="a slice has the number 36028797018963968"):
        slice_key("t", ((2**55, 1),))


def test_a_file_is_read_also_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"bytes")
    (tmp_path / "link").symlink_to("file")
    assert read_plain_file(tmp_path / "file") == read_plain_file(tmp_path / "link") == b"bytes"


def test_what_has_no_end_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    for path, kind in ((tmp_path / "pipe", "a pipe"), (tmp_path / "link", "a pipe"), (Path("/dev/zero"), "a device")):
        with pytest.raises(OSError, match=f"it is {kind}, expected a file"):
            read_plain_file(path)


def test_what_can_not_be_read_says_why(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(IsADirectoryError):
        read_plain_file(tmp_path)
    with pytest.raises(FileNotFoundError):
        read_plain_file(tmp_path / "absent")
    with pytest.raises(OSError, match="symbolic links"):
        read_plain_file(tmp_path / "loop")


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert read_plain_file(path, 5) == b"12345"
    with pytest.raises(OSError, match="it has more than 4 bytes, the most that are read"):
        read_plain_file(path, 4)
    # A file without contents of its own has the size 0, however much can be read from it.
    with pytest.raises(OSError, match="it has more than 4 bytes"):
        read_plain_file(Path("/proc/self/maps"), 4)


SAVED_MODEL = "tensorflow.SavedModel"


def counted(message: object) -> int:
    """Counts the fields of a parsed message, with those of all messages in it, by protobuf's own reflection."""
    total = 0
    for field, value in message.ListFields():  # type: ignore[attr-defined]
        values = value if field.is_repeated else [value]
        if field.message_type is None:
            total += 1 if field.is_packed else len(values)
        elif field.message_type.GetOptions().map_entry:
            kind = field.message_type.fields_by_name["value"].message_type
            # An entry of a map is a message with two fields.
            total += sum(3 + (counted(value[key]) if kind is not None else 0) for key in value)
        else:
            total += sum(1 + counted(each) for each in values)
    return total


def test_all_fields_of_all_messages_are_counted() -> None:
    data = saved_model(toy_signatures())
    message = message_class(SAVED_MODEL).FromString(data)
    assert num_fields(data, SAVED_MODEL, MAX_FIELDS) == counted(message) > 100


@pytest.mark.parametrize(
    ("data", "count"),
    [
        (b"", 0),
        (proto_field(2, b"") * 7, 7),
        (proto_field(2, proto_field(5, proto_field(1, b"key"))), 3),
        # The type SavedModel has no field 99: its bytes are not looked into.
        (proto_field(99, proto_field(2, b"")), 1),
        # Messages that are cut off, and no messages: parsing them fails.
        (b"\x12", 1),
        (b"\x12\xff", 1),
        (b"\xff" * 30, 2),
        (b"\x12\x7f" + b"\x12\0" * 3, 4),
        (b"\x0d\0\0\0\0\x09\0\0\0\0\0\0\0\0\x08\x01", 3),
    ],
)
def test_any_bytes_have_a_number_of_fields(data: bytes, count: int) -> None:
    assert num_fields(data, SAVED_MODEL, MAX_FIELDS) == count
    assert num_fields(data, SAVED_MODEL, 0) == min(count, 1)


def test_a_saved_model_of_millions_of_empty_messages_is_refused_before_it_is_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "saved_model.pb"
    path.write_bytes(proto_field(2, b"") * 1000 + saved_model(toy_signatures()))
    assert read_meta_graph(path).signature_def
    # With the real limit, the test would take seconds.
    monkeypatch.setattr(protos, "MAX_FIELDS", 1000)
    with pytest.raises(ArtifactError, match=r"saved_model\.pb has .* bytes with more than 1000 protobuf fields"):
        read_meta_graph(path)
    path.write_bytes(saved_model(toy_signatures()))
    assert read_meta_graph(path).signature_def


def test_a_file_of_a_few_large_values_is_read() -> None:
    data = proto_field(2, proto_field(2, proto_field(1, proto_field(1, b"x" * (2 * MAX_FIELDS)))))
    check_num_fields("a file", data, SAVED_MODEL)


def test_an_unknown_message_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        message_class("tensorflow.serving.NoSuchMessage")


def test_nested_messages_are_of_the_classes_that_message_class_gives() -> None:
    request = message_class("tensorflow.serving.PredictRequest")()
    assert type(request.inputs["x"]) is message_class("tensorflow.TensorProto")


@pytest.mark.parametrize(
    "name",
    [
        "tensorflow.SavedModel",
        "tensorflow.serving.GetModelMetadataResponse",
        "tensorflow.serving.GetModelStatusResponse",
        "tensorflow.serving.ReloadConfigRequest",
        "tensorflow.serving.SignatureDefMap",
        "tensorflow.serving.PredictionLog",
    ],
)
def test_every_message_of_the_api_is_there(name: str) -> None:
    assert message_class(name).DESCRIPTOR.full_name == name


def test_a_new_pool_takes_more_files() -> None:
    extra = descriptor_pb2.FileDescriptorProto(name="extra.proto")
    extra.message_type.add().name = "Extra"
    pool = new_pool([extra.SerializeToString()])
    assert pool.FindMessageTypeByName("Extra").name == "Extra"
    assert "Predict" in pool.FindServiceByName("tensorflow.serving.PredictionService").methods_by_name


def exchanged() -> list[float]:
    """Reads a message of TensorFlow Serving's stock stubs; returns the numbers in it."""
    with warnings.catch_warnings():
        # The import of the stubs warns of faults in them, which this project can not mend.
        warnings.simplefilter("ignore")
        from tensorflow_serving.apis import predict_pb2
    theirs = predict_pb2.PredictRequest()
    theirs.inputs["x"].float_val.append(2.5)
    request = message_class("tensorflow.serving.PredictRequest").FromString(theirs.SerializeToString())
    return list(request.inputs["x"].float_val)


@pytest.mark.tf
def test_tensorflow_in_the_same_process_changes_nothing(tf: Any) -> None:
    assert exchanged() == [2.5]


@pytest.mark.tf
def test_tensorflow_before_the_first_message_changes_nothing() -> None:
    code = "import tensorflow\nfrom tests.unit.artifact.test_encodings import exchanged\nassert exchanged() == [2.5]\n"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, cwd=Path(__file__).parents[3])


def record(data: bytes) -> bytes:
    """Returns one record."""
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", masked_crc32c(length)) + data + struct.pack("<I", masked_crc32c(data))


def read(data: bytes) -> list[bytes]:
    return list(read_records(io.BytesIO(data), masked_crc32c))


def test_the_checksum_is_the_published_one_masked() -> None:
    # RFC 3720 gives CRC-32C("123456789") = e3069283. TFRecord masks a checksum: rotated right by 15 bits, plus
    # a282ead8, modulo 2**32.
    crc = 0xE3069283
    assert masked_crc32c(b"123456789") == ((crc >> 15 | crc << 17 & 0xFFFFFFFF) + 0xA282EAD8) % 2**32


def test_records_come_in_order_and_may_be_empty() -> None:
    assert read(record(b"one") + record(b"") + record(b"x" * 3000)) == [b"one", b"", b"x" * 3000]
    assert read(b"") == []


def test_a_file_cut_anywhere_is_refused() -> None:
    data = record(b"one") + record(b"two")
    for length in range(1, len(data)):
        if length != len(data) // 2:
            with pytest.raises(ArtifactError, match="^truncated record at"):
                read(data[:length])


def test_a_changed_byte_is_found_wherever_it_is() -> None:
    data = record(b"one") + record(b"two")
    for index in range(len(data)):
        broken = bytearray(data)
        broken[index] ^= 1
        at = 0 if index < len(data) // 2 else len(data) // 2
        text = rf"^corrupted record at {at}\. Please verify your warmup data is in TFRecord format\.$"
        with pytest.raises(ArtifactError, match=text):
            read(bytes(broken))


@pytest.mark.tf
def test_tensorflows_own_records_are_read(tf: Any, tmp_path: Path) -> None:
    records = [b"", b"one", bytes(range(256)) * 9]
    with tf.io.TFRecordWriter(str(tmp_path / "records")) as writer:
        for data in records:
            writer.write(data)
    assert read((tmp_path / "records").read_bytes()) == records


def test_names_and_numbers_are_each_other_s_inverse() -> None:
    for number in range(1, 34):
        assert tensor_proto.dtype_number(tensor_proto.dtype_name(number)) == number


def test_unknown_numbers_are_invalid() -> None:
    assert tensor_proto.dtype_name(0) == tensor_proto.dtype_name(99) == "invalid"


@pytest.mark.tf
def test_names_are_tensorflow_s() -> None:
    import tensorflow as tf
    from tensorflow.core.framework import types_pb2

    for proto_name, number in types_pb2.DataType.items():
        if proto_name == "DT_INVALID" or number > 100:
            continue
        ours = tensor_proto.dtype_name(number)
        assert ours == tf.as_dtype(number).name, proto_name
        assert tensor_proto.proto_name(ours) == proto_name
