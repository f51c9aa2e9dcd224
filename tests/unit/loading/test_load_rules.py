"""Checks that the settings about memory reach the tables before their version answers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from service.configuration.settings_reading import read_settings
from service.errors import ArtifactError
from service.loading.loader import ServableLoader, residency_of
from service.native.native_servable import compile_native
from service.tables import residency
from service.tables.residency import Residency
from tests.toy_model import write_toy_model


def test_every_setting_has_its_effect() -> None:
    flags = ["--warm=tables", "--warm_mib_per_s=1.5", "--table_lock=try", "--table_pages=random"]
    assert residency_of(read_settings(["--model_base_path=/m", *flags])) == Residency(
        is_prefaulted=True, bytes_per_s=1_572_864.0, lock="try", advice="random"
    )
    assert residency_of(read_settings(["--model_base_path=/m", "--warm=hot_rows"])) == Residency(is_warmed=True)
    assert residency_of(read_settings(["--model_base_path=/m"])) == Residency()
    # --warm=tables reads all pages, so it also asks the kernel for huge pages.
    assert residency_of(read_settings(["--model_base_path=/m", "--warm=tables"])) == Residency(
        is_prefaulted=True, advice="huge"
    )


def test_a_version_whose_tables_must_be_locked_and_can_not_is_not_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(residency._libc, "mlock", lambda _address, _nbytes: -1)
    path = write_toy_model(tmp_path / "1")
    loader = ServableLoader(frozenset({"serve"}), "off", 1, compile_native)
    with pytest.raises(ArtifactError, match="can not be locked"):
        replace(loader, residency=Residency(lock="require"))("toy", 1, path)
    # Residency() does not require locked pages, so the version is loaded although mlock() fails.
    loader("toy", 1, path).close()
