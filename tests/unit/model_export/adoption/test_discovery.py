"""Checks which lookups are found in the graphs of foreign models. The zoo's builders write the models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from loadtest.foreign.models import all_models
from model_export.adoption.discovery import Discovery, discover
from model_export.errors import ExportError
from service.artifact.manifest import LookupFeature, SignatureEntry, VocabularyEntry

pytestmark = pytest.mark.tf


def discovered(folder: Path, name: str) -> Discovery:
    """Builds a zoo model, and returns what discovery finds in it."""
    from model_export.tensorflow_setup import tf

    del tf  # the import chooses the Keras of this process, before the builder imports one
    all_models()[name].build(folder / "1", lambda count: count)
    return discover(folder / "1")


def entries(found: Discovery) -> dict[str, SignatureEntry]:
    """Returns the entries of all signatures."""
    return {one.name: one.entry for one in found.signatures}


def ragged(ids: str, splits: str, output: str, **fields: Any) -> LookupFeature:
    """Returns a combined feature."""
    return LookupFeature(ids, splits, output=output, **fields)


def test_outputs_side_by_side_and_means_that_end_early_are_described(tmp_path: Path) -> None:
    found = discovered(tmp_path, "peer")
    assert sorted(found.tables.values()) == ["item", "tag", "user"]
    signatures = entries(found)
    assert {name: entry.kind for name, entry in signatures.items()} == {
        "w1": "lookup",
        "w2": "lookup",
        "w4": "lookup",
        "w5": "predict",
    }
    assert signatures["w1"].concatenated == {"emb": ("user", "item", "tag")}
    order = {"trailing_empty_rows": "cut", "summation": "segment_mean"}
    mean = ragged("tag_values", "tag_splits", "tag_emb", combiner="mean", **order)
    assert mean in signatures["w2"].features.values()
    # The dense layers of w5 read the vectors of the same feature.
    assert any(feature.row_splits == "tag_splits" for feature in signatures["w5"].features.values())
    assert all(one.is_exact for one in found.signatures)


@pytest.mark.parametrize(
    ("name", "signature", "expected"),
    [
        ("module_ragged_mean", "read", {"combiner": "mean", "on_empty_row": "nan"}),
        ("module_ragged_sum", "read", {"combiner": "sum"}),
        ("module_segment_sum", "read", {"combiner": "sum", "trailing_empty_rows": "cut", "summation": "four_lanes"}),
        ("module_unsorted_segment_mean", "read", {"combiner": "mean"}),
        (
            "ragged_safe_default_row_of_sparse",
            "mean",
            {"combiner": "mean", "on_bad_id": "drop_negative", "on_empty_row": "default_row"},
        ),
        ("ragged_safe_of_sparse", "sum", {"combiner": "sum", "on_bad_id": "drop_negative", "summation": "blocks_of_8"}),
    ],
)
def test_policies_are_found_by_trying(tmp_path: Path, name: str, signature: str, expected: dict[str, Any]) -> None:
    found = discovered(tmp_path, name)
    entry = entries(found)[signature]
    assert entry.kind == "lookup"
    (feature,) = entry.features.values()
    for field, value in expected.items():
        assert getattr(feature, field) == value, field
    assert all(one.is_exact for one in found.signatures if one.name == signature)


def test_a_vocabulary_of_a_file_is_taken_from_the_graph(tmp_path: Path) -> None:
    found = discovered(tmp_path, "keyed_by_file_with_buckets")
    (feature,) = found.features.values()
    assert feature.keys is not None and len(feature.keys.lines) == feature.keys.entry.size == 800
    assert (feature.keys.entry.first_id, feature.keys.entry.num_oov_buckets) == (0, 7)


def test_hashed_keys_need_no_file_unless_the_graph_changes_them_first(tmp_path: Path) -> None:
    found = discovered(tmp_path / "plain", "hashed_fast")
    (feature,) = found.features.values()
    assert feature.keys is not None and feature.keys.lines == ()
    assert feature.keys.entry == VocabularyEntry("", 0, num_oov_buckets=800)
    assert entries(found)["rows"].kind == "lookup"
    lowered = discovered(tmp_path / "lower", "hashed_fast_of_lower_case")
    assert {entry.kind for entry in entries(lowered).values()} == {"predict"}
    assert not lowered.features


def test_a_variable_in_parts_is_one_table(tmp_path: Path) -> None:
    found = discovered(tmp_path, "session_partitioned_div")
    assert list(found.tables.values()) == ["users"]
    assert entries(found)["serving_default"].kind == "lookup"


def test_what_is_no_lookup_is_told_with_a_reason(tmp_path: Path) -> None:
    found = discovered(tmp_path, "module_ragged_max")
    reasons = {one.name: one.reason for one in found.signatures}
    assert reasons["read"] == "output 'tags' is computed from looked-up rows by UnsortedSegmentMax"


def test_a_model_without_tables_is_refused_with_the_matrices_that_it_has(tmp_path: Path) -> None:
    from model_export.tensorflow_setup import tf

    class Dense(tf.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.kernel = tf.Variable(tf.ones((3, 2)), name="kernel")

        @tf.function(input_signature=[tf.TensorSpec([None, 3], tf.float32)])  # type: ignore[untyped-decorator]
        def score(self, x: Any) -> dict[str, Any]:
            return {"y": x @ self.kernel}

    model = Dense()
    tf.saved_model.save(model, str(tmp_path / "1"), signatures={"serving_default": model.score})
    with pytest.raises(ExportError, match=r"nothing to look up(.|\n)*kernel\S*  \[3, 2\] float32"):
        discover(tmp_path / "1")
