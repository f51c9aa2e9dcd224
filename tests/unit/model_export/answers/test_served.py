"""Verify's answers of the server are the core's, or where no core is installed the reference's; and never none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.artifact.manifest import LookupFeature
from service.errors import ArtifactError
from service.process import trial
from service.types import TensorSpec
from tests.stored_tables import store
from tests.toy_model import manifest_of, toy_tables, write_toy_model
from tests.unit.model_export.late import late

with late():
    from model_export.answers.served import ServedAnswers, ServedRefusedError

TAGS = {"tags__values": np.array([1, 2, 3]), "tags__row_splits": np.array([0, 2, 3])}


def opened(folder: Path) -> ServedAnswers:
    """Opens the toy model, of which only the lookups are described."""
    manifest = manifest_of(folder)
    del manifest.signatures["serving_default"]  # type: ignore[attr-defined]
    return ServedAnswers(folder, manifest)


@pytest.mark.parametrize("has_core", [True, False])
def test_lookups_are_answered_with_and_without_the_core(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_core: bool
) -> None:
    if not has_core:
        monkeypatch.setattr(trial, "has_core", lambda: False)
    with opened(write_toy_model(tmp_path / "1")) as served:
        assert (served.has("lookup"), served.has("serving_default")) == (True, False)
        found = served.run("lookup", {"user": np.array([3]), **TAGS}, ("user", "tags"))
        assert {name: array.tolist() for name, array in found.items()} == {
            "user": [[3, 30]],
            "tags": [[1.5, 2.5, 1], [3, 9, 1]],
        }
        with pytest.raises(ServedRefusedError.found(), match='input "user": id 5 at position 1 is out of range'):
            served.run("lookup", {"user": np.array([0, 5])})


@pytest.mark.skipif(not trial.has_core(), reason="the native core is not built")
def test_a_version_that_the_core_can_not_compile_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(servable: Any, *arguments: Any, **options: Any) -> Any:
        return replace(servable, not_run=dict.fromkeys(servable.backends, "no such dtype"))

    monkeypatch.setattr(trial, "compile_native", refused)
    with pytest.raises(ArtifactError, match="the core can not run .*: no such dtype"):
        opened(write_toy_model(tmp_path / "1"))
    table = store(toy_tables()["tag"]).mapped
    with pytest.raises(ArtifactError, match="the core can not look up its features: no such dtype"):
        trial.lookup_of(LookupFeature("ids"), table, {"ids": TensorSpec("ids", "int64", (None,))})
