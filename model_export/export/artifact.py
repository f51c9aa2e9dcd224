"""Writes an artifact: into a temporary folder, verified there, then one rename makes it a version.

A server that watches the folder of versions therefore never sees a half-written or a wrong one.
"""

from __future__ import annotations

import dataclasses
import os
import platform
import shutil
import tempfile
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from model_export.errors import ExportError
from model_export.export.integrity import check_integrity
from model_export.export.manifest_builder import build_manifest
from model_export.export.oracle import read_tables
from model_export.export.serving_module import ServingModule
from model_export.export.signature_names import DEFAULT_BATCH_SIZES
from model_export.export.verify import check_parity, parity_json
from model_export.export.versions import new_version_folder
from model_export.tensorflow_setup import tf
from model_export.training.checkpoints import restore_weights
from model_export.training.layer_model import RatingModel
from model_export.training.run import CHECKPOINTS_FOLDER, RATING_RANGE, Run
from service.core.manifest import MANIFEST_PATH, Manifest

_PACKAGE = "embedding-server"


def export_run(
    run_folder: Path,
    base: Path,
    *,
    version: int | None = None,
    batch_sizes: Sequence[int] = DEFAULT_BATCH_SIZES,
    clock: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> Path:
    """Exports the newest checkpoint of a run as base/<version>/ and returns that folder.

    Args:
      version: None takes the number after the highest that base has, or 1.
      batch_sizes: static sizes of the tensor-core lookup.

    Raises:
      ExportError: no run or checkpoint, a version that exists, a table with NaN, or an answer that differs from the
        oracle. Nothing is left in base then.
    """
    run = Run.read(run_folder)
    model = RatingModel(
        run.spec, run.config, mean_rating=run.mean_rating, rating_range=RATING_RANGE, table_optimizer=None
    )
    epoch = restore_weights(run_folder / CHECKPOINTS_FOLDER, model)
    if epoch != len(run.history):
        raise ExportError(f"{run_folder} was interrupted in epoch {len(run.history)}; resume the training first")
    return write_artifact(model, run, base, version=version, batch_sizes=batch_sizes, created=clock())


def write_artifact(
    model: RatingModel,
    run: Run,
    base: Path,
    *,
    version: int | None,
    batch_sizes: Sequence[int],
    created: datetime,
) -> Path:
    """Does export_run's work for a model in memory."""
    target = new_version_folder(base, version)
    for name, table in model.tables.items():
        if not np.isfinite(table.numpy()).all():
            raise ExportError(f"table {name!r} holds NaN or infinity; training went wrong, nothing was exported")
    base.mkdir(parents=True, exist_ok=True)
    # Same file system as the target, so that the rename is one step; no server takes the name for a version.
    temporary = Path(tempfile.mkdtemp(prefix=".tmp-", dir=base))
    try:
        artifact = temporary / target.name
        _save(model, run, artifact, batch_sizes)
        manifest = build_manifest(
            artifact, run.spec, batch_sizes=batch_sizes, provenance=_provenance(run, int(target.name), created)
        )
        for name, table in read_tables(artifact, manifest).items():
            if not np.array_equal(table, model.tables[name].numpy()):
                raise ExportError(f"table {name!r}: the saved bytes are not the trained variable")
        manifest = dataclasses.replace(manifest, parity=parity_json(check_parity(artifact, manifest)))
        path = artifact / MANIFEST_PATH
        path.parent.mkdir(exist_ok=True)
        path.write_text(manifest.to_json())
        written = Manifest.read(artifact)
        assert written is not None
        check_integrity(artifact, written)
        _make_durable(artifact)
        os.rename(artifact, target)
        _sync(base)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return target


def _save(model: RatingModel, run: Run, artifact: Path, batch_sizes: Sequence[int]) -> None:
    # The vocabularies are copied into assets/ under the names they have here.
    with tempfile.TemporaryDirectory() as folder:
        files = {}
        for feature in run.spec.features:
            if feature.vocabulary is not None:
                files[feature.name] = Path(folder) / f"{feature.name}.txt"
                files[feature.name].write_text("".join(f"{key}\n" for key in feature.vocabulary.keys), encoding="utf-8")
        module = ServingModule(run.spec, model.tables, model.tower, vocabulary_files=files, batch_sizes=batch_sizes)
        tf.saved_model.save(module, str(artifact), signatures=module.build_signatures())


def _provenance(run: Run, version: int, created: datetime) -> dict[str, Any]:
    return {
        "created": created.isoformat(timespec="seconds"),
        "version": version,
        "package": f"{_PACKAGE} {metadata.version(_PACKAGE)}",
        "tensorflow": tf.__version__,
        "python": platform.python_version(),
        "dataset": dict(run.dataset),
        "train_config": run.config.to_json(),
        "epochs": len(run.history),
        "step": run.step,
        "train_seconds": round(run.seconds, 1),
        "held_out_rmse": run.held_out_rmse,
        "baseline_rmse": dict(run.baselines),
    }


def _make_durable(artifact: Path) -> None:
    # Readable by whoever serves it, and on disk before the rename: a crash may lose a version, never half of it.
    for path in [artifact, *artifact.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
        _sync(path)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
