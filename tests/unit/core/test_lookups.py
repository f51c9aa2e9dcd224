"""The core and the reference look up alike: as the oracle in every combination of the options, and as cases by hand.

Weights are quarters and tables hold whole numbers: sums are exact, and a divisor is zero for both or for neither.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.artifact.manifest import LookupFeature
from service.errors import InvalidRequest
from tests import oracle
from tests.feature_lookups import WHERE, Where, combine, gather, in_oracle, looked_up
from tests.stored_tables import DTYPES, StoredTable, store, unaligned
from tests.toy_model import toy_tables

COMBINERS = ("sum", "mean", "sqrtn")
POLICIES = ("error", "drop", "drop_negative", "default_row", "clamp", "wrap")
# Dimensions that the core splits into vectors of 64, 32, 8 and 1 numbers in every combination.
WIDE = (8, 9, 32, 41, 64, 73, 96, 105, 135)
NO_SCALES = np.empty(0, np.float32)
TAG = store(toy_tables()["tag"])


@pytest.fixture(params=WHERE)
def where(request: pytest.FixtureRequest) -> Where:
    """Where a test looks up: in the core, and in the reference."""
    found: Where = request.param
    return found


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
        "combiner": draw(st.sampled_from(COMBINERS)),
        "weights": weights if any(weights) and draw(st.booleans()) else None,
        "mean_divisor": draw(st.sampled_from(["sum_of_weights", "at_least_one"])),
        "max_ids_per_row": draw(st.sampled_from([None, 1, 2, 3])),
        "on_too_many_ids": draw(st.sampled_from(["error", "truncate"])),
        "on_bad_id": draw(st.sampled_from(POLICIES)),
        "default_row": draw(good),
        "on_nonpositive_weight": draw(st.sampled_from(["keep", "drop"])),
    }
    return store(table, dtype, offset=draw(st.integers(0, 4))), rows, options


Drawn = tuple[StoredTable, list[list[int]], dict[str, Any]]


@given(lookups())
def test_combines_as_the_oracle_does(drawn: Drawn) -> None:
    table, rows, options = drawn
    weights = options.pop("weights")
    for where in WHERE:
        try:
            expected = oracle.combine(table.numbers, rows, weights=weights, **in_oracle(options))
        except oracle.Refused as refused:
            with pytest.raises(InvalidRequest, match=f"{refused} "):
                combine(where, table, rows, weights=weights, **options)
            continue
        found = combine(where, table, rows, weights=weights, **options)
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=0)
        alone = [
            combine(where, table, [row], **options, weights=None if weights is None else [weights[r]])
            for r, row in enumerate(rows)
        ]
        assert all(np.array_equal(found[r : r + 1], row) for r, row in enumerate(alone))


@given(st.lists(st.integers(-2, 6), max_size=6), st.sampled_from(POLICIES), st.integers(0, 3))
def test_gathers_as_the_oracle_does(ids: list[int], policy: str, default_row: int) -> None:
    for where in WHERE:
        try:
            expected = oracle.gather(TAG.numbers, ids, on_bad_id=policy, default_row=default_row)
        except oracle.Refused as refused:
            with pytest.raises(InvalidRequest, match=f"{refused} "):
                gather(where, TAG, ids, on_bad_id=policy, default_row=default_row)
        else:
            assert np.array_equal(gather(where, TAG, ids, on_bad_id=policy, default_row=default_row), expected)


@given(lookups(), st.integers(1, 6))
def test_makes_sequences_as_the_oracle_does(drawn: Drawn, length: int) -> None:
    table, rows, options = drawn
    policy = {name: options[name] for name in ("on_bad_id", "default_row")}
    for where in WHERE:
        try:
            expected = oracle.sequence(table.numbers, rows, length, **policy)
        except oracle.Refused as refused:
            with pytest.raises(InvalidRequest, match=f"{refused} "):
                combine(where, table, rows, max_sequence_length=length, **policy)
        else:
            assert np.array_equal(combine(where, table, rows, max_sequence_length=length, **policy), expected)


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
def test_sequences_as_worked_out_by_hand(
    where: Where, rows: list[list[int]], policy: str, expected: list[list[list[float]]]
) -> None:
    found = combine(where, TAG, rows, max_sequence_length=2, on_bad_id=policy, default_row=2)
    assert np.array_equal(found, np.array(expected, np.float32).reshape(-1, 2, 3))


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
        {"combiner": "mean", "weights": [[0.5], [4]], "mean_divisor": "at_least_one"},
        [[1, 2, 0.5], [2, 4, 1]],
    ),
    "the same on the cpu": ([[2]], {"combiner": "mean", "weights": [[0.5]]}, [[2, 4, 1]]),
    "K ids": ([[1, 2, 3]], {"combiner": "sum", "max_ids_per_row": 3}, [[6, 14, 3]]),
    "K + 1 ids, cut": (
        [[1, 2, 3, 3]],
        {"combiner": "sum", "max_ids_per_row": 3, "on_too_many_ids": "truncate"},
        [[6, 14, 3]],
    ),
    "a bad id behind the cut": (
        [[1, 99]],
        {"combiner": "sum", "max_ids_per_row": 1, "on_too_many_ids": "truncate"},
        [[1, 1, 1]],
    ),
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
        {"combiner": "mean", "weights": [[0, 2], [0.5, -1], [-3]], "on_nonpositive_weight": "drop"},
        [[2, 4, 1], [1, 1, 1], [0, 0, 0]],
    ),
    "a weight that is no number left out": (
        [[1, 2]],
        {"combiner": "sum", "weights": [[float("nan"), 2]], "on_nonpositive_weight": "drop"},
        [[4, 8, 2]],
    ),
    "an id that its weight leaves out is not checked": (
        [[9, 2], [-1, 1]],
        {"combiner": "mean", "weights": [[0, 2], [float("nan"), 1]], "on_nonpositive_weight": "drop"},
        [[2, 4, 1], [1, 1, 1]],
    ),
    "no weights, none left out": ([[1, 2]], {"combiner": "sum", "on_nonpositive_weight": "drop"}, [[3, 5, 2]]),
}


@pytest.mark.parametrize(("rows", "options", "expected"), BY_HAND.values(), ids=BY_HAND.keys())
def test_combines_as_worked_out_by_hand(
    where: Where, rows: list[list[int]], options: dict[str, Any], expected: list[list[float]]
) -> None:
    found = combine(where, TAG, rows, **options)
    assert np.array_equal(found, np.array(expected, np.float32).reshape(-1, 3))
    weights = options.get("weights")
    wanted = oracle.combine(TAG.numbers, rows, weights=weights, **in_oracle(options))
    np.testing.assert_allclose(wanted, found, rtol=1e-6, err_msg="the oracle itself")


@pytest.mark.parametrize(
    ("rows", "options", "told"),
    [
        ([[1], [1, -1]], {"combiner": "sum"}, "id -1 at position 2 is out of range, its table has ids 0 to 3"),
        ([[4]], {"combiner": "sum"}, "id 4 at position 0"),
        (
            [[0], [1, 2, 3]],
            {"combiner": "sum", "max_ids_per_row": 2},
            "row 1 has 3 ids, this signature takes at most 2",
        ),
        ([[1, 2, 3], [9]], {"combiner": "sum", "max_ids_per_row": 2}, "row 0 has 3 ids"),
        ([[9], [1, 2, 3]], {"combiner": "sum", "max_ids_per_row": 2}, "id 9 at position 0"),
        (
            [[9], [8]],
            {"combiner": "sum", "weights": [[0], [1]], "on_nonpositive_weight": "drop"},
            "id 8 at position 1",
        ),
        ([[1], [0, 4]], {"max_sequence_length": 2}, "id 4 at position 2"),
        ([[-1, 1], [4]], {"max_sequence_length": 2, "on_bad_id": "drop_negative"}, "id 4 at position 2"),
    ],
)
def test_the_first_fault_is_told(where: Where, rows: list[list[int]], options: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidRequest, match=f'^input "ids": {told}'):
        combine(where, TAG, rows, **options)


@pytest.mark.parametrize("dtype", ["int64", "int32"])
@pytest.mark.parametrize("splits_dtype", ["int64", "int32"])
@pytest.mark.parametrize("weights", [None, [1, 1, 1]])
def test_both_widths_of_ids_and_splits_with_and_without_weights(
    where: Where, dtype: str, splits_dtype: str, weights: list[float] | None
) -> None:
    feature = LookupFeature("ids", "splits", None if weights is None else "weights", combiner="mean")
    inputs = {"ids": unaligned(np.array([1, 2, 3], dtype)), "splits": np.array([0, 2, 3], splits_dtype)}
    if weights is not None:
        inputs["weights"] = np.array(weights, np.float32)
    found = looked_up(where, feature, TAG, inputs)
    assert (found.tolist(), found.dtype) == ([[1.5, 2.5, 1], [3, 9, 1]], np.float32)


def test_nan_and_infinity_stay_in_their_row_and_column(where: Where) -> None:
    table = store(np.array([[np.nan, 1], [np.inf, 1], [2, 1]], np.float32))
    found = combine(where, table, [[0, 2], [1, 2], [2], []], combiner="sum")
    assert np.array_equal(found, np.array([[np.nan, 2], [np.inf, 2], [2, 1], [0, 0]]), equal_nan=True)


def test_an_empty_row_is_zeros_whatever_row_zero_holds(where: Where) -> None:
    table = store(np.full((2, 2), np.nan, np.float32))
    found = combine(where, table, [[]], combiner="mean", mean_divisor="at_least_one", max_ids_per_row=3)
    assert np.array_equal(found, np.zeros((1, 2)))


@pytest.mark.parametrize("dtype", DTYPES)
def test_tables_of_every_kind_by_hand(where: Where, dtype: str) -> None:
    # The rows are [1, 2], [0, 0] and [-4, 8]. Their scales are 2/127, 0 and 8/127 in int8, and 2/7, 0 and 8/7 in int4.
    table = store(np.array([[1, 2], [0, 0], [-4, 8]]), dtype)
    half, quarter = 1, -4
    if dtype in LARGEST_STEP:
        # Half of a row's largest number is 63.5 steps of int8, which round to 64, and just below 3.5 steps of int4,
        # because the scale is rounded up.
        steps = {"int8": 64, "int4": 3}[dtype]
        half, quarter = steps * np.float32(2 / LARGEST_STEP[dtype]), -steps * np.float32(8 / LARGEST_STEP[dtype])
    found = combine(where, table, [[0], [1], [2], [0, 2]], combiner="sum")
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
def test_bits_are_the_numbers_that_they_stand_for(where: Where, dtype: str, bits: dict[int, float]) -> None:
    raw = np.array([list(bits)], "<u2").view("<f2" if dtype == "float16" else "<u2")
    expected = np.array([list(bits.values())], np.float32)
    out = gather(where, StoredTable(dtype, expected, raw, NO_SCALES), [0])
    assert np.array_equal(out, expected, equal_nan=True)
    assert np.array_equal(np.signbit(out), np.signbit(expected)) or dtype in INFINITIES


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_number_of_a_kind_is_read_as_numpy_reads_it(where: Where, dtype: str) -> None:
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
        raw, scales = bits.astype(np.uint16), NO_SCALES
        expected = (bits << 16).view(np.float32)
        if dtype == "float16":
            raw = raw.view(np.float16)
            expected = raw.astype(np.float32)
        elif dtype == "float32":
            raw = expected
    out = gather(where, StoredTable(dtype, expected, raw, scales), [0])
    is_number = ~np.isnan(expected)
    assert out[is_number].tobytes() == expected[is_number].tobytes()
    assert np.isnan(out[~is_number]).all()


@given(lookups(), st.integers(0, 2**32 - 1))
def test_sums_are_added_in_float32_in_the_order_of_the_ids(drawn: Drawn, seed: int) -> None:
    drawn_table, rows, _ = drawn
    size = len(drawn_table.numbers)
    random = np.random.default_rng(seed)
    table = store(random.normal(size=drawn_table.numbers.shape), drawn_table.dtype)
    rows = [[i for i in row if 0 <= i < size] for row in rows]
    weights = [random.normal(size=len(row)).astype(np.float32).tolist() for row in rows]
    for where, chosen in itertools.product(WHERE, (None, weights)):
        expected = np.zeros((len(rows), table.numbers.shape[1]), np.float32)
        for r, row in enumerate(rows):
            for k, row_id in enumerate(row):
                expected[r] += table.numbers[row_id] * np.float32(1 if chosen is None else chosen[r][k])
        found = combine(where, table, rows, combiner="sum", weights=chosen if any(rows) else None)
        assert found.tobytes() == expected.tobytes()


def test_float32_is_kept_to_the_last_bit_where_nothing_is_added(where: Where) -> None:
    table = np.array([[np.nextafter(np.float32(1), np.float32(2)), 1e-45, -0.0, 3.4e38]], np.float32)
    assert gather(where, store(table), [0]).tobytes() == table.tobytes()


@pytest.mark.parametrize("dim", [1, 2, 3, 7, 8, 9, 15, 31, 32, 33, 63, 64, 65, 97, 129])
def test_int4_rows_of_every_width_are_read_to_their_last_number(where: Where, dim: int) -> None:
    random = np.random.default_rng(dim)
    table = store(random.normal(size=(7, dim)), "int4")
    ids = random.integers(0, 7, 40)
    assert gather(where, table, ids.tolist()).tobytes() == table.numbers[ids].tobytes()
    total = np.zeros(dim, np.float32)
    for row in ids:
        total += table.numbers[row]
    assert combine(where, table, [ids.tolist()], combiner="sum")[0].tobytes() == total.tobytes()
    steps = combine(where, table, [ids.tolist()], max_sequence_length=50)
    assert steps[0, :40].tobytes() == table.numbers[ids].tobytes() and not steps[0, 40:].any()


SMALL = np.array([0.0, -0.0, 1e-39, -1e-39, 1.5e-38, -1.2e-38], np.float32)


@pytest.mark.skipif(len(WHERE) < 2, reason="the native core is not built")
@pytest.mark.parametrize("is_weighted", [False, True])
def test_core_and_reference_give_the_same_bits_for_small_numbers(is_weighted: bool) -> None:
    random = np.random.default_rng(8)
    for dim in (1, 8, 11, 41) * 3:
        table = random.standard_normal((5, dim)).astype(np.float32)
        is_small = random.random(table.shape) < 0.5
        table[is_small] = random.choice(SMALL, is_small.sum())
        rows = [random.integers(0, 5, size).tolist() for size in random.choice([0, 1, 1, 2, 9, 17, 20], 6)]
        weights = [random.choice(np.array([1, -1, 0.5, 0, 1e-39], np.float32), len(row)).tolist() for row in rows]
        orders = ("in_order", "four_lanes", *(() if is_weighted else ("blocks_of_8", "segment_mean")))
        for combiner, summation, policy in itertools.product(COMBINERS, orders, ("keep", "drop")):
            fields = {"combiner": combiner, "summation": summation, "on_nonpositive_weight": policy}
            found = [
                combine(where, store(table), rows, weights=weights if is_weighted else None, **fields)
                for where in WHERE
            ]
            one, other = (array.view(np.uint32) for array in found)
            assert ((one == other) | (np.isnan(found[0]) & np.isnan(found[1]))).all(), (fields, rows)
