"""Fingerprint64 without TensorFlow: known values, and that it reads nothing but the string itself."""

from __future__ import annotations

import numpy as np
import pytest

from service.native_tables import NATIVE_TABLES
from service.tables.fingerprint import fingerprint64


def fingerprint(data: bytes, at: int, length: int, implementation: str) -> int:
    """Returns the fingerprint of data[at : at + length], by numpy's or the native implementation."""
    if implementation == "native":
        return int(NATIVE_TABLES.fingerprint64(np.frombuffer(data, np.uint8), at, length))
    return fingerprint64(data[at : at + length])


# Fingerprints from tf.fingerprint, of one text for each range of lengths that FarmHash treats differently.
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"", 0x9AE16A3B2F90404F),
        (b"red", 0xDC1119C86E561F6),
        (b"abcd", 0x1A5502DE4A1F8101),
        ("grün".encode() * 2, 0x26865549676AFCEA),
        (b"-9223372036854775808", 0x14B9BC6F6D2837E0),
        (b"0123456789" * 5, 0xCD3C9ED8CE499908),
        (b"0123456789" * 20, 0x861A2CA290DC8395),
    ],
)
def test_known_values(text: bytes, expected: int, implementation: str) -> None:
    assert fingerprint(text, 0, len(text), implementation) == expected


@pytest.mark.parametrize("length", [0, 1, 3, 4, 7, 8, 16, 17, 32, 33, 64, 65, 128, 129, 300])
def test_what_lies_around_a_string_does_not_matter(length: int, implementation: str) -> None:
    text = np.random.default_rng(length).bytes(length)
    alone = fingerprint(text, 0, length, implementation)
    for before, behind in ((b"\0" * 64, b"\0" * 64), (b"\xff", b"\xff" * 9)):
        assert fingerprint(before + text + behind, len(before), length, implementation) == alone


def test_every_byte_counts(implementation: str) -> None:
    text = bytearray(130)
    found = {fingerprint(bytes(text), 0, 130, implementation)}
    for i in range(130):
        text[i] = 1
        found.add(fingerprint(bytes(text), 0, 130, implementation))
        text[i] = 0
    assert len(found) == 131
