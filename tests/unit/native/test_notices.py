"""Checks the file of licences of the native core's crates, as far as that is possible without cargo."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[3]
NOTICES = "native/THIRD-PARTY-NOTICES.txt"


def test_each_dependency_of_the_core_is_named_by_its_version() -> None:
    native = ROOT / "native"
    names = tomllib.loads((native / "Cargo.toml").read_text())["dependencies"].keys()
    locked = tomllib.loads((native / "Cargo.lock").read_text())["package"]
    lines = (ROOT / NOTICES).read_text().splitlines()
    for crate in locked:
        if crate["name"] in names and "source" in crate:
            assert any(line.startswith(f"{crate['name']} {crate['version']}, ") for line in lines), crate


def test_they_are_in_the_wheel_and_the_images() -> None:
    assert NOTICES in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["license-files"]
    assert f"COPY {NOTICES} " in (ROOT / "Dockerfile").read_text()
    assert f"!{NOTICES}" in (ROOT / ".dockerignore").read_text().splitlines()
