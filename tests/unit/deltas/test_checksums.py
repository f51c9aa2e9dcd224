"""The checksum agrees with one written byte by byte, at every size where the way of counting changes."""

from __future__ import annotations

import numpy as np
import pytest

from service.deltas.checksums import crc32c
from tests import deltas


@pytest.mark.parametrize("size", [0, 1, 2, 255, 8191, 8192, 8193, 40_001, (1 << 20) + 4097])
def test_it_is_the_one_of_the_format(size: int) -> None:
    data = np.random.default_rng(size).bytes(size)
    third = size // 3
    assert crc32c(data) == crc32c(data[third:], crc32c(data[:third]))
    if size < 1 << 20:
        assert crc32c(data) == deltas.crc32c(data)


def test_known_answers() -> None:
    # RFC 3720, appendix B.4.
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(b"\xff" * 32) == 0x62A8AB43
    assert crc32c(bytes(range(32))) == 0x46DD794E
