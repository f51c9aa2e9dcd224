"""Decodes every kind of element of raw snappy, and raises ValueError for any other bytes."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.artifact.bundle import decompress
from tests.toy_model import snappy, varint

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
