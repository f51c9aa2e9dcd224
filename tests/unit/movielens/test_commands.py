"""The demo's commands do nothing twice, and fall back to generated ratings."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from model_export.__main__ import main
from model_export.errors import ExportError
from movielens import commands
from movielens.ratings import RatingData


def test_demo_does_nothing_where_a_version_is_and_none_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "3").mkdir()
    assert main(["demo", "--if_missing", "--out", str(tmp_path)]) == 0
    assert "version 3" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["3"]


def test_auto_falls_back_to_synthetic_ratings_and_says_so_loudly(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def unreachable(folder: Path) -> RatingData:
        raise ExportError("nothing is reachable")

    monkeypatch.setattr(commands, "_fetch_movielens", unreachable)
    data = commands._load_data(argparse.Namespace(dataset="auto", data=Path("x")))
    assert data.name == "synthetic"
    text = capsys.readouterr().out
    assert "nothing is reachable" in text and "SYNTHETIC" in text
    with pytest.raises(ExportError, match="nothing is reachable"):
        commands._load_data(argparse.Namespace(dataset="movielens", data=Path("x")))
