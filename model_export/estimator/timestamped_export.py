"""Implements export_saved_model: the new version's number is the seconds since 1970, as in TPUEstimator."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from model_export.errors import ExportError
from model_export.estimator.export_source import EstimatorSource
from model_export.estimator.modes import ModeKeys
from model_export.export_model import export
from model_export.exporter.versions import existing_versions
from service.artifact.durable_files import publish_folder
from service.artifact.manifest import LookupDevice

if TYPE_CHECKING:
    # The class is imported for annotations only: estimator.py imports this module when it exports, so an import here
    # would be circular.
    from model_export.estimator.estimator import EmbeddingEstimator


def export_timestamped(
    estimator: EmbeddingEstimator,
    base: Path,
    serving_input_receiver_fn: Callable[[], Any],
    *,
    assets_extra: Mapping[str, str | os.PathLike[str]],
    as_text: bool,
    checkpoint_path: str | None,
    mode: str,
    clock: Callable[[], float] = time.time,
) -> str:
    """Exports an estimator, as EmbeddingEstimator.export_saved_model() says; `clock` returns seconds since 1970."""
    if serving_input_receiver_fn is None:
        raise ValueError("An input_receiver_fn must be defined.")
    if mode != ModeKeys.PREDICT:
        raise ExportError(f"experimental_mode is {mode!r}: only models that predict are exported")
    if as_text:
        raise ExportError("as_text=True: a server reads saved_model.pb only")
    if not estimator.export_to_cpu and not estimator.export_to_tpu:
        raise ValueError("One of export_to_cpu and export_to_tpu must be true.")
    _check_extra(assets_extra)
    source = EstimatorSource(estimator, serving_input_receiver_fn, checkpoint_path=checkpoint_path)
    # A second export in the same second gets the next version number, because version numbers must increase.
    version = max(int(clock()), *(number + 1 for number in existing_versions(base)), 1)
    if not estimator.export_to_cpu:
        return str(_export_tpu_only(source, base / str(version), assets_extra))
    return str(
        export(
            source,
            base,
            version=version,
            lookup_device=_devices(estimator, source),
            signatures=None if source.spec.tables else source.predict_names,
            export_to_tpu=estimator.export_to_tpu,
            extra_files={path: Path(file) for path, file in assets_extra.items()},
        )
    )


def _devices(estimator: EmbeddingEstimator, source: EstimatorSource) -> list[LookupDevice]:
    embedding = estimator.model.embedding
    devices: list[LookupDevice] = ["cpu"]
    if embedding is not None and embedding.tensor_core_feature_columns:
        # Padded lookups can not combine by sqrtn, so they are exported only if no feature has that combiner.
        if all(source.spec.combiner_of(feature) != "sqrtn" for feature in source.spec.features):
            devices.append("tpu_tensor_core")
    return devices


def _export_tpu_only(source: EstimatorSource, target: Path, assets_extra: Mapping[str, Any]) -> Path:
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=".tmp-", dir=target.parent))
    try:
        artifact = temporary / target.name
        source.save_tpu_only(artifact)
        for path, file in assets_extra.items():
            copy = artifact / "assets.extra" / path
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copy)
        publish_folder(artifact, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return target


def _check_extra(assets_extra: Mapping[str, Any]) -> None:
    for path, file in assets_extra.items():
        if PurePath(path).is_absolute() or ".." in PurePath(path).parts:
            raise ValueError(f"assets_extra: {path!r} lies outside assets.extra")
        if not Path(file).is_file():
            raise ValueError(f"assets_extra: {path!r} is to be a copy of {file}, which is no file")
