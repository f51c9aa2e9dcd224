"""Checks the losses that are read from a model_dir, and a folder without a checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

from model_export.estimator import checkpoints
from tests.unit.model_export.estimator.small_model import TABLE, WEIGHT, estimator_of, gradients, input_fn

pytestmark = pytest.mark.tf


def test_losses_of_all_runs_of_a_folder(tmp_path: Path) -> None:
    estimator_of(tmp_path).train(input_fn, steps=2)
    estimator_of(tmp_path).train(input_fn, steps=1)
    history = checkpoints.loss_history(str(tmp_path))
    assert [point["step"] for point in history] == [1, 2, 3]
    first, _, _ = gradients(TABLE, WEIGHT)
    assert history[0]["loss"] == pytest.approx(first, rel=1e-5)
    assert history[2]["loss"] < history[1]["loss"] < history[0]["loss"]
    assert checkpoints.global_step(checkpoints.latest_checkpoint(str(tmp_path))) == 3


def test_a_folder_without_a_checkpoint(tmp_path: Path) -> None:
    assert checkpoints.latest_checkpoint(str(tmp_path)) is None
    assert checkpoints.global_step(None) == 0
    assert checkpoints.loss_history(str(tmp_path)) == []
    assert checkpoints.trained_checkpoint(str(tmp_path), "given") == "given"
