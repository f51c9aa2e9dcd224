"""verify replays recorded answers without the model, and reports every fault, not only the first."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from model_export.errors import ExportError
from model_export.export_model import export
from model_export.parity.comparison import Disagreements
from service.artifact.manifest import MANIFEST_PATH, LookupDevice
from tests.unit.model_export.late import Late

pytestmark = pytest.mark.tf

verify_artifact = Late("model_export.parity.verify", "verify_artifact")

BOTH: tuple[LookupDevice, ...] = ("cpu", "tpu_tensor_core")


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Exports an artifact with every kind of signature and a file of its own; tests must not change it."""
    from tests.unit.model_export.exporter.table_source import TWO_FEATURES, TableSource

    base = tmp_path_factory.mktemp("verify")
    note = base / "note.txt"
    note.write_text("by hand")
    extra = {"notes/note.txt": note}
    source = TableSource(TWO_FEATURES)
    return export(source, base / "model", lookup_device=BOTH, batch_sizes=(2, 4), extra_files=extra)


def edited(artifact: Path, folder: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """Returns a copy of the artifact in which `change` has edited the manifest."""
    copy = shutil.copytree(artifact, folder / "1")
    data = json.loads((copy / MANIFEST_PATH).read_text())
    change(data)
    (copy / MANIFEST_PATH).write_text(json.dumps(data))
    return copy


def test_every_signature_is_compared_with_its_reference(artifact: Path) -> None:
    report = verify_artifact(artifact)
    assert {name: (s.kind, s.reference) for name, s in report.signatures.items()} == {
        "lookup": ("lookup", "oracle"),
        "lookup_tpu_tensor_core": ("lookup", "oracle"),
        "serving_default": ("predict", "recorded answers"),
        "examples": ("predict", "recorded answers"),
    }
    assert report.signatures["serving_default"].outputs["score"].rows == 1 + 17 + 64
    assert report.signatures["lookup"].outputs["a"].max_absolute_error == 0
    # Ids outside the table, one at a time: two of lookup_cases() for each feature, and six edges of int64 for each.
    assert report.signatures["lookup"].refused == 2 * 2 + 2 * 6
    assert report.lowered == {} and report.notes == ()
    (served, *gathered) = report.signatures["lookup"].comparisons
    assert (served.of, served.with_) == ("the server's lookup", "the signature's graph in TensorFlow")
    assert served.requests == report.signatures["lookup"].cases + report.signatures["lookup"].refused
    assert served.refused == report.signatures["lookup"].refused and served.rows > 50 and served.other_bits == 0
    # The model's predictions reduce the whole table, so they gather no rows, and the server runs them whole.
    assert gathered == [] and len(report.signatures["lookup"].uncompared) == 2
    assert "reads table 'tables/item" in report.signatures["lookup"].uncompared[0]
    assert report.signatures["serving_default"].comparisons == ()
    assert json.loads(json.dumps(report.to_json()))["signatures"]["lookup"]["kind"] == "lookup"
    assert report.manifest_json() == json.loads((artifact / MANIFEST_PATH).read_text())["parity"]


def test_extra_files_travel(artifact: Path) -> None:
    assert (artifact / "assets.extra/notes/note.txt").read_text() == "by hand"


@pytest.mark.parametrize("name", ["../x", "/x", "lookup_manifest.json"])
def test_extra_files_stay_where_they_belong(tmp_path: Path, name: str) -> None:
    from tests.unit.model_export.exporter.table_source import TWO_FEATURES, TableSource

    file = tmp_path / "file"
    file.write_text("x")
    with pytest.raises(ExportError, match="extra_files: .* is no path of its own below assets.extra"):
        export(TableSource(TWO_FEATURES), tmp_path / "m", signatures=["lookup"], extra_files={name: file})
    assert not (tmp_path / "m").exists()


def test_without_recorded_answers_predictions_are_not_checked_and_that_is_said(artifact: Path, tmp_path: Path) -> None:
    copy = edited(artifact, tmp_path, lambda data: data["files"].pop("assets.extra/recorded_predictions"))
    (copy / "assets.extra/recorded_predictions").unlink()
    report = verify_artifact(copy)
    assert report.signatures["examples"].reference == "nothing"
    assert not report.signatures["examples"].is_compared
    assert "no answers of the trained model were recorded" in report.signatures["serving_default"].uncompared[0]


def test_all_faults_of_answers_are_told_with_what_was_compared(artifact: Path, tmp_path: Path) -> None:
    from model_export.graphs.source import RECORDED_PATH
    from model_export.parity.prediction_log import read_predictions, write_predictions

    def wrong_combiner(data: dict[str, Any]) -> None:
        data["signatures"]["lookup"]["features"]["b"]["combiner"] = "sum"

    copy = edited(artifact, tmp_path, wrong_combiner)
    recorded = [
        replace(p, outputs={name: array + 1 for name, array in (p.outputs or {}).items()})
        for p in read_predictions(copy / RECORDED_PATH)
    ]
    write_predictions(copy / RECORDED_PATH, recorded)
    with pytest.raises(Disagreements) as caught:
        verify_artifact(copy)
    found = "\n".join(caught.value.lines)
    assert "signature 'lookup', output 'b' differs from the oracle by" in found
    assert "signature 'serving_default', output 'score' differs from the trained model by 1" in found
    assert "signature 'examples', output 'score' differs from the trained model by 1" in found
    assert caught.value.report is not None
    assert caught.value.report.signatures["lookup"].outputs["b"].max_absolute_error > 0.1


def test_a_policy_that_the_graph_does_not_have_is_noticed(artifact: Path, tmp_path: Path) -> None:
    def lenient(data: dict[str, Any]) -> None:
        data["signatures"]["lookup"]["features"]["a"]["on_bad_id"] = "clamp"

    with pytest.raises(Disagreements, match="'lookup' refuses a request that the manifest allows: .*a: an id is"):
        verify_artifact(edited(artifact, tmp_path, lenient))


def test_a_limit_that_the_graph_does_not_have_is_noticed(artifact: Path, tmp_path: Path) -> None:
    def limited(data: dict[str, Any]) -> None:
        data["signatures"]["lookup"]["features"]["b"]["max_ids_per_row"] = 2

    with pytest.raises(Disagreements, match="answers what the manifest refuses: b__values: 3 ids in a row"):
        verify_artifact(edited(artifact, tmp_path, limited))


def test_inputs_and_signatures_that_are_not_there_are_noticed(artifact: Path, tmp_path: Path) -> None:
    def renamed(data: dict[str, Any]) -> None:
        data["signatures"]["lookup"]["features"]["a"]["ids"] = "z"

    with pytest.raises(Disagreements, match=r"'lookup' has no input 'z', .* it takes \['a', "):
        verify_artifact(edited(artifact, tmp_path / "x", renamed))

    def added(data: dict[str, Any]) -> None:
        data["signatures"]["other"] = data["signatures"]["lookup"]

    with pytest.raises(Disagreements, match=r"the SavedModel lacks signatures \['other'\]"):
        verify_artifact(edited(artifact, tmp_path / "y", added))


def test_faults_of_files_are_all_told(artifact: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(artifact, tmp_path / "1")
    (copy / "fingerprint.pb").unlink()
    (copy / "more").write_text("x")
    with pytest.raises(Disagreements) as caught:
        verify_artifact(copy)
    assert len(caught.value.lines) == 2 and caught.value.report is None
    with pytest.raises(ExportError, match="is a folder of versions: name one"):
        verify_artifact(tmp_path)
