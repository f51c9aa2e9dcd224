"""Estimates the number of distinct ids in a stream, in 4096 bytes of state.

Source: Flajolet et al., "HyperLogLog: the analysis of a near-optimal cardinality estimation algorithm" (2007), with its
linear counting for small numbers; the hash is splitmix64's finalizer (Steele et al., OOPSLA 2014).
"""

from __future__ import annotations

import numpy as np

from service.types import Array

_BITS = 12
REGISTERS = 1 << _BITS
"""Number of registers; the standard error is 1.04 / sqrt(REGISTERS), 1.6%."""


def empty_registers() -> Array:
    """Returns the registers of a HyperLogLog counter that has seen no ids: [REGISTERS] uint8."""
    return np.zeros(REGISTERS, np.uint8)


def with_ids(registers: Array, ids: Array) -> Array:
    """Returns a HyperLogLog counter's registers after [n] more ids. Two counters merge by the elementwise maximum."""
    hashes = _hashed(np.asarray(ids, np.int64).astype(np.uint64))
    register = (hashes >> np.uint64(64 - _BITS)).astype(np.int64)
    rest = hashes << np.uint64(_BITS)
    # The rank of a hash is one more than the number of leading zeros of `rest`, which is 64 minus the exponent that
    # frexp returns. Rounding to a double can add one to the exponent if the bits are almost all ones, which happens to
    # one hash in 2**53.
    _, exponent = np.frexp(rest.astype(np.float64))
    rank = np.where(rest == 0, 64 - _BITS + 1, 65 - exponent)
    after = registers.copy()
    np.maximum.at(after, register, rank.astype(np.uint8))
    return after


def estimate(registers: Array) -> int:
    empty = int(np.count_nonzero(registers == 0))
    raw = 0.7213 / (1 + 1.079 / REGISTERS) * REGISTERS**2 / float(np.sum(2.0 ** -registers.astype(np.float64)))
    if raw <= 2.5 * REGISTERS and empty:
        return round(REGISTERS * float(np.log(REGISTERS / empty)))
    return round(raw)


def _hashed(values: Array) -> Array:
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(values ^ (values >> np.uint64(31)))
