"""Reads MetaGraphs without TensorFlow: of the toy model, and of exports that TensorFlow 2.15's TPUEstimator wrote."""

from __future__ import annotations

from pathlib import Path

import pytest

from model_export.errors import ExportError
from model_export.report.build import read_meta_graphs
from service.artifact.manifest import Manifest
from service.errors import ArtifactError

GOLDEN = Path(__file__).resolve().parents[5] / "shared" / "golden" / "tpu_estimator_2_15" / "tensor_core"


def test_signatures_have_what_pb_and_manifest_say(artifact: Path) -> None:
    (graph,) = read_meta_graphs(artifact, Manifest.read(artifact))
    assert graph.tags == ("serve",)
    lookup, padded, predict = graph.signatures
    assert [(s.name, s.kind, s.device, s.batch_sizes) for s in graph.signatures] == [
        ("lookup", "lookup", "cpu", ()),
        ("lookup_tpu_tensor_core", "lookup", "tpu_tensor_core", (1, 4)),
        ("serving_default", "predict", None, ()),
    ]
    assert {t.name: (t.dtype, t.shape) for t in padded.inputs}["tags__values"] == ("int32", (None,))
    assert {t.name: (t.dtype, t.shape) for t in lookup.outputs}["tags"] == ("float32", (None, 3))
    assert padded.features["tags"].max_ids_per_row == 3 and predict.method == "tensorflow/serving/predict"


def test_without_a_manifest_signatures_are_graphs(artifact: Path) -> None:
    (graph,) = read_meta_graphs(artifact, None)
    assert {(s.kind, s.device, len(s.features)) for s in graph.signatures} == {("graph", None, 0)}


def test_the_exports_of_tensorflow_2_15() -> None:
    if not GOLDEN.is_dir():
        pytest.skip("…/shared is not here")
    graphs = read_meta_graphs(GOLDEN / "tpu_v1" / "1", None)
    assert [(g.tags, g.tensorflow_version) for g in graphs] == [(("serve",), "2.15.1"), (("serve", "tpu"), "2.15.1")]
    for graph in graphs:
        (signature,) = graph.signatures
        assert signature.name == "serving_default"
        assert [(t.name, t.dtype) for t in signature.inputs] == [("examples", "string")]
        assert [t.name for t in signature.outputs] == ["embedding", "score"]


def test_a_folder_that_is_no_saved_model_says_what_it_is(artifact: Path, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"is a folder of versions: name one, such as .*/toy/1"):
        read_meta_graphs(artifact.parent, None)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ExportError, match="it is not a SavedModel"):
        read_meta_graphs(tmp_path / "empty", None)
    with pytest.raises(ExportError, match="does not exist"):
        read_meta_graphs(tmp_path / "nowhere", None)
    (artifact / "saved_model.pb").write_bytes(b"no proto")
    with pytest.raises(ArtifactError, match="is not a SavedModel"):
        read_meta_graphs(artifact, None)
