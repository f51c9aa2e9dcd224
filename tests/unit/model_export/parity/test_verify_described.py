"""`verify` compares lookups of manifest format 4 with the oracle, and finds those that a server leaves to a graph."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model_export.parity.comparison import Disagreements
from service.artifact.manifest import FeatureEntry, LookupFeature, Manifest, SignatureEntry, VocabularyEntry
from tests.unit.model_export.late import Late

pytestmark = pytest.mark.tf

check_parity = Late("model_export.parity.verify", "check_parity")

TABLE = np.array([[3 * i, 4 * i] for i in range(9)], np.float32)
FEATURES = {
    "bag": LookupFeature("tag_values", "tag_offsets", output="bag", combiner="sum", max_norm=10.0, on_bad_id="error"),
    "cut": LookupFeature("cut_values", "cut_offsets", output="cut", combiner="mean", trailing_empty_rows="cut"),
    "pair": LookupFeature("pair", output="pair"),
    "word": LookupFeature("word"),
    "user": LookupFeature("user"),
}
ENTRY = SignatureEntry("lookup", FEATURES, "cpu", concatenated={"both": ("word", "user")})


@pytest.fixture(scope="module")
def artifact(tf: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Writes a SavedModel with a signature `lookup`, which answers as ENTRY says."""
    module = tf.Module()
    module.table = tf.Variable(TABLE)

    @tf.function(
        input_signature=[
            *[tf.TensorSpec([None], tf.int64, name=name) for name in ("tag_values", "tag_offsets", "cut_values")],
            tf.TensorSpec([None], tf.int64, name="cut_offsets"),
            tf.TensorSpec([None, 2], tf.int64, name="pair"),
            tf.TensorSpec([None], tf.string, name="word"),
            tf.TensorSpec([None], tf.int64, name="user"),
        ]
    )
    def lookup(tag_values, tag_offsets, cut_values, cut_offsets, pair, word, user):  # type: ignore[no-untyped-def]
        table = tf.convert_to_tensor(module.table)
        bag = tf.RaggedTensor.from_row_splits(tf.clip_by_norm(tf.gather(table, tag_values), 10.0, 1), tag_offsets)
        cut = tf.RaggedTensor.from_row_splits(cut_values, cut_offsets)
        words = tf.gather(table, tf.strings.to_hash_bucket_fast(word, 7))
        return {
            "bag": tf.reduce_sum(bag, axis=1),
            "cut": tf.math.segment_mean(tf.gather(table, cut.values), cut.value_rowids()),
            "pair": tf.reshape(tf.gather(table, pair), [-1, 4]),
            "both": tf.concat([words, tf.gather(table, user)], axis=1),
        }

    folder = tmp_path_factory.mktemp("described") / "1"
    tf.saved_model.save(module, str(folder), signatures={"lookup": lookup})
    return folder


def manifest_of(artifact: Path, entry: SignatureEntry) -> Manifest:
    """Returns the artifact's manifest, with `entry` for its signature."""
    from model_export.graphs.source import VARIABLES_PREFIX
    from model_export.parity.integrity import table_entry
    from service.artifact.bundle import read_bundle

    key = "table/.ATTRIBUTES/VARIABLE_VALUE"
    table = table_entry(artifact, key, read_bundle(artifact / VARIABLES_PREFIX)[key])
    features = {name: FeatureEntry("t", "v" if name == "word" else None) for name in entry.features}
    vocabularies = {"v": VocabularyEntry("", 0, num_oov_buckets=7)}
    return Manifest({"t": table}, features, {"lookup": entry}, vocabularies)


def test_what_the_graph_does_is_verified(artifact: Path) -> None:
    parity = check_parity(artifact, manifest_of(artifact, ENTRY)).signatures["lookup"]
    assert set(parity.outputs) == {"bag", "cut", "pair", "both"}
    assert parity.cases > 5 and all(output.rows > 10 for output in parity.outputs.values())


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"bag": {"max_norm": 11.0}}, "output 'bag' differs from the oracle"),
        ({"cut": {"trailing_empty_rows": "keep"}}, r"output 'cut': shape \(\d, 2\), expected"),
        ({"bag": {"on_empty_row": "nan"}}, "output 'bag' has numbers in rows without ids"),
    ],
)
def test_another_description_is_not_what_the_graph_does(
    artifact: Path, changed: dict[str, dict[str, Any]], message: str
) -> None:
    features = {name: dataclasses.replace(f, **changed.get(name, {})) for name, f in FEATURES.items()}
    with pytest.raises(Disagreements, match=message):
        check_parity(artifact, manifest_of(artifact, dataclasses.replace(ENTRY, features=features)))


def test_what_a_server_leaves_to_the_graph_is_a_fault(artifact: Path) -> None:
    entry = dataclasses.replace(ENTRY, concatenated={"both": ("word", "user", "pair")})
    with pytest.raises(Disagreements, match=r"output 'both' is float32 \['\?', 4\], its manifest says float32"):
        check_parity(artifact, manifest_of(artifact, entry))
