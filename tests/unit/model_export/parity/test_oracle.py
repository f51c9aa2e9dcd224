"""The parity oracle looks up in a table that is small enough to compute by hand."""

from __future__ import annotations

import numpy as np
import pytest

from model_export.parity.oracle import Keys, RefusedError, looked_up
from service.artifact.manifest import Combiner, LookupFeature, MeanDivisor, VocabularyEntry
from service.types import RaggedIds

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
