"""verify compares the server's code with the model's own graph: cut predictions, and the rows that they gather."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from model_export.parity.comparison import BitCounts, Disagreements
from service.artifact.manifest import FeatureEntry, LookupFeature, Manifest, SignatureEntry, VocabularyEntry
from service.native_tables import NATIVE_TABLES
from tests.unit.model_export.late import Late

pytestmark = pytest.mark.tf

check_parity = Late("model_export.parity.verify", "check_parity")

NUM_ROWS = 40
LOOKUP = SignatureEntry("lookup", {"id": LookupFeature("id", output="id")}, "cpu")
PREDICT = SignatureEntry("predict", {"id": LookupFeature("id")})
KEY = "table/.ATTRIBUTES/VARIABLE_VALUE"


def saved(tf: Any, folder: Path, ids_of: Any, then: Any = lambda rows: rows) -> Path:
    """Saves a model: a prediction that gathers the rows of `ids_of(id)`, and a plain lookup, as adopt adds it."""
    module = tf.Module()
    module.table = tf.Variable(np.random.default_rng(2).standard_normal((NUM_ROWS, 8)).astype(np.float32))
    spec = [tf.TensorSpec([None], tf.int64, "id")]

    @tf.function(input_signature=spec)
    def predict(id: Any) -> Any:
        return {"score": then(tf.reduce_sum(tf.gather(module.table, ids_of(id)) * 2.0, axis=1))}

    @tf.function(input_signature=spec)
    def lookup(id: Any) -> Any:
        return {"id": tf.gather(module.table, id)}

    tf.saved_model.save(module, str(folder), signatures={"serving_default": predict, "lookup": lookup})
    return folder


def manifest_of(artifact: Path) -> Manifest:
    """Returns a manifest that describes the lookup, and says that the prediction reads the same feature."""
    from model_export.graphs.source import VARIABLES_PREFIX
    from model_export.parity.integrity import table_entry
    from service.artifact.bundle import read_bundle

    table = table_entry(artifact, KEY, read_bundle(artifact / VARIABLES_PREFIX)[KEY])
    return Manifest({"t": table}, {"id": FeatureEntry("t")}, {"lookup": LOOKUP, "serving_default": PREDICT})


@pytest.mark.skipif(NATIVE_TABLES is None, reason="without the native core, no lookups are cut out of graphs")
def test_cut_predictions_and_gathered_rows_agree_at_edges(tf: Any, tmp_path: Path) -> None:
    from model_export.report.rendering import agreement_words, verification_text

    artifact = saved(tf, tmp_path / "1", lambda ids: ids)
    report = check_parity(artifact, manifest_of(artifact))
    (served, gathered), (cut,) = (report.signatures[name].comparisons for name in ("lookup", "serving_default"))
    assert gathered.with_ == "the rows that 'serving_default' gathers"
    # The edges -1, V and the limits of int64 among others are refused by both sides, one in a request.
    assert min(served.refused, gathered.refused, cut.refused) >= 4
    assert all(one.requests > one.refused and one.rows and not one.other_bits for one in (served, gathered, cut))
    assert agreement_words(report) == "files, index, manifest and every signature agree"
    text = verification_text(artifact, report, ())
    assert f"the graph with its lookups cut out against the whole graph in TensorFlow: {cut.requests}" in text


@pytest.mark.parametrize(
    "ids_of",
    [
        lambda tf, ids: tf.where(ids == 17, tf.constant(3, tf.int64), ids),
        lambda tf, ids: tf.where(ids >= 30, tf.zeros_like(ids), ids),
        lambda tf, ids: tf.maximum(ids, 0),
    ],
    ids=["one_id_apart", "padded_table", "clamped"],
)
def test_a_lookup_that_is_not_the_predictions_is_found(tf: Any, tmp_path: Path, ids_of: Any) -> None:
    artifact = saved(tf, tmp_path / "1", lambda ids: ids_of(tf, ids))
    with pytest.raises(
        Disagreements, match="'lookup', 'id' of the server's lookup.* the rows that 'serving_default' gathers"
    ):
        check_parity(artifact, manifest_of(artifact))


@pytest.mark.parametrize(
    ("pattern", "replacement"), [("-", ""), ("^https?://", ""), ("[-./]", "_"), ("[PAD]", "nan")], ids="abcd"
)
def test_keys_that_the_prediction_normalizes_are_found(tf: Any, tmp_path: Path, pattern: str, replacement: str) -> None:
    def keyed(name: str, change: Any) -> Any:
        def run(key: Any) -> Any:
            rows = tf.gather(module.table, tf.strings.to_hash_bucket_fast(change(key), NUM_ROWS))
            return {name: rows if name == "key" else tf.reduce_sum(rows, axis=1)}

        return tf.function(run, input_signature=[tf.TensorSpec([None], tf.string, "key")])

    module = tf.Module()
    module.table = tf.Variable(np.random.default_rng(2).standard_normal((NUM_ROWS, 8)).astype(np.float32))
    predict = keyed("score", lambda key: tf.strings.regex_replace(key, pattern, replacement))
    signatures = {"serving_default": predict, "lookup": keyed("key", tf.identity)}
    tf.saved_model.save(module, str(tmp_path / "1"), signatures=signatures)
    manifest = replace(
        manifest_of(tmp_path / "1"),
        features={"key": FeatureEntry("t", "v")},
        vocabularies={"v": VocabularyEntry("", 0, num_oov_buckets=NUM_ROWS)},
        signatures={
            "lookup": SignatureEntry("lookup", {"key": LookupFeature("key", output="key")}, "cpu"),
            # adopt takes every feature from a prediction that differs from its description.
            "serving_default": SignatureEntry("predict", {}),
        },
    )
    with pytest.raises(
        Disagreements, match="'lookup', 'key' of the server's lookup.* rows that 'serving_default' gathers"
    ):
        check_parity(tmp_path / "1", manifest)


@pytest.mark.skipif(NATIVE_TABLES is None, reason="without the native core, no lookups are cut out of graphs")
def test_a_graph_that_fails_is_a_fault_and_not_nothing_to_compare(tf: Any, tmp_path: Path) -> None:
    def fails(rows: Any) -> Any:
        return rows + tf.cast(tf.strings.length(tf.io.read_file("no such file")), tf.float32)

    artifact = saved(tf, tmp_path / "1", lambda ids: ids, fails)
    with pytest.raises(Disagreements, match="'serving_default' can not be compared: its graph fails: NotFoundError"):
        check_parity(artifact, manifest_of(artifact))


@pytest.mark.parametrize("dtype", ["float16", ml_dtypes.bfloat16])
def test_any_nan_of_a_narrow_float_equals_any_other(dtype: Any) -> None:
    counts = BitCounts("s", "ours", "theirs")
    counts.add({"x": np.array([1, np.nan], dtype)}, {"x": np.array([1, np.nan], dtype)})
    assert (counts.faults, counts.result.other_bits) == ([], 0)
    counts.add({"x": np.array([1, 2], dtype)}, {"x": np.array([1, 3], dtype)})
    assert counts.faults == ["signature 's', ours: output 'x' differs from theirs by 1"]


@pytest.mark.parametrize("odd", [np.nan, np.inf])
def test_a_number_where_the_graph_has_none_is_a_fault(odd: float) -> None:
    counts = BitCounts("s", "ours", "theirs")
    counts.add({"x": np.array([1, odd], np.float32)}, {"x": np.array([1, odd], np.float32)})
    assert counts.faults == []
    counts.add({"x": np.array([1, 0], np.float32)}, {"x": np.array([1, odd], np.float32)})
    assert counts.faults == ["signature 's', ours: output 'x' is finite where it is not in theirs, or the reverse"]


def test_answers_of_one_side_only_and_other_numbers_are_faults() -> None:
    counts = BitCounts("s", "ours", "theirs")
    counts.add({"x": np.ones(2, np.float32)}, {"x": np.ones(2, np.float32)})
    counts.add("refused", "refused too")
    counts.add({"x": np.ones(2, np.float32)}, {"x": np.array([1, np.nextafter(np.float32(1), 2)], np.float32)})
    assert counts.faults == []
    assert (counts.result.requests, counts.result.refused) == (3, 1)
    assert (counts.result.rows, counts.result.other_bits) == (4, 1)
    counts.add("no", {"x": np.ones(2)})
    counts.add({"x": np.ones(2)}, "no")
    counts.add({"x": np.ones(2)}, {"x": np.array([1, 1.1])})
    counts.add({"x": np.ones(2)}, {"x": np.ones(2, np.float32)})
    assert counts.faults == [
        "signature 's', ours refuses what theirs answers: no",
        "signature 's', ours answers what theirs refuses: no",
        "signature 's', ours: output 'x' differs from theirs by 0.1",
        "signature 's', ours: output 'x' is float64, and float32 in theirs",
    ]
