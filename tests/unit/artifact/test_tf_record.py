"""Reads TFRecord files, and says what is wrong with broken ones."""

from __future__ import annotations

import io
import struct
from pathlib import Path
from typing import Any

import pytest

from service.artifact.tf_record import read_records
from service.errors import ArtifactError
from tests.toy_model import masked_crc32c


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
