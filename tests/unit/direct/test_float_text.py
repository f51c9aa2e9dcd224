"""Floats are written as orjson writes them, and read back as the same floats."""

from __future__ import annotations

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from service.direct import json_text
from service.direct.float_text import MAX_CHARS, SLACK


def written(floats: np.ndarray) -> bytes | None:
    """Returns a vector's text, None where it holds a float that has none."""
    parts = np.zeros((1 + json_text.MORE_PARTS, json_text.PART_COLUMNS), np.int64)
    parts[0, json_text.DIM] = floats.size
    room = np.zeros(floats.size * MAX_CHARS + 2 + SLACK, np.uint8)
    length = json_text.write(floats.ctypes.data, parts.ctypes.data, 1, 1, room.ctypes.data, 1)
    return None if length < 0 else room[:length].tobytes()


def of_bits(bits: np.ndarray) -> np.ndarray:
    """Returns the finite ones of the float32 with these bits."""
    floats = bits.astype(np.uint32).view(np.float32)
    return floats[np.isfinite(floats)]


def check(floats: np.ndarray) -> None:
    """Holds the text against orjson's, and against the floats."""
    text = written(floats)
    assert text is not None
    expected = orjson.dumps(floats, option=orjson.OPT_SERIALIZE_NUMPY)
    if text != expected:
        wrong = next(p for p in zip(text.split(b","), expected.split(b","), strict=True) if p[0] != p[1])
        raise AssertionError(wrong)
    back = np.array(orjson.loads(text), np.float64).astype(np.float32)
    assert back.tobytes() == floats.tobytes()


def test_by_hand() -> None:
    floats = np.array([0.0, -0.0, 1, -1.5, 0.1, 1e-6, 9.5e-7, 1e12, 1e13, -1e-45, 3.4028235e38, 16777216], np.float32)
    assert written(floats) == (
        b"[0.0,-0.0,1.0,-1.5,0.1,0.000001,9.5e-7,1000000000000.0,1e+13,-1e-45,3.4028235e+38,16777216.0]"
    )


@pytest.mark.parametrize("exponent", range(255))
def test_each_exponent(exponent: int) -> None:
    generator = np.random.default_rng([7, exponent])
    ends = np.arange(2000, dtype=np.uint32)
    fractions = np.concatenate([ends, (1 << 23) - 1 - ends, generator.integers(0, 1 << 23, 20_000, np.uint32)])
    bits = np.uint32(exponent << 23) | fractions.astype(np.uint32)
    check(of_bits(np.concatenate([bits, bits | np.uint32(1 << 31)])))


def test_all_powers_of_two_and_their_neighbours() -> None:
    powers = np.arange(255, dtype=np.int64) << 23
    check(of_bits(np.concatenate([powers, powers[1:] - 1, powers + 1])))


def test_what_is_short_in_decimal() -> None:
    # Where an integer, a tenth or a multiple of ten is exactly what a float is, or as far from it as may be.
    numbers = np.arange(1, 20_000)
    scales = [10.0**k for k in range(-12, 15)]
    check(np.concatenate([(numbers * scale).astype(np.float32) for scale in scales]))
    check(np.concatenate([(numbers + 0.5).astype(np.float32), (numbers * 2.0**20 + 1).astype(np.float32)]))


@pytest.mark.parametrize("seed", range(4))
def test_any_bits(seed: int) -> None:
    check(of_bits(np.random.default_rng([8, seed]).integers(0, 1 << 32, 1 << 20, np.uint32)))


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1))
def test_any_list(numbers: list[float]) -> None:
    check(np.array(numbers, np.float32))


@pytest.mark.parametrize("number", ["nan", "inf", "-inf"])
@pytest.mark.parametrize("position", [0, 1, 2])
def test_what_json_has_no_number_for_is_left_to_others(number: str, position: int) -> None:
    floats = np.ones(3, np.float32)
    floats[position] = float(number)
    assert written(floats) is None
