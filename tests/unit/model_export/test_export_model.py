"""export() and the names of the package."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import model_export
from model_export.errors import ExportError
from model_export.export_model import as_source, export
from model_export.graphs.source import lookup_devices
from service.artifact.row_labels import open_labels
from tests.toy_model import manifest_of
from tests.unit.model_export.late import Late, tf

pytestmark = pytest.mark.tf

verify_artifact = Late("model_export.parity.verify", "verify_artifact")

CREATED = datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC)


def two_features(**options: Any) -> Any:
    """Returns a model with predictions that has one feature of one id and one ragged feature."""
    from tests.unit.model_export.exporter.table_source import TWO_FEATURES, TableSource

    return TableSource(TWO_FEATURES, **options)


def saved_model(artifact: Path) -> Any:
    from model_export.graphs.signature_runner import read_saved_model

    return read_saved_model(artifact)


def test_by_default_the_cpu_lookup_and_all_predictions_become_version_1(tmp_path: Path) -> None:
    artifact = export(two_features(), tmp_path / "model", clock=lambda: CREATED)
    manifest = manifest_of(artifact)
    assert artifact == tmp_path / "model" / "1"
    assert [path.name for path in artifact.parent.iterdir()] == ["1"]
    assert {name: entry.kind for name, entry in manifest.signatures.items()} == {
        "lookup": "lookup",
        "serving_default": "predict",
        "examples": "predict",
    }
    assert manifest.provenance["created"] == "2024-05-06T07:08:09+00:00"
    assert manifest.provenance["history"] == [{"epoch": 1, "loss": 0.5}]
    assert {name: entry["reference"] for name, entry in manifest.parity.items()} == {
        "lookup": "oracle",
        "serving_default": "recorded answers",
        "examples": "recorded answers",
    }
    assert all(entry["max_relative_error"] < 1e-6 for entry in manifest.parity.values())


def test_labels_go_with_the_version(tmp_path: Path) -> None:
    tables = manifest_of(export(two_features(), tmp_path / "plain")).tables
    labels = {name: [f"{name} {row}" for row in range(entry.vocabulary_size)] for name, entry in tables.items()}
    artifact = export(two_features(), tmp_path / "named", labels=labels)
    found = open_labels(artifact, manifest_of(artifact))
    assert {name: one.of([0, 1]) for name, one in found.items()} == {name: labels[name][:2] for name in tables}
    name = min(tables)
    with pytest.raises(ExportError, match=f"labels: 1 for the .* rows of table '{name}'"):
        export(two_features(), tmp_path / "few", labels={name: ["one"]})


def test_versions_count_up_and_are_never_overwritten(tmp_path: Path) -> None:
    assert export(two_features(), tmp_path, signatures=["lookup"], version=4).name == "4"
    assert export(two_features(), tmp_path, signatures=["lookup"]).name == "5"
    with pytest.raises(ExportError, match="never overwritten"):
        export(two_features(), tmp_path, version=5)


def test_lookup_device_and_batch_sizes(tmp_path: Path) -> None:
    artifact = export(
        two_features(), tmp_path, lookup_device=["cpu", "tpu_tensor_core"], batch_sizes=(2, 4), signatures=None
    )
    padded = manifest_of(artifact).signatures["lookup_tpu_tensor_core"]
    assert (padded.device, padded.batch_sizes) == ("tpu_tensor_core", (2, 4))
    assert (padded.features["b"].max_ids_per_row, padded.features["b"].mean_divisor) == (3, "at_least_one")
    differences = manifest_of(artifact).parity["lookup_tpu_tensor_core"]["differences"]
    assert [d["reason"] for d in differences] == [
        "mean divided by max(sum of weights, 1)",
        "refused here, answered there: b__values: 4 ids in a row",
    ]
    assert differences[0]["rows"] > 0 and sum(differences[0]["example"]["weights"]) < 1
    only = export(two_features(), tmp_path, lookup_device="tpu_tensor_core", signatures=["lookup_tpu_tensor_core"])
    assert list(manifest_of(only).signatures) == ["lookup_tpu_tensor_core"]
    assert lookup_devices("both") == ("cpu", "tpu_tensor_core")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lookup_device": "gpu"}, "lookup_device is 'gpu'"),
        ({"lookup_device": []}, "lookup_device is"),
        ({"lookup_device": ["cpu", "cpu"]}, "lookup_device is"),
        ({"lookup_device": "tpu_tensor_core", "batch_sizes": (4, 2)}, "not an ascending list"),
        ({"lookup_device": "tpu_tensor_core", "batch_sizes": ()}, "not an ascending list"),
        ({"signatures": ["lookup", "other"]}, r"\['other'\] are not among .*serving_default"),
        ({"signatures": ["lookup_tpu_tensor_core"]}, "are not among"),
        ({"signatures": []}, "at least one"),
        ({"signatures": ["lookup", "lookup"]}, "none twice"),
        ({"version": 0}, "positive"),
    ],
    ids=str,
)
def test_what_can_not_be_is_refused_and_leaves_nothing(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ExportError, match=message):
        export(two_features(), tmp_path / "model", **options)
    assert not (tmp_path / "model").exists()


def test_signatures_names_those_to_write(tmp_path: Path) -> None:
    artifact = export(two_features(), tmp_path, signatures=["examples"], warmup=False)
    assert list(manifest_of(artifact).signatures) == ["examples"]
    (graph,) = saved_model(artifact).meta_graphs
    assert set(graph.signature_def) - {"__saved_model_init_op"} == {"examples"}
    assert not (artifact / "assets.extra/tf_serving_warmup_requests").exists()


def test_export_to_tpu_adds_a_meta_graph_over_the_same_variables(tmp_path: Path) -> None:
    artifact = export(two_features(), tmp_path, lookup_device="tpu_tensor_core", export_to_tpu=True, batch_sizes=(4,))
    assert [sorted(graph.meta_info_def.tags) for graph in saved_model(artifact).meta_graphs] == [
        ["serve"],
        ["serve", "tpu"],
    ]
    lowered = verify_artifact(artifact).lowered["lookup_tpu_tensor_core"]
    # 8 requests of lookup_cases(), and the edges of int32 of both features in requests of up to 4 rows.
    assert lowered.cases == 8 + 2 and lowered.max_relative_error < 1e-6


def test_nan_in_a_table_refuses_the_export_unless_allowed(tmp_path: Path) -> None:
    tables = {"item": np.full((9, 2), 0.5, np.float32)}
    tables["item"][3] = [np.nan, np.inf]
    with pytest.raises(ExportError, match="'item' holds 2 numbers that are NaN or infinity"):
        export(two_features(tables=tables), tmp_path / "m", signatures=["lookup"])
    assert not (tmp_path / "m").exists()
    artifact = export(two_features(tables=tables), tmp_path / "m", signatures=["lookup"], allow_nonfinite=True)
    assert manifest_of(artifact).provenance["nonfinite_values"] == {"item": 2}
    assert verify_artifact(artifact).signatures["lookup"].max_absolute_error == 0


def test_nan_in_row_0_does_not_reach_padded_rows(tmp_path: Path) -> None:
    from model_export.graphs.signature_runner import open_signatures

    tables = {"item": np.full((9, 2), 0.5, np.float32)}
    tables["item"][0] = np.nan
    artifact = export(
        two_features(tables=tables),
        tmp_path,
        lookup_device="tpu_tensor_core",
        signatures=["lookup_tpu_tensor_core"],
        batch_sizes=(4,),
        allow_nonfinite=True,
    )
    with open_signatures(artifact) as runner:
        ids = {"a": np.array([1, 2], np.int32), "b__values": np.array([5], np.int32), "b__row_splits": [0, 1, 1]}
        got = runner.run("lookup_tpu_tensor_core", ids)
    assert got["b"].tolist() == [[0.5, 0.5], [0, 0]]


def test_saved_bytes_that_are_not_the_trained_table_are_found(tmp_path: Path) -> None:
    other = {"item": np.zeros((9, 2), np.float32)}
    with pytest.raises(ExportError, match="not the trained variable"):
        export(two_features(saved_tables=other), tmp_path, signatures=["lookup"])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("signature", ["serving_default", "examples"])
def test_a_prediction_that_is_not_the_models_is_found(tmp_path: Path, signature: str) -> None:
    with pytest.raises(ExportError, match=f"'{signature}', output 'score' differs from the trained model by"):
        export(two_features(answer=lambda score: score * np.float32(1.001)), tmp_path, signatures=[signature])
    assert list(tmp_path.iterdir()) == []


def test_every_policy_is_the_oracles_on_both_devices_and_in_the_lowered_graph(tmp_path: Path) -> None:
    from tests.unit.model_export.exporter.table_source import EVERY_POLICY, TableSource

    artifact = export(TableSource(EVERY_POLICY), tmp_path, lookup_device=("cpu", "tpu_tensor_core"), batch_sizes=(7,))
    parity = manifest_of(artifact).parity
    assert {name: entry["max_relative_error"] < 1e-6 for name, entry in parity.items()} == {
        "lookup": True,
        "lookup_tpu_tensor_core": True,
    }
    # Lookups that are refused: ids -1 and 9 of plain, 9 of pruned, an unknown key of known, -1 and 3 of named (rows 0
    # to 11).
    refused = {name: parity[name]["comparisons"][0]["refused"] for name in parity}
    assert refused == {name: parity[name]["refused"] for name in parity}
    # Then the edges: up to 12 of each of these features.
    assert 2 + 1 + 1 + 2 + 4 * 4 <= parity["lookup"]["refused"] <= 2 + 1 + 1 + 2 + 4 * 12
    assert all(parity[name]["comparisons"][0]["other_bits"] == 0 for name in parity)
    # One row of 4 ids for each of the features defaulted, clamped, words and numbered, whose padded lookups have room
    # for 3 ids.
    assert parity["lookup_tpu_tensor_core"]["refused"] == parity["lookup"]["refused"] + 4
    assert sorted(path.name for path in (artifact / "assets").iterdir()) == [
        "hashed.txt",
        "known.txt",
        "named.txt",
        "numbered.txt",
        "words.txt",
    ]
    cut = [d for d in parity["lookup_tpu_tensor_core"]["differences"] if "cut at 4 ids" in d["reason"]]
    assert [d["feature"] for d in cut] == ["pruned"] and len(cut[0]["example"]["ids"]) == 5


def test_sqrtn_has_no_padded_lookup(tmp_path: Path) -> None:
    from tests.unit.model_export.exporter.table_source import TWO_FEATURES, TableSource

    feature = dataclasses.replace(TWO_FEATURES.feature("b"), combiner="sqrtn")
    spec = dataclasses.replace(TWO_FEATURES, features=(feature,))
    with pytest.raises(ExportError, match="'b': the tpu_tensor_core lookup combines by sum or mean"):
        export(TableSource(spec), tmp_path, lookup_device="tpu_tensor_core")
    assert manifest_of(export(TableSource(spec), tmp_path)).signatures["lookup"].features["b"].combiner == "sqrtn"


def test_tables_that_are_not_float32_are_refused(tmp_path: Path) -> None:
    from tests.unit.model_export.exporter.table_source import TWO_FEATURES, TableSource

    spec = dataclasses.replace(TWO_FEATURES, features=(TWO_FEATURES.feature("a"),))
    with pytest.raises(ExportError, match="'item' was saved as float64, expected float32"):
        export(TableSource(spec, {"item": np.ones((9, 2))}), tmp_path)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda base: export(3, base), "model is a builtins.int; expected an EmbeddingEstimator"),
        (lambda base: export(two_features(), base, max_ids_per_row=3), "takes no options, got .'max_ids_per_row'"),
        (lambda base: export(base / "run", base, history=[]), "takes no options, got .'history'"),
    ],
)
def test_models_and_options_of_no_known_kind_are_type_errors(
    tmp_path: Path, call: Callable[[Path], Path], message: str
) -> None:
    with pytest.raises(TypeError, match=message):
        call(tmp_path)


def test_a_folder_is_a_run(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="is it a folder that `train` wrote"):
        as_source(tmp_path)


def test_a_layer_is_exported_with_the_options_of_its_source(tmp_path: Path) -> None:
    from model_export.tensorflow_setup import tfrs

    embedding = tf.tpu.experimental.embedding
    table = embedding.TableConfig(5, 2, name="item", initializer=tf.initializers.Ones(), combiner="sum")
    layer = tfrs.layers.embedding.TPUEmbedding({"item": embedding.FeatureConfig(table, name="item")}, None)
    layer({"item": tf.constant([1], tf.int64)})
    artifact = export(layer, tmp_path, kinds={"item": "ragged"}, max_ids_per_row=3, lookup_device="tpu_tensor_core")
    item = manifest_of(artifact).signatures["lookup_tpu_tensor_core"].features["item"]
    assert (item.combiner, item.max_ids_per_row) == ("sum", 3)
    with pytest.raises(TypeError, match="colour"):
        export(layer, tmp_path, colour=1)


def test_every_name_is_imported_from_its_home() -> None:
    for name in model_export.__all__:
        # As the first use of the name does: other tests have used some before.
        found = model_export.__getattr__(name)
        assert found.__name__ == name and found.__doc__, name
        assert found.__module__.startswith("model_export."), name


def test_no_name_is_hidden_by_a_folder() -> None:
    # After an import of the folder model_export.x, `from model_export import x` gives this folder, even if x is also a
    # public name.
    import importlib.util

    folders = [name for name in model_export.__all__ if importlib.util.find_spec(f"model_export.{name}")]
    assert folders == []


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'embeding_column'"):
        _ = model_export.embeding_column
