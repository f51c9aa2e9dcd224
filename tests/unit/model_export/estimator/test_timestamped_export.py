"""Tests each argument of export_saved_model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from model_export.errors import ExportError
from model_export.estimator.estimator import EmbeddingEstimator
from model_export.estimator.estimator_spec import ModeKeys
from model_export.estimator.export_source import export_timestamped
from service.artifact.manifest import MANIFEST_PATH, Manifest
from tests.unit.model_export.estimator.small_model import column, estimator_of, input_fn, model_fn_of
from tests.unit.model_export.estimator.test_export_source import parsing, spec_of, tags_of

pytestmark = pytest.mark.tf


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Trains an estimator for two steps; returns its model_dir."""
    folder = tmp_path_factory.mktemp("trained")
    return estimator_of(folder, spec_of()).train(input_fn, steps=2).model_dir


def test_a_version_is_the_time_or_one_more_and_holds_lookups_heads_and_extra_files(
    tmp_path: Path, model_dir: str
) -> None:
    extra = tmp_path / "note.txt"
    extra.write_text("hello")
    given: dict[str, Any] = {"as_text": False, "mode": ModeKeys.PREDICT, "clock": lambda: 1234.9}
    base = tmp_path / "base"
    (base / "1234").mkdir(parents=True)
    version = export_timestamped(
        estimator_of(model_dir, spec_of()),
        base,
        parsing,
        assets_extra={"notes/one.txt": extra},
        checkpoint_path=str(Path(model_dir) / "model.ckpt-0"),
        **given,
    )
    assert version == str(base / "1235")
    assert sorted(path.name for path in base.iterdir()) == ["1234", "1235"]
    assert (base / "1235" / "assets.extra" / "notes" / "one.txt").read_text() == "hello"
    assert tags_of(base / "1235") == [["serve"], ["serve", "tpu"]]
    manifest = Manifest.read(base / "1235")
    assert manifest is not None
    assert set(manifest.signatures) == {"lookup", "lookup_tpu_tensor_core", "serving_default"}
    assert manifest.provenance["step"] == 0
    assert "assets.extra/notes/one.txt" in manifest.files


def test_without_a_spec_and_without_a_tpu_there_are_the_heads_only(tmp_path: Path, model_dir: str) -> None:
    estimator = EmbeddingEstimator(
        model_fn_of([column()]),
        model_dir,
        estimator_of(model_dir).config,
        train_batch_size=4,
        export_to_tpu=False,
    )
    version = Path(estimator.export_saved_model(tmp_path, parsing))
    assert tags_of(version) == [["serve"]]
    manifest = Manifest.read(version)
    assert manifest is not None and set(manifest.signatures) == {"serving_default"}


def test_export_to_cpu_false_writes_the_tpu_graph_alone_and_no_manifest(tmp_path: Path, model_dir: str) -> None:
    extra = tmp_path / "note.txt"
    extra.write_text("hello")
    estimator = estimator_of(model_dir, spec_of(), export_to_cpu=False)
    version = Path(estimator.export_saved_model(tmp_path / "base", parsing, assets_extra={"note.txt": extra}))
    assert tags_of(version) == [["serve", "tpu"]]
    assert not (version / MANIFEST_PATH).exists()
    assert (version / "assets.extra" / "note.txt").read_text() == "hello"
    assert [path.name for path in (tmp_path / "base").iterdir()] == [version.name]


def test_what_is_refused_leaves_nothing(tmp_path: Path, model_dir: str) -> None:
    estimator = estimator_of(model_dir, spec_of())
    base = tmp_path / "base"
    with pytest.raises(ValueError, match="An input_receiver_fn must be defined."):
        estimator.export_saved_model(base, None)
    with pytest.raises(ExportError, match="as_text=True"):
        estimator.export_saved_model(base, parsing, as_text=True)
    with pytest.raises(ExportError, match="experimental_mode is 'eval'"):
        estimator.export_saved_model(base, parsing, experimental_mode=ModeKeys.EVAL)
    with pytest.raises(ValueError, match="assets_extra: '../x' lies outside"):
        estimator.export_saved_model(base, parsing, assets_extra={"../x": tmp_path})
    with pytest.raises(ValueError, match="which is no file"):
        estimator.export_saved_model(base, parsing, assets_extra={"x": tmp_path})
    neither = estimator_of(model_dir, spec_of(), export_to_cpu=False, export_to_tpu=False)
    with pytest.raises(ValueError, match="One of export_to_cpu and export_to_tpu must be true."):
        neither.export_saved_model(base, parsing)
    assert not base.exists()
