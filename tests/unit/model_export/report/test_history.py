"""Reads curves from the histories that trainings leave, and ignores objects that are not a history."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

from model_export.errors import ExportError
from model_export.report import build as module
from model_export.report.build import curves, read_run_history


def test_a_list_of_epochs_gives_a_curve_per_metric() -> None:
    found = curves([{"epoch": 1, "train_loss": 2, "rmse": 1.5}, {"epoch": 2, "train_loss": 1.0, "rmse": None}])
    assert [(c.name, c.x_name, c.points) for c in found] == [
        ("train_loss", "epoch", ((1.0, 2.0), (2.0, 1.0))),
        ("rmse", "epoch", ((1.0, 1.5),)),
    ]


def test_keras_history_counts_epochs_from_1() -> None:
    (found,) = curves({"loss": [3.0, 2.0], "epoch": [0, 1]})
    assert (found.name, found.points) == ("loss", ((1.0, 3.0), (2.0, 2.0)))


def test_points_are_in_order_and_numbers_only() -> None:
    (found,) = curves(
        [{"step": 9, "loss": 1}, {"step": 3, "loss": 2}, {"step": 5, "loss": float("nan")}, 7, {"a": "b"}]
    )
    assert found.points == ((3.0, 2.0), (9.0, 1.0))


@pytest.mark.parametrize("history", [None, "x", 3, {"loss": "high"}, []])
def test_what_is_no_history_gives_no_curve(history: object) -> None:
    assert curves(history) == ()


def test_a_run_folder_without_a_history_is_named(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"run\.json"):
        read_run_history(tmp_path)
    (tmp_path / "run.json").write_text('{"history": [{"epoch": 1, "loss": 2.0}]}')
    assert curves(read_run_history(tmp_path))[0].points == ((1.0, 2.0),)


def test_the_example_holds() -> None:
    result = doctest.testmod(module)
    assert result.attempted and not result.failed
