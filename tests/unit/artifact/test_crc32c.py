"""CRC-32C agrees with the examples of RFC 3720, and checksums of pieces agree with those of the whole."""

from __future__ import annotations

import numpy as np
import pytest

from service.artifact.hashes import crc32c, masked
from tests.toy_model import masked_crc32c


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
