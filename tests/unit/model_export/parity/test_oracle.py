"""The oracle computes lookups in numpy, and the cases cover each policy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from model_export.parity.oracle import Keys, RefusedError, looked_up
from service.artifact.manifest import (
    Combiner,
    FeatureEntry,
    LookupFeature,
    Manifest,
    MeanDivisor,
    SignatureEntry,
    TableEntry,
    VocabularyEntry,
)
from service.types import RaggedIds
from tests.unit.model_export.late import late

with late():
    from model_export.parity.parity_cases import Case, CaseWriter

TABLE = np.array([[100, 100], [1, 2], [3, 6], [-2, 0]], np.float32)
# Four rows: ids 1 and 2, no id, id 3 twice, no id.
IDS = RaggedIds(np.array([1, 2, 3, 3]), np.array([0, 2, 2, 4, 4]))
WEIGHTS = np.array([1, 3, 0.25, 0.25], np.float32)


def bag(combiner: Combiner | None = "sum", **options: object) -> LookupFeature:
    """Returns a ragged feature."""
    return LookupFeature("g__values", "g__row_splits", "g__weights", "g", combiner, **options)  # type: ignore[arg-type]


def row(*ids: int, weights: list[float] | None = None) -> RaggedIds:
    """Returns the RaggedIds of one row."""
    factors = None if weights is None else np.array(weights, np.float32)
    return RaggedIds(np.array(ids, np.int64), np.array([0, len(ids)]), factors)


@pytest.mark.parametrize(
    ("combiner", "divisor", "weights", "expected"),
    [
        ("sum", "sum_weights", None, [[4, 8], [0, 0], [-4, 0], [0, 0]]),
        ("mean", "sum_weights", None, [[2, 4], [0, 0], [-2, 0], [0, 0]]),
        ("sqrtn", "sum_weights", None, [[4 / 2**0.5, 8 / 2**0.5], [0, 0], [-4 / 2**0.5, 0], [0, 0]]),
        ("sum", "sum_weights", WEIGHTS, [[10, 20], [0, 0], [-1, 0], [0, 0]]),
        ("mean", "sum_weights", WEIGHTS, [[2.5, 5], [0, 0], [-2, 0], [0, 0]]),
        ("mean", "at_least_one", WEIGHTS, [[2.5, 5], [0, 0], [-1, 0], [0, 0]]),
        ("mean", "sum_weights", 0 * WEIGHTS, [[0, 0]] * 4),
        ("mean", "at_least_one", 0 * WEIGHTS, [[0, 0]] * 4),
    ],
)
def test_combined(
    combiner: Combiner, divisor: MeanDivisor, weights: np.ndarray | None, expected: list[list[float]]
) -> None:
    got = looked_up(TABLE, bag(combiner, mean_divisor=divisor), IDS._replace(weights=weights))
    np.testing.assert_allclose(got, expected)


def test_no_rows_give_no_rows() -> None:
    none = RaggedIds(np.zeros(0, np.int64), np.zeros(1, np.int64))
    assert looked_up(TABLE, bag("mean"), none).shape == (0, 2)
    assert looked_up(TABLE, bag(None, max_sequence_length=3), none).shape == (0, 3, 2)
    assert looked_up(TABLE, LookupFeature("g"), np.zeros(0, np.int64)).shape == (0, 2)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [("drop", [4, 8]), ("default_row", [10, 20]), ("clamp", [102, 108])],
)
def test_ids_outside_the_table(policy: str, expected: list[float]) -> None:
    # Rows 1 and 2 are (1, 2) and (3, 6). drop: ids -1 and 4 add nothing; default_row: they add row 2 twice; clamp: they
    # add rows 0 and 3.
    got = looked_up(TABLE, bag(on_bad_id=policy, default_row=2), row(1, -1, 4, 2))
    assert got.tolist() == [expected]


def test_dropping_ids_below_0_only() -> None:
    feature = bag("mean", on_bad_id="drop_negative")
    assert looked_up(TABLE, feature, row(1, -1, 2)).tolist() == [[2, 4]]
    with pytest.raises(RefusedError, match="id 4"):
        looked_up(TABLE, feature, row(1, 4))


@pytest.mark.parametrize("bad_id", [-1, 4])
def test_a_bad_id_is_refused_where_it_is_an_error(bad_id: int) -> None:
    with pytest.raises(RefusedError, match=f"id {bad_id}"):
        looked_up(TABLE, bag(), row(1, bad_id))
    with pytest.raises(RefusedError, match=f"id {bad_id}"):
        looked_up(TABLE, LookupFeature("g"), np.array([1, bad_id]))


def test_one_id_per_row_that_is_dropped_gives_zeros() -> None:
    assert looked_up(TABLE, LookupFeature("g", on_bad_id="drop"), np.array([9, 1])).tolist() == [[0, 0], [1, 2]]


def test_a_row_is_cut_before_its_ids_are_looked_at() -> None:
    cut = bag(max_ids_per_row=2, on_too_many_ids="truncate")
    assert looked_up(TABLE, cut, row(1, 2, 99)).tolist() == [[4, 8]]
    with pytest.raises(RefusedError, match="3 ids in a row"):
        looked_up(TABLE, bag(max_ids_per_row=2), row(1, 2, 1))


def test_weights_of_0_or_less_can_be_dropped() -> None:
    ids = row(1, 2, 3, weights=[2, 0, -4])
    assert looked_up(TABLE, bag("mean", on_nonpositive_weight="drop"), ids).tolist() == [[1, 2]]
    beyond = row(1, 99, -7, weights=[2, 0, -4])
    assert looked_up(TABLE, bag("mean", on_nonpositive_weight="drop"), beyond).tolist() == [[1, 2]]
    # (2 * (1, 2) + 8, 0) / (2 - 4)
    assert looked_up(TABLE, bag("mean"), ids).tolist() == [[-5, -2]]


def test_a_sequence_is_cut_and_padded() -> None:
    feature = bag(None, max_sequence_length=2, on_bad_id="drop")
    ids = RaggedIds(np.array([1, 9, 3, 2]), np.array([0, 3, 4]))
    assert looked_up(TABLE, feature, ids).tolist() == [[[1, 2], [0, 0]], [[3, 6], [0, 0]]]


def keyed(**options: object) -> Keys:
    """Returns the keys "x" and "y", which a vocabulary maps to rows 1 and 2."""
    return Keys(VocabularyEntry("v", 2, first_id=1, **options), (b"x", b"y"))  # type: ignore[arg-type]


def test_strings_become_rows() -> None:
    keys = np.array([b"y", b"?", b"x"], object)
    assert keyed(oov_id=0).rows_of(keys).tolist() == [2, 0, 1]
    assert keyed(on_oov="drop").rows_of(keys).tolist() == [2, -1, 1]
    (bucket,) = keyed(num_oov_buckets=5).rows_of(keys[1:2])
    assert 3 <= bucket < 8
    with pytest.raises(RefusedError, match="unknown key b'?'"):
        keyed().rows_of(keys)


def test_integers_are_keys_by_their_digits() -> None:
    keys = Keys(VocabularyEntry("v", 2, key_dtype="int64", on_oov="drop"), (b"10", b"-7"))
    assert keys.rows_of(np.array([-7, 10, 0])).tolist() == [1, 0, -1]


BAG = LookupFeature("b__values", "b__row_splits", "b__weights", "b", "mean", max_ids_per_row=5)
SIGNATURE = SignatureEntry("lookup", {"a": LookupFeature("a", output="a"), "b": BAG}, "tpu_tensor_core", (1, 4, 7))
MANIFEST = Manifest(
    tables={"t": TableEntry("t", 9, 2, "float32", "variables/x", 0, 72, 0)},
    features={"a": FeatureEntry("t"), "b": FeatureEntry("t")},
    signatures={"lookup": SIGNATURE},
)


def writer(bag: LookupFeature = BAG, keys: dict[str, Keys] | None = None) -> CaseWriter:
    """Returns a CaseWriter for the signature, with this feature in place of its ragged one."""
    signature = replace(SIGNATURE, features={**SIGNATURE.features, "b": bag})
    return CaseWriter(MANIFEST, signature, keys or {}, {"a": "int64", "b": "int32"})


def answered(cases: CaseWriter) -> list[Case]:
    """Returns the cases that have an answer."""
    return [case for case in cases.lookup_cases() if not case.refused]


def bags(cases: CaseWriter) -> list[RaggedIds]:
    """Returns the ragged ids of the cases that have an answer."""
    return [ids for case in answered(cases) if isinstance(ids := case.features["b"], RaggedIds)]


def test_lookups_are_tried_at_both_sides_of_every_batch_size_with_and_without_weights() -> None:
    seen = set()
    for case in answered(writer()):
        bag = case.features["b"]
        assert isinstance(bag, RaggedIds)
        assert len(case.features["a"]) == len(bag.row_splits) - 1
        seen.add((len(case.features["a"]), bag.weights is not None))
    assert {(rows, weighted) for rows in (0, 1, 2, 4, 5, 7) for weighted in (False, True)} == seen


def test_an_id_that_is_no_error_is_tried_alone_in_its_row() -> None:
    alone = {
        int(bag.values[0])
        for bag in bags(writer(replace(BAG, on_bad_id="drop")))
        if bag.row_splits.tolist() == [0, 0, 1]
    }
    assert {-1, -9, 9, 2**31 - 1} <= alone


def test_rows_are_empty_at_both_ends_and_as_long_as_allowed() -> None:
    longest = [bag for bag in bags(writer()) if len(bag.row_splits) == 8]
    assert longest
    for bag in longest:
        lengths = np.diff(bag.row_splits)
        assert (lengths[0], lengths[-1], lengths.max()) == (0, 0, 5)
        assert {0, 8} <= set(bag.values.tolist()) and 4 in lengths
        assert bag.weights is None or ((bag.weights < 0).any() and (bag.weights == 0).any())


def test_some_weights_tell_the_two_divisors_of_a_mean_apart() -> None:
    for bag in bags(writer()):
        if bag.weights is not None and len(bag.values):
            sums = np.add.reduceat(bag.weights, bag.row_splits[:-1][np.diff(bag.row_splits) > 0])
            assert sums[0] == pytest.approx(0.5)


@pytest.mark.parametrize("limit", [{"on_too_many_ids": "truncate"}, {"max_sequence_length": 5, "combiner": None}])
def test_rows_that_are_cut_are_one_longer_than_allowed(limit: dict[str, object]) -> None:
    cut = [np.diff(bag.row_splits).max(initial=0) for bag in bags(writer(replace(BAG, **limit)))]  # type: ignore[arg-type]
    assert max(cut) == 6


@pytest.mark.parametrize(
    ("policy", "met"),
    [
        ("error", set()),
        ("drop_negative", {-1, -9}),
        ("drop", {-1, -9, 9, 2**31 - 1}),
        ("clamp", {-1, -9, 9, 2**31 - 1}),
    ],
)
def test_ids_outside_the_table_are_sent_where_they_are_no_errors(policy: str, met: set[int]) -> None:
    bag = replace(BAG, on_bad_id=policy)  # type: ignore[arg-type]
    sent = {int(value) for ids in bags(writer(bag)) for value in ids.values}
    assert {value for value in sent if not 0 <= value < 9} == met


def test_whatever_is_an_error_is_tried_alone() -> None:
    reasons = [case.refused for case in writer().lookup_cases() if case.refused]
    assert reasons == [
        "a: an id below 0",
        "a: an id beyond the table",
        "b__values: an id below 0",
        "b__values: an id beyond the table",
        "b__values: 6 ids in a row",
    ]
    dropping = writer(replace(BAG, on_bad_id="drop_negative", on_too_many_ids="truncate"))
    assert [case.refused for case in dropping.lookup_cases() if case.refused][2:] == [
        "b__values: an id beyond the table"
    ]


def test_keys_are_sent_for_features_that_take_them() -> None:
    strict = Keys(VocabularyEntry("v", 2, first_id=1), (b"x", b"y"))
    lenient = Keys(VocabularyEntry("v", 2, first_id=1, oov_id=0), (b"x", b"y"))
    assert {value for bag in bags(writer(keys={"b": strict})) for value in bag.values} == {b"x", b"y"}
    assert len({value for bag in bags(writer(keys={"b": lenient})) for value in bag.values}) == 2 + 4
    refused = [case.refused for case in writer(keys={"b": strict}).lookup_cases() if case.refused]
    assert "b__values: an unknown key" in refused
    numbers = Keys(VocabularyEntry("v", 2, key_dtype="int64", oov_id=0), (b"10", b"-7"))
    values = {int(value) for bag in bags(writer(keys={"b": numbers})) for value in bag.values}
    assert {10, -7} < values and len(values - {10, -7}) == 4
    rows = replace(lenient, sends_rows=True)
    assert all(bag.values.dtype == np.int64 for bag in bags(writer(keys={"b": rows})))


def test_predictions_are_tried_without_weights() -> None:
    cases = list(writer(replace(BAG, on_bad_id="drop")).predict_cases())
    assert [len(case.features["a"]) for case in cases] == [1, 17, 64]
    for case in cases:
        bag = case.features["b"]
        assert isinstance(bag, RaggedIds) and bag.weights is None
        assert bag.values.min() >= 0 and bag.values.max() < 9


def test_a_case_becomes_the_signatures_inputs() -> None:
    case = Case({"a": np.array([3]), "b": RaggedIds(np.array([1, 2]), np.array([0, 2]))})
    inputs = case.inputs(SIGNATURE)
    assert {name: array.tolist() for name, array in inputs.items()} == {
        "a": [3],
        "b__values": [1, 2],
        "b__row_splits": [0, 2],
        "b__weights": [],
    }
