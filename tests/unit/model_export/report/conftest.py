"""Artifacts that the tests of reports read: the toy model, and what a manifest lacks or gets wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.toy_model import write_toy_model


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    """A version folder of the toy model that a test may change."""
    return write_toy_model(tmp_path / "toy" / "1")
