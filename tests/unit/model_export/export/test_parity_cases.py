"""The cases hold the edges that they promise."""

from __future__ import annotations

import numpy as np
import pytest

from model_export.export.parity_cases import lookup_cases, predict_cases
from service.core.manifest import FeatureEntry, LookupFeature, Manifest, SignatureEntry, TableEntry
from service.core.types import RaggedIds

BAG = LookupFeature("b__values", "b__row_splits", "b__weights", "b", "mean", max_ids_per_row=5)
SIGNATURE = SignatureEntry("lookup", {"a": LookupFeature("a", output="a"), "b": BAG}, "tpu_tensor_core", (1, 4, 7))
MANIFEST = Manifest(
    tables={"t": TableEntry("t", 9, 2, "float32", "variables/x", 0, 72, 0)},
    features={"a": FeatureEntry("t"), "b": FeatureEntry("t")},
    signatures={"lookup": SIGNATURE},
)


def test_lookups_are_tried_at_both_sides_of_every_batch_size_with_and_without_weights() -> None:
    seen = set()
    for case in lookup_cases(MANIFEST, SIGNATURE):
        bag = case["b"]
        assert isinstance(bag, RaggedIds)
        assert len(case["a"]) == len(bag.row_splits) - 1
        seen.add((len(case["a"]), bag.weights is not None))
    assert {(rows, weighted) for rows in (0, 1, 2, 4, 5, 7) for weighted in (False, True)} == seen


def test_rows_are_empty_at_both_ends_and_as_long_as_allowed() -> None:
    bags = [case["b"] for case in lookup_cases(MANIFEST, SIGNATURE)]
    longest = [bag for bag in bags if isinstance(bag, RaggedIds) and len(bag.row_splits) == 8]
    assert longest
    for bag in longest:
        lengths = np.diff(bag.row_splits)
        assert (lengths[0], lengths[-1], lengths.max()) == (0, 0, 5)
        assert {0, 8} <= set(bag.values.tolist())
        assert bag.weights is None or ((bag.weights < 0).any() and bag.weights[-1] == 0)


def test_some_weights_tell_the_two_divisors_of_a_mean_apart() -> None:
    for case in lookup_cases(MANIFEST, SIGNATURE):
        bag = case["b"]
        if isinstance(bag, RaggedIds) and bag.weights is not None and len(bag.values):
            sums = np.add.reduceat(bag.weights, bag.row_splits[:-1][np.diff(bag.row_splits) > 0])
            assert sums[0] == pytest.approx(0.5)


def test_predictions_are_tried_without_weights() -> None:
    cases = list(predict_cases(MANIFEST, SIGNATURE))
    assert [len(case["a"]) for case in cases] == [1, 17, 64]
    assert all(ids.weights is None for case in cases for ids in case.values() if isinstance(ids, RaggedIds))
