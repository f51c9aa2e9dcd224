"""Fingerprint64 without TensorFlow: known values, and that it reads nothing but the string itself."""

from __future__ import annotations

import numpy as np
import pytest

from service.lookup.fingerprint import fingerprint64


# What tf.fingerprint gives: one text for each path by length.
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
def test_known_values(text: bytes, expected: int) -> None:
    assert int(fingerprint64(np.frombuffer(text, np.uint8), 0, len(text))) == expected


@pytest.mark.parametrize("length", [0, 1, 3, 4, 7, 8, 16, 17, 32, 33, 64, 65, 128, 129, 300])
def test_what_lies_around_a_string_does_not_matter(length: int) -> None:
    text = np.random.default_rng(length).bytes(length)
    alone = fingerprint64(np.frombuffer(text, np.uint8), 0, length)
    for before, behind in ((b"\0" * 64, b"\0" * 64), (b"\xff", b"\xff" * 9)):
        data = np.frombuffer(before + text + behind, np.uint8)
        assert fingerprint64(data, len(before), length) == alone


def test_every_byte_counts() -> None:
    text = bytearray(130)
    found = {int(fingerprint64(np.frombuffer(bytes(text), np.uint8), 0, 130))}
    for i in range(130):
        text[i] = 1
        found.add(int(fingerprint64(np.frombuffer(bytes(text), np.uint8), 0, 130)))
        text[i] = 0
    assert len(found) == 131
