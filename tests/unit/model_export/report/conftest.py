"""Fixtures of the report tests: an artifact of the toy model."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.toy_model import write_toy_model


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    """Writes a version folder of the toy model, which a test may change."""
    return write_toy_model(tmp_path / "toy" / "1")
