"""Checks the lookup feature that each policy of a FeatureSpec becomes on each device."""

from __future__ import annotations

import pytest

from model_export.errors import ExportError
from model_export.graphs.source import id_dtype, lookup_entry, predict_entry
from model_export.spec.features import FeatureSpec, ModelSpec, TableSpec, VocabularySpec
from service.artifact.manifest import LookupFeature

WORDS = VocabularySpec(("x", "y"), 1, 0)
SPEC = ModelSpec(
    (TableSpec("t", 9, 2, "sum"),),
    (
        FeatureSpec("one", "t"),
        FeatureSpec(
            "bag",
            "t",
            is_ragged=True,
            max_ids_per_row=4,
            combiner="mean",
            on_bad_id="default_row",
            default_id=3,
            on_nonpositive_weight="drop",
            on_too_many_ids="truncate",
        ),
        FeatureSpec("steps", "t", is_ragged=True, max_sequence_length=5, max_ids_per_row=5, on_bad_id="clamp"),
        FeatureSpec("words", "t", vocabulary=WORDS),
    ),
)


def test_the_cpu_lookup_takes_rows_of_any_length() -> None:
    entry = lookup_entry(SPEC, "cpu")
    assert (entry.kind, entry.device, entry.batch_sizes) == ("lookup", "cpu", ())
    assert entry.features["one"] == LookupFeature("one", output="one")
    assert entry.features["bag"] == LookupFeature(
        "bag__values",
        "bag__row_splits",
        "bag__weights",
        "bag",
        "mean",
        on_bad_id="default_row",
        default_row=3,
        on_nonpositive_weight="drop",
    )
    assert entry.features["steps"] == LookupFeature(
        "steps__values", "steps__row_splits", output="steps", on_bad_id="clamp", max_sequence_length=5
    )


def test_the_tensor_core_lookup_is_padded_and_divides_by_at_least_one() -> None:
    entry = lookup_entry(SPEC, "tpu_tensor_core", batch_sizes=(1, 8))
    assert (entry.device, entry.batch_sizes) == ("tpu_tensor_core", (1, 8))
    bag, steps = entry.features["bag"], entry.features["steps"]
    assert (bag.max_ids_per_row, bag.on_too_many_ids, bag.mean_divisor) == (4, "truncate", "at_least_one")
    assert (steps.max_ids_per_row, steps.max_sequence_length) == (None, 5)


def test_features_can_be_chosen() -> None:
    assert list(lookup_entry(SPEC, "cpu", features=["words"]).features) == ["words"]


@pytest.mark.parametrize("sizes", [(), (0, 1), (4, 4), (8, 1)])
def test_batch_sizes_ascend(sizes: tuple[int, ...]) -> None:
    with pytest.raises(ExportError, match="ascending"):
        lookup_entry(SPEC, "tpu_tensor_core", batch_sizes=sizes)


def test_predictions_describe_weights_that_the_graph_takes() -> None:
    without = predict_entry(SPEC, ["bag", "one"], ["bag__values", "bag__row_splits", "one"]).features
    assert (without["bag"].weights, without["bag"].output, list(without)) == (None, None, ["bag", "one"])
    assert predict_entry(SPEC, ["bag"], ["bag__weights"]).features["bag"].weights == "bag__weights"


def test_what_ids_travel_as() -> None:
    numbers = FeatureSpec("n", "t", vocabulary=VocabularySpec((1, 2)))
    rows = FeatureSpec("r", "t", vocabulary=WORDS, sends_rows=True)
    assert [id_dtype(SPEC.feature("words"), device) for device in ("cpu", "tpu_tensor_core")] == ["string", "string"]
    assert [id_dtype(numbers, device) for device in ("cpu", "tpu_tensor_core")] == ["int64", "int64"]
    assert [id_dtype(rows, device) for device in ("cpu", "tpu_tensor_core")] == ["int64", "int32"]
    assert id_dtype(SPEC.feature("one"), None) == "int64"
