"""A delta is encoded as its format says, and other bytes are refused."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from service.artifact.delta_file import Delta, DeltaFault, decode, encode, fingerprint_of
from tests.deltas import crc32c, delta_bytes


def test_written_as_the_format_says(toy_model: Path) -> None:
    version = toy_model / "1"
    rows = np.array([[1, 2], [3, 4.5]], np.float32)
    made = encode(Delta(9, "user", np.array([4, 0]), rows, fingerprint_of(version), 0, is_forced=True))
    assert made == delta_bytes(version, 9, "user", [4, 0], rows.tolist(), flags=1)
    read = decode(made)
    assert (read.sequence, read.table, read.is_forced, read.ids.tolist()) == (9, "user", True, [4, 0])
    assert read.rows.tolist() == rows.tolist()


def test_no_changed_byte_goes_unnoticed(toy_model: Path) -> None:
    data = delta_bytes(toy_model / "1", 1, "user", [1], [[5, 6]])
    for place in range(len(data)):
        for bit in (1, 128):
            changed = bytearray(data)
            changed[place] ^= bit
            with pytest.raises(DeltaFault):
                decode(bytes(changed))


def test_no_part_is_taken_for_the_whole(toy_model: Path) -> None:
    data = delta_bytes(toy_model / "1", 1, "user", [1], [[5, 6]])
    for size in range(len(data)):
        with pytest.raises(DeltaFault):
            decode(data[:size])
    with pytest.raises(DeltaFault) as fault:
        decode(data + b"\0")
    assert fault.value.reason == "corrupt"


@pytest.mark.parametrize(
    ("offset", "value", "reason"),
    [
        (8, struct.pack("<I", 2), "format"),
        (32, struct.pack("<I", 2), "format"),
        (36, struct.pack("<I", 2**31), "truncated"),
        (40, struct.pack("<Q", 2**60), "truncated"),
        (40, struct.pack("<Q", 0), "format"),
        (16, struct.pack("<Q", 0), "sequence"),
        (16, struct.pack("<Q", 2**63), "sequence"),
        (80, struct.pack("<I", 2**31), "format"),
        (88, b"\xff", "format"),
    ],
)
def test_a_forged_header_is_refused_though_its_checksum_is_right(
    toy_model: Path, offset: int, value: bytes, reason: str
) -> None:
    data = delta_bytes(toy_model / "1", 1, "user", [1], [[5, 6]])[:-4]
    forged = data[:offset] + value + data[offset + len(value) :]
    with pytest.raises(DeltaFault) as fault:
        decode(forged + struct.pack("<I", crc32c(forged)))
    assert fault.value.reason == reason
