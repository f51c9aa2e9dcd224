"""Keys of slices, byte by byte; test_bundle_tensorflow holds them against what TensorFlow writes."""

from __future__ import annotations

import pytest

from service.artifact.bundle import slice_key


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
