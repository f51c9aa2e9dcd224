"""Chooses the version numbers of new artifacts."""

from __future__ import annotations

from pathlib import Path

import pytest

from model_export.errors import ExportError
from model_export.exporter.versions import existing_versions, new_version_folder


def test_the_first_is_1_and_then_the_number_after_the_highest(tmp_path: Path) -> None:
    base = tmp_path / "model"
    assert new_version_folder(base, None) == base / "1"
    for name in ("1", "10", "2", ".tmp-99", "notes"):
        (base / name).mkdir(parents=True)
    assert existing_versions(base) == [1, 2, 10]
    assert new_version_folder(base, None) == base / "11"
    assert new_version_folder(base, 5) == base / "5"


@pytest.mark.parametrize(("version", "message"), [(3, "never overwritten"), (0, "positive"), (-1, "positive")])
def test_a_version_that_can_not_be_written_is_refused(tmp_path: Path, version: int, message: str) -> None:
    (tmp_path / "3").mkdir()
    with pytest.raises(ExportError, match=message):
        new_version_folder(tmp_path, version)
