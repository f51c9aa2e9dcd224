"""The kernels agree with the oracle in every combination of their options, and with cases by hand.

Weights are quarters and tables hold whole numbers: sums are exact, and a divisor is zero for both or for neither.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.tables import kernels, numpy_kernels
from tests import oracle
from tests.stored_tables import DTYPES, StoredTable, store
from tests.toy_model import toy_tables

COMBINERS = {"sum": kernels.SUM, "mean": kernels.MEAN, "sqrtn": kernels.SQRTN}
POLICIES = {
    "error": kernels.ERROR,
    "drop": kernels.DROP,
    "drop_negative": kernels.DROP_NEGATIVE,
    "default_row": kernels.DEFAULT_ROW,
    "clamp": kernels.CLAMP,
    "wrap": kernels.WRAP,
}
# Dimensions that the kernel splits into vectors of 64, 32, 8 and 1 numbers in every combination.
WIDE = (8, 9, 32, 41, 64, 73, 96, 105, 135)
NO_WEIGHTS = np.empty(0, np.float32)
TAG = store(toy_tables()["tag"])


def combine(
    table: StoredTable,
    rows: oracle.Rows,
    combiner: str,
    *,
    weights: oracle.Weights | None = None,
    at_least_one: bool = False,
    max_ids: int | None = None,
    truncate: bool = False,
    on_bad_id: str = "error",
    default_row: int = 0,
    positive_only: bool = False,
) -> np.ndarray | int:
    """Returns the output of the combine kernel, or where it stopped; checks its count of ids without a row."""
    values, splits = oracle.ragged(rows)
    # NaN shows each element that the kernel fails to write.
    out = np.full((len(rows), table.numbers.shape[1]), np.nan, np.float32)
    stopped = kernels.combine(
        *table.place,
        values,
        splits,
        NO_WEIGHTS if weights is None else oracle.ragged(weights, "float32")[0],
        positive_only,
        COMBINERS[combiner],
        at_least_one,
        max_ids or 0,
        truncate,
        POLICIES[on_bad_id],
        default_row,
        out,
    )
    read = [row[:max_ids] for row in rows]
    return out if is_done(stopped, [i for row in read for i in row], len(table.numbers)) else int(stopped)


def is_done(stopped: int, ids: list[int], vocabulary_size: int) -> bool:
    """Says whether a kernel has processed all ids; checks that it then counted the ids that have no row."""
    if kernels.MISSING < stopped != kernels.OK:
        return False
    missing = 0 if stopped == kernels.OK else kernels.MISSING - stopped
    assert missing == sum(not 0 <= i < vocabulary_size for i in ids)
    return True


LARGEST_STEP = {"int8": 127, "int4": 7}


@st.composite
def lookups(draw: st.DrawFn) -> tuple[StoredTable, list[list[int]], dict[str, Any]]:
    """Draws a table, rows of ids (some of them bad or repeated, some rows empty), and options."""
    vocabulary_size, dim = draw(st.integers(1, 5)), draw(st.one_of(st.integers(1, 4), st.sampled_from(WIDE)))
    dtype = draw(st.sampled_from(DTYPES))
    # A quantized row keeps a number exactly if it is 0, the row's largest, or the opposite of the largest.
    largest = LARGEST_STEP.get(dtype)
    number = st.integers(-9, 9) if largest is None else st.sampled_from([-largest, 0, largest])
    numbers = st.lists(number, min_size=vocabulary_size * dim, max_size=vocabulary_size * dim)
    table = np.array(draw(numbers), np.float32).reshape(vocabulary_size, dim)
    if largest is not None:
        table *= np.array(
            draw(st.lists(st.sampled_from([0, 0.25, 1, 4]), min_size=vocabulary_size, max_size=vocabulary_size)),
            np.float32,
        )[:, None]
    good = st.integers(0, vocabulary_size - 1)
    ids = st.one_of(good, good, good, st.sampled_from([-1, vocabulary_size, -(2**63), 2**63 - 1]))
    rows = draw(st.lists(st.lists(ids, max_size=5), max_size=5))
    quarters = st.integers(-8, 8).map(lambda n: n / 4)
    weights = [draw(st.lists(quarters, min_size=len(row), max_size=len(row))) for row in rows]
    options = {
        "combiner": draw(st.sampled_from(sorted(COMBINERS))),
        "weights": weights if any(weights) and draw(st.booleans()) else None,
        "at_least_one": draw(st.booleans()),
        "max_ids": draw(st.sampled_from([None, 1, 2, 3])),
        "truncate": draw(st.booleans()),
        "on_bad_id": draw(st.sampled_from(sorted(POLICIES))),
        "default_row": draw(good),
        "positive_only": draw(st.booleans()),
    }
    return store(table, dtype, offset=draw(st.integers(0, 4))), rows, options


@given(lookups())
def test_combine_gives_what_the_oracle_gives(drawn: tuple[StoredTable, list[list[int]], dict[str, Any]]) -> None:
    table, rows, options = drawn
    found = combine(table, rows, **options)
    try:
        expected = oracle.combine(table.numbers, rows, **options)
    except oracle.Refused as refused:
        assert isinstance(found, int)
        if found >= 0:
            assert str(refused) == f"id {[i for row in rows for i in row][found]}"
        else:
            assert str(refused) == f"row {kernels.TOO_MANY - found}"
        return
    assert isinstance(found, np.ndarray)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=0)


@given(lookups())
def test_a_batch_equals_its_rows_run_alone(drawn: tuple[StoredTable, list[list[int]], dict[str, Any]]) -> None:
    table, rows, options = drawn
    together = combine(table, rows, **options)
    weights = options.pop("weights")
    alone = [
        combine(table, [row], **options, weights=None if weights is None else [weights[r]])
        for r, row in enumerate(rows)
    ]
    if isinstance(together, np.ndarray):
        assert all(np.array_equal(together[r : r + 1], row) for r, row in enumerate(alone))
    else:
        assert any(isinstance(row, int) for row in alone)


@given(st.lists(st.integers(-2, 6), max_size=6), st.sampled_from(sorted(POLICIES)), st.integers(0, 3))
def test_gather_gives_what_the_oracle_gives(ids: list[int], policy: str, default_row: int) -> None:
    out = np.full((len(ids), 3), np.nan, np.float32)
    stopped = kernels.gather(*TAG.place, np.array(ids, np.int64), POLICIES[policy], default_row, out)
    try:
        expected = oracle.gather(TAG.numbers, ids, on_bad_id=policy, default_row=default_row)
    except oracle.Refused as refused:
        assert str(refused) == f"id {ids[stopped]}"
        return
    assert is_done(stopped, ids, len(TAG.numbers))
    assert np.array_equal(out, expected)


def sequence(
    table: StoredTable, rows: oracle.Rows, length: int, *, on_bad_id: str = "error", default_row: int = 0
) -> np.ndarray | int:
    """Returns the rows that the sequence kernel wrote, or the position where it stopped."""
    out = np.full((len(rows), length, table.numbers.shape[1]), np.nan, np.float32)
    stopped = kernels.sequence(*table.place, *oracle.ragged(rows), POLICIES[on_bad_id], default_row, out)
    return out if is_done(stopped, [i for row in rows for i in row[:length]], len(table.numbers)) else int(stopped)


@given(lookups(), st.integers(1, 6))
def test_sequence_gives_what_the_oracle_gives(
    drawn: tuple[StoredTable, list[list[int]], dict[str, Any]], length: int
) -> None:
    table, rows, options = drawn
    policy = {name: options[name] for name in ("on_bad_id", "default_row")}
    found = sequence(table, rows, length, **policy)
    try:
        expected = oracle.sequence(table.numbers, rows, length, **policy)
    except oracle.Refused as refused:
        assert isinstance(found, int)
        assert str(refused) == f"id {[i for row in rows for i in row][found]}"
        return
    assert isinstance(found, np.ndarray)
    assert np.array_equal(found, expected)


SEQUENCES_BY_HAND: dict[str, tuple[list[list[int]], str, list[list[list[float]]]]] = {
    "shorter, as long, longer, empty": (
        [[3], [1, 2], [2, 1, 3], []],
        "error",
        [[[3, 9, 1], [0, 0, 0]], [[1, 1, 1], [2, 4, 1]], [[2, 4, 1], [1, 1, 1]], [[0, 0, 0], [0, 0, 0]]],
    ),
    "no rows": ([], "error", []),
    "a bad id behind the cut": ([[1, 2, 99, -1]], "error", [[[1, 1, 1], [2, 4, 1]]]),
    "a dropped id leaves its place empty": ([[-1, 2], [9]], "drop", [[[0, 0, 0], [2, 4, 1]], [[0, 0, 0], [0, 0, 0]]]),
    "only negative ids dropped": ([[-1, 2]], "drop_negative", [[[0, 0, 0], [2, 4, 1]]]),
    "nearest row": ([[-5, 4]], "clamp", [[[0, 0, 1], [3, 9, 1]]]),
    "counted from the end": ([[-4, -1]], "wrap", [[[0, 0, 1], [3, 9, 1]]]),
    "default row": ([[4]], "default_row", [[[2, 4, 1], [0, 0, 0]]]),
}


@pytest.mark.parametrize(("rows", "policy", "expected"), SEQUENCES_BY_HAND.values(), ids=SEQUENCES_BY_HAND.keys())
def test_sequences_as_worked_out_by_hand(rows: list[list[int]], policy: str, expected: list[list[list[float]]]) -> None:
    found = sequence(TAG, rows, 2, on_bad_id=policy, default_row=2)
    assert isinstance(found, np.ndarray)
    assert np.array_equal(found, np.array(expected, np.float32).reshape(-1, 2, 3))


@pytest.mark.parametrize(
    ("rows", "policy", "stopped"),
    [([[1], [0, 4]], "error", 2), ([[-1]], "error", 0), ([[-1, 1], [4]], "drop_negative", 2)],
)
def test_a_sequence_stops_at_the_first_bad_id(rows: list[list[int]], policy: str, stopped: int) -> None:
    assert sequence(TAG, rows, 2, on_bad_id=policy) == stopped


# Row i of the table is [i, i*i, 1].
BY_HAND: dict[str, tuple[list[list[int]], dict[str, Any], list[list[float]]]] = {
    "sum": ([[1, 2], [3]], {"combiner": "sum"}, [[3, 5, 2], [3, 9, 1]]),
    "mean": ([[1, 2], [3]], {"combiner": "mean"}, [[1.5, 2.5, 1], [3, 9, 1]]),
    "sqrtn": ([[1, 1, 3, 3]], {"combiner": "sqrtn"}, [[4, 10, 2]]),
    "repeated id": ([[2, 2]], {"combiner": "mean"}, [[2, 4, 1]]),
    "empty first, middle, last": (
        [[], [1], [], [2], []],
        {"combiner": "mean"},
        [[0, 0, 0], [1, 1, 1], [0, 0, 0], [2, 4, 1], [0, 0, 0]],
    ),
    "no rows": ([], {"combiner": "mean"}, []),
    "weighted sum": ([[1, 2]], {"combiner": "sum", "weights": [[2, 3]]}, [[8, 14, 5]]),
    "weighted mean": ([[1, 2]], {"combiner": "mean", "weights": [[1, 3]]}, [[1.75, 3.25, 1]]),
    "weighted sqrtn": ([[1, 2]], {"combiner": "sqrtn", "weights": [[3, 4]]}, [[2.2, 3.8, 1.4]]),
    "weights that cancel out": ([[1, 2]], {"combiner": "mean", "weights": [[1, -1]]}, [[0, 0, 0]]),
    "weights of zero": ([[1, 2]], {"combiner": "sqrtn", "weights": [[0, 0]]}, [[0, 0, 0]]),
    "mean of half an id on the tensor core": (
        [[2], [2]],
        {"combiner": "mean", "weights": [[0.5], [4]], "at_least_one": True},
        [[1, 2, 0.5], [2, 4, 1]],
    ),
    "the same on the cpu": ([[2]], {"combiner": "mean", "weights": [[0.5]]}, [[2, 4, 1]]),
    "K ids": ([[1, 2, 3]], {"combiner": "sum", "max_ids": 3}, [[6, 14, 3]]),
    "K + 1 ids, cut": ([[1, 2, 3, 3]], {"combiner": "sum", "max_ids": 3, "truncate": True}, [[6, 14, 3]]),
    "a bad id behind the cut": ([[1, 99]], {"combiner": "sum", "max_ids": 1, "truncate": True}, [[1, 1, 1]]),
    "dropped ids": ([[-1, 2, 4], [9]], {"combiner": "mean", "on_bad_id": "drop"}, [[2, 4, 1], [0, 0, 0]]),
    "a dropped id takes its weight along": (
        [[9, 2]],
        {"combiner": "mean", "weights": [[7, 2]], "on_bad_id": "drop"},
        [[2, 4, 1]],
    ),
    "default row": (
        [[-1, 1], [4]],
        {"combiner": "sum", "on_bad_id": "default_row", "default_row": 3},
        [[4, 10, 2], [3, 9, 1]],
    ),
    "negative ids dropped": (
        [[-1, 2, 3], [-(2**63)]],
        {"combiner": "mean", "on_bad_id": "drop_negative", "weights": [[7, 3, 1], [2]]},
        [[2.25, 5.25, 1], [0, 0, 0]],
    ),
    "nearest row": (
        [[-1, 1], [4], [2**63 - 1, -(2**63)]],
        {"combiner": "sum", "on_bad_id": "clamp"},
        [[1, 1, 2], [3, 9, 1], [3, 9, 2]],
    ),
    "counted from the end": (
        [[-1, 1], [-4]],
        {"combiner": "sum", "on_bad_id": "wrap"},
        [[4, 10, 2], [0, 0, 1]],
    ),
    "weights of 0 and less left out": (
        [[1, 2], [1, 3], [2]],
        {"combiner": "mean", "weights": [[0, 2], [0.5, -1], [-3]], "positive_only": True},
        [[2, 4, 1], [1, 1, 1], [0, 0, 0]],
    ),
    "a weight that is no number left out": (
        [[1, 2]],
        {"combiner": "sum", "weights": [[float("nan"), 2]], "positive_only": True},
        [[4, 8, 2]],
    ),
    "no weights, none left out": ([[1, 2]], {"combiner": "sum", "positive_only": True}, [[3, 5, 2]]),
}


@pytest.mark.parametrize(("rows", "options", "expected"), BY_HAND.values(), ids=BY_HAND.keys())
def test_combines_as_worked_out_by_hand(
    rows: list[list[int]], options: dict[str, Any], expected: list[list[float]]
) -> None:
    found = combine(TAG, rows, **options)
    assert isinstance(found, np.ndarray)
    assert np.array_equal(found, np.array(expected, np.float32).reshape(-1, 3))
    np.testing.assert_allclose(
        oracle.combine(TAG.numbers, rows, **options), found, rtol=1e-6, err_msg="the oracle itself"
    )


@pytest.mark.parametrize(
    ("rows", "max_ids", "stopped"),
    [
        ([[1], [1, -1]], None, 2),
        ([[4]], None, 0),
        ([[0], [1, 2, 3]], 2, kernels.TOO_MANY - 1),
        ([[1, 2, 3], [9]], 2, kernels.TOO_MANY),
        ([[9], [1, 2, 3]], 2, 0),
    ],
)
def test_stops_at_the_first_fault(rows: list[list[int]], max_ids: int | None, stopped: int) -> None:
    assert combine(TAG, rows, "sum", max_ids=max_ids) == stopped


def test_nan_and_infinity_stay_in_their_row_and_column() -> None:
    table = np.array([[np.nan, 1], [np.inf, 1], [2, 1]], np.float32)
    found = combine(store(table), [[0, 2], [1, 2], [2], []], "sum")
    assert np.array_equal(found, np.array([[np.nan, 2], [np.inf, 2], [2, 1], [0, 0]]), equal_nan=True)


def test_an_empty_row_is_zeros_whatever_row_zero_holds() -> None:
    table = np.full((2, 2), np.nan, np.float32)
    assert np.array_equal(combine(store(table), [[]], "mean", at_least_one=True, max_ids=3), np.zeros((1, 2)))


@pytest.mark.parametrize("dtype", DTYPES)
def test_tables_of_every_kind_by_hand(dtype: str) -> None:
    # The rows are [1, 2], [0, 0] and [-4, 8]. Their scales are 2/127, 0 and 8/127 in int8, and 2/7, 0 and 8/7 in int4.
    table = store(np.array([[1, 2], [0, 0], [-4, 8]]), dtype)
    half, quarter = 1, -4
    if dtype in LARGEST_STEP:
        # Half of a row's largest number is 63.5 steps of int8, which round to 64, and just below 3.5 steps of int4,
        # because the scale is rounded up.
        steps = {"int8": 64, "int4": 3}[dtype]
        half, quarter = steps * np.float32(2 / LARGEST_STEP[dtype]), -steps * np.float32(8 / LARGEST_STEP[dtype])
    found = combine(table, [[0], [1], [2], [0, 2]], "sum")
    assert isinstance(found, np.ndarray)
    expected = np.array([[half, 2], [0, 0], [quarter, 8], [half + quarter, 10]])
    np.testing.assert_allclose(found, expected, rtol=1e-6)


# Maps 16 bits to the number that they mean: a float16 of IEEE 754, or the upper half of a float32.
HALVES = {0x3C00: 1.0, 0xC000: -2.0, 0x7BFF: 65504.0, 0x0001: 2.0**-24, 0x03FF: 1023 * 2.0**-24, 0x8000: -0.0}
BFLOATS = {0x3F80: 1.0, 0xC000: -2.0, 0x4049: 3.140625, 0x7F7F: 255 * 2.0**120, 0x0080: 2.0**-126, 0x8000: -0.0}
INFINITIES = {
    "float16": {0x7C00: np.inf, 0xFC00: -np.inf, 0x7E00: np.nan},
    "bfloat16": {0x7F80: np.inf, 0x7FC0: np.nan},
}


@pytest.mark.parametrize(("dtype", "bits"), [("float16", HALVES), ("bfloat16", BFLOATS), *INFINITIES.items()])
def test_bits_are_the_numbers_that_they_stand_for(dtype: str, bits: dict[int, float]) -> None:
    raw = np.array([list(bits)], "<u2").view("<f2" if dtype == "float16" else "<u2")
    expected = np.array([list(bits.values())], np.float32)
    table = StoredTable(dtype, expected, raw, NO_WEIGHTS)
    out = np.empty_like(expected)
    assert kernels.gather(*table.place, np.zeros(1, np.int64), kernels.ERROR, 0, out) == kernels.OK
    assert np.array_equal(out, expected, equal_nan=True)
    assert np.array_equal(np.signbit(out), np.signbit(expected)) or dtype in INFINITIES


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_number_of_a_kind_is_read_as_numpy_reads_it(dtype: str) -> None:
    if dtype == "int8":
        raw, scales = np.arange(-127, 128, dtype=np.int8)[None], np.array([0.3], np.float32)
        expected = raw.astype(np.float32) * scales
    elif dtype == "int4":
        # Each byte has two int4 numbers in two's complement; the low half is the first.
        raw, scales = np.arange(256, dtype=np.uint8)[None], np.array([0.3], np.float32)
        signed = [(half ^ 8) - 8 for byte in range(256) for half in (byte & 15, byte >> 4)]
        expected = np.array([signed], np.float32) * scales
    else:
        bits = np.arange(1 << 16, dtype=np.uint32)[None]
        raw, scales = bits.astype(np.uint16), NO_WEIGHTS
        expected = (bits << 16).view(np.float32)
        if dtype == "float16":
            raw = raw.view(np.float16)
            expected = raw.astype(np.float32)
        elif dtype == "float32":
            raw = expected
    table = StoredTable(dtype, expected, raw, scales)
    out = np.empty_like(expected)
    assert kernels.gather(*table.place, np.zeros(1, np.int64), kernels.ERROR, 0, out) == kernels.OK
    is_number = ~np.isnan(expected)
    assert out[is_number].tobytes() == expected[is_number].tobytes()
    assert np.isnan(out[~is_number]).all()


@given(lookups(), st.integers(0, 2**32 - 1))
def test_sums_are_added_in_float32_in_the_order_of_the_ids(
    drawn: tuple[StoredTable, list[list[int]], dict[str, Any]], seed: int
) -> None:
    drawn_table, rows, _ = drawn
    size = len(drawn_table.numbers)
    random = np.random.default_rng(seed)
    table = store(random.normal(size=drawn_table.numbers.shape), drawn_table.dtype)
    rows = [[i for i in row if 0 <= i < size] for row in rows]
    weights = [random.normal(size=len(row)).astype(np.float32).tolist() for row in rows]
    for chosen in (None, weights):
        expected = np.zeros((len(rows), table.numbers.shape[1]), np.float32)
        for r, row in enumerate(rows):
            for k, row_id in enumerate(row):
                expected[r] += table.numbers[row_id] * np.float32(1 if chosen is None else chosen[r][k])
        found = combine(table, rows, "sum", weights=chosen if any(rows) else None)
        assert isinstance(found, np.ndarray)
        assert found.tobytes() == expected.tobytes()


def test_float32_is_kept_to_the_last_bit_where_nothing_is_added() -> None:
    table = np.array([[np.nextafter(np.float32(1), np.float32(2)), 1e-45, -0.0, 3.4e38]], np.float32)
    stored, out = store(table), np.empty((1, 4), np.float32)
    assert kernels.gather(*stored.place, np.zeros(1, np.int64), kernels.ERROR, 0, out) == kernels.OK
    assert out.tobytes() == table.tobytes()


@pytest.mark.parametrize("dim", [1, 2, 3, 7, 8, 9, 15, 31, 32, 33, 63, 64, 65, 97, 129])
def test_int4_rows_of_every_width_are_read_to_their_last_number(dim: int) -> None:
    random = np.random.default_rng(dim)
    table = store(random.normal(size=(7, dim)), "int4")
    ids = random.integers(0, 7, 40)
    out = np.full((40, dim + 1), 5, np.float32)
    assert kernels.gather(*table.place, ids, kernels.ERROR, 0, out) == kernels.OK
    assert out[:, :dim].tobytes() == table.numbers[ids].tobytes()
    # With an odd dimension, int4 rows end in half a byte; the kernel does not write that half's number.
    assert (out[:, dim] == 5).all()
    found = combine(table, [ids.tolist()], "sum")
    total = np.zeros(dim, np.float32)
    for row in ids:
        total += table.numbers[row]
    assert isinstance(found, np.ndarray) and found[0].tobytes() == total.tobytes()
    steps = np.empty((1, 50, dim), np.float32)
    assert kernels.sequence(*table.place, ids, np.array([0, 40]), kernels.ERROR, 0, steps) == kernels.OK
    assert steps[0, :40].tobytes() == table.numbers[ids].tobytes() and not steps[0, 40:].any()


SMALL = np.array([0.0, -0.0, 1e-39, -1e-39, 1.5e-38, -1.2e-38], np.float32)


@pytest.mark.skipif(kernels.combine is numpy_kernels.combine, reason="the native core is not built")
@pytest.mark.parametrize("is_weighted", [False, True])
def test_both_kernels_give_the_same_bits_for_small_numbers(is_weighted: bool) -> None:
    random = np.random.default_rng(8)
    for dim in (1, 8, 11, 41) * 6:
        table = random.standard_normal((5, dim)).astype(np.float32)
        is_small = random.random(table.shape) < 0.5
        table[is_small] = random.choice(SMALL, is_small.sum())
        lengths = random.choice([0, 1, 1, 2, 9, 17, 20], 6)
        splits = np.concatenate([[0], np.cumsum(lengths)])
        ids = random.integers(0, 5, splits[-1])
        weights = random.choice(np.array([1, -1, 0.5, 0, 1e-39], np.float32), splits[-1]) if is_weighted else NO_WEIGHTS
        orders = (
            kernels.IN_ORDER,
            kernels.FOUR_LANES,
            *(() if is_weighted else (kernels.BLOCKS_OF_8, kernels.SEGMENT_MEAN)),
        )
        for combiner, order, positive_only in itertools.product(COMBINERS.values(), orders, (False, True)):
            found = [np.full((6, dim), np.nan, np.float32) for _ in range(2)]
            for module, out in zip((kernels, numpy_kernels), found, strict=True):
                stored = (kernels.FLOAT32, table.view(np.uint8).reshape(-1), np.empty(0, np.uint8), *table.shape)
                options = (positive_only, combiner + order, False, 0, False, kernels.ERROR, 0)
                assert module.combine(*stored, ids, splits, weights, *options, out) == kernels.OK
            one, other = (array.view(np.uint32) for array in found)
            assert ((one == other) | (np.isnan(found[0]) & np.isnan(found[1]))).all(), (combiner, order, lengths)
