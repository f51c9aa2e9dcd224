"""Packed varints are read as protobuf reads them, wherever eight bytes end."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from service.direct.memory import address_of
from service.direct.varints import DONE, UNUSUAL, read_varints


def packed(numbers: list[int]) -> bytes:
    """Returns int64 as protobuf writes them: seven bits at a time, the lowest first."""
    data = bytearray()
    for number in numbers:
        number &= (1 << 64) - 1
        while number > 0x7F:
            data.append(number & 0x7F | 0x80)
            number >>= 7
        data.append(number)
    return bytes(data)


def read(data: bytes, count: int) -> tuple[int, list[int]]:
    """Returns what is said of so many integers, and what they are."""
    out = np.full(count, -99, np.int64)
    # Behind the bytes lie others that end no varint, and must not be looked at.
    held = data + b"\xff" * 16
    return read_varints(address_of(held), len(data), out), out.tolist()


# As many bits as an id may have: each number of bytes from one to ten.
numbers = st.integers(0, 63).flatmap(lambda bits: st.integers(-1 if bits == 63 else 0, (1 << bits) - 1))


# Mostly as many bits as ids have, which are read four at a time.
ids = st.lists(
    st.one_of(st.integers(0, 200), st.integers(0, 2**28 - 1), st.integers(0, 2**28 - 1), numbers), max_size=60
)


@given(st.one_of(st.lists(numbers, max_size=40), ids, st.lists(st.integers(0, 2**29), min_size=20, max_size=60)))
@example([])
@example([1] * 17)
@example([127, 128, 16383, 16384, 2**21 - 1, 2**21, 2**28, 2**35, 2**42, 2**49, 2**56 - 1, 2**56, -1, -(2**63)])
@example([2**49 - 1, 5, 2**56 - 1, 6, 2**56, 7])
def test_they_are_what_was_written(written: list[int]) -> None:
    assert read(packed(written), len(written)) == (DONE, written)


@given(st.lists(numbers, min_size=1, max_size=20))
def test_another_number_of_them_is_told(written: list[int]) -> None:
    data = packed(written)
    assert read(data, len(written) + 1)[0] == UNUSUAL
    assert read(data, len(written) - 1)[0] == UNUSUAL
    assert read(data + b"\x80", len(written) + 1)[0] == UNUSUAL


@pytest.mark.parametrize("before", range(12))
def test_more_than_ten_bytes_are_none(before: int) -> None:
    assert read(packed([3] * before) + b"\x80" * 10 + b"\x01", before + 1)[0] == UNUSUAL


@pytest.mark.parametrize("before", range(9))
def test_what_is_above_64_bits_is_lost(before: int) -> None:
    assert read(b"\x05" * before + b"\xff" * 9 + b"\x7f", before + 1) == (DONE, [5] * before + [-1])
