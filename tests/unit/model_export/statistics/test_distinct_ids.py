"""The number of distinct ids is estimated within the error of the method, and states can be merged."""

from __future__ import annotations

import numpy as np
import pytest

from model_export.statistics.table_statistics import empty_registers, estimate, with_ids


# The tolerance is five standard errors of the estimate, which are 1.6 % each.
@pytest.mark.parametrize("distinct", [0, 1, 100, 3_000, 10_000, 12_000, 100_000, 1_000_000])
def test_the_estimate_is_near(distinct: int) -> None:
    ids = np.arange(distinct) * 7 + 3
    registers = with_ids(with_ids(empty_registers(), ids), ids[::2])
    assert estimate(registers) == pytest.approx(distinct, rel=0.08, abs=0.5)


def test_states_merge_by_their_maximum() -> None:
    ids = np.arange(5_000)
    one, other = with_ids(empty_registers(), ids[:3_000]), with_ids(empty_registers(), ids[2_000:])
    np.testing.assert_array_equal(np.maximum(one, other), with_ids(empty_registers(), ids))


def test_large_ids_count_too() -> None:
    registers = with_ids(empty_registers(), np.array([2**62, 2**62 + 1, 2**62]))
    assert estimate(registers) == 2


def test_a_rank_is_the_place_of_the_first_one_bit() -> None:
    # The hash of 0 by splitmix64, computed with Python's integers.
    value = 0x9E3779B97F4A7C15
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB % 2**64
    value ^= value >> 31
    bits = f"{value:064b}"
    registers = with_ids(empty_registers(), np.array([0]))
    assert np.flatnonzero(registers).tolist() == [int(bits[:12], 2)]
    assert registers[int(bits[:12], 2)] == bits[12:].index("1") + 1
