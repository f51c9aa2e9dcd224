"""The loader looks at assets.extra/saved_model_config.pb, and does not apply it."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.artifact.signature_def import SAVED_MODEL_CONFIG, check_saved_model_config
from service.errors import ArtifactError


@pytest.mark.parametrize("data", [None, b"", b"\x0a\x02\x18\x01"])
def test_none_an_empty_one_and_any_message_are_taken(tmp_path: Path, data: bytes | None) -> None:
    path = tmp_path / SAVED_MODEL_CONFIG
    path.parent.mkdir()
    if data is not None:
        path.write_bytes(data)
    check_saved_model_config(tmp_path)


def test_what_is_no_message_is_refused_in_tensorflow_servings_words(tmp_path: Path) -> None:
    path = tmp_path / SAVED_MODEL_CONFIG
    path.parent.mkdir()
    path.write_bytes(b"\x0a\xff")
    with pytest.raises(ArtifactError, match=f"^Unable to parse SavedModelConfig: {path}$"):
        check_saved_model_config(tmp_path)
