"""Tests of `model-export diff`, on toy versions and without TensorFlow."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from model_export.__main__ import main
from tests.unit.model_export.late import late
from tests.versions_to_compare import random_rotation, random_rows, write_version

with late():
    from model_export.diff.predictions import output_diff


@pytest.fixture
def versions(tmp_path: Path) -> tuple[str, str]:
    """Writes two versions: the second has the rows of the first, rotated; each fiftieth points the other way."""
    old = random_rows(200, 1)
    new = (old @ random_rotation(2)).astype(np.float32)
    new[::50] = -new[::50]
    return str(write_version(tmp_path / "1", old)), str(write_version(tmp_path / "2", new))


def test_text_names_the_broken_rows(versions: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", *versions, "--no_predictions"]) == 0
    text = capsys.readouterr().out
    assert "4 of 200 rows drifted (2 %): cosine below 0.3 after alignment; median cosine 1.000" in text
    assert "  50  old id 50; new id 50; cosine -0.9" in text
    assert "200 rows in both by id; 0 added, 0 removed, 0 moved" in text


def test_json_is_the_whole_comparison(versions: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", *versions, "--no_predictions", "--json", "--rows", "100"]) == 0
    document = json.loads(capsys.readouterr().out)
    found = {table["table"]: table for table in document["tables"]}
    assert found["user"]["drift"]["rows"] == 100 and document["drifted_cosine"] == 0.3
    assert document["drift_percent"] == found["user"]["drift"]["percent"]


def test_html_is_one_page_without_scripts(versions: tuple[str, str], tmp_path: Path) -> None:
    page = tmp_path / "diff.html"
    assert main(["diff", *versions, "--no_predictions", "--html", str(page)]) == 0
    html = page.read_text()
    assert "<script" not in html and "http://www.w3.org/2000/svg" in html and html.count("<svg") == 4
    assert "Cosine of old and new row" in html and "4 (2 %)" in html


def test_drift_beyond_the_limit_is_an_error(versions: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", *versions, "--no_predictions", "--max_drift", "2"]) == 0
    assert main(["diff", *versions, "--no_predictions", "--max_drift", "1.9"]) == 1
    assert 'model-export: drifted (--max_drift=1.9): table "user": 2 % of ' in capsys.readouterr().err


def test_a_folder_that_is_no_version_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", str(tmp_path / "absent"), str(tmp_path)]) == 1
    assert "absent does not exist" in capsys.readouterr().err


def test_answers_are_compared_by_numpy() -> None:
    generator = np.random.default_rng(0)
    pairs = [(generator.standard_normal((n, 2)), generator.standard_normal((n, 2))) for n in (1, 5, 30)]
    found = output_diff("serving_default", "score", pairs)
    old, new = (np.concatenate([pair[side].ravel() for pair in pairs]) for side in (0, 1))
    assert (found.requests, found.values, found.changed) == (3, 72, 72)
    assert found.mean_absolute == pytest.approx(np.abs(old - new).mean())
    assert found.max_absolute == np.abs(old - new).max()
    assert found.correlation == pytest.approx(np.corrcoef(old, new)[0, 1])
