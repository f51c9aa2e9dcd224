"""Runs every example in the packages' docstrings, and compares its result with the text."""

from __future__ import annotations

import doctest
import importlib
import re
from pathlib import Path

import pytest

from tests.source_files import ROOT, module_name, python_files

# Modules without doctests, because importing them starts a program.
PROGRAMS = {"service.__main__"}
# Modules that import the native core.
OF_THE_CORE = {"service.core.edge", "service.process.native_servers"}


def modules() -> list[str]:
    """Returns the dotted names of the service's modules, of the client's, and of the tests' own."""
    client = ROOT / "client" / "src"
    files = [(ROOT, file) for file in (*(ROOT / "service").rglob("*.py"), *(ROOT / "tests").glob("*.py"))]
    files += [(client, file) for file in client.rglob("*.py")]
    names = (".".join(file.relative_to(root).with_suffix("").parts).removesuffix(".__init__") for root, file in files)
    return sorted(name for name in names if name not in PROGRAMS and not name.startswith("tests.test_"))


@pytest.mark.parametrize("name", modules())
def test_examples_hold(name: str) -> None:
    if name in OF_THE_CORE:
        pytest.importorskip("service._native", reason="the native core is not built")
    assert doctest.testmod(importlib.import_module(name)).failed == 0


EXPORTER = [
    file
    for file in python_files("model_export", "examples/movielens")
    if re.search(r"^ *>>> ", (ROOT / file).read_text(), re.M)
]


@pytest.mark.tf
@pytest.mark.parametrize("file", EXPORTER, ids=Path.as_posix)
def test_examples_of_the_exporter_hold(file: Path) -> None:
    assert doctest.testmod(importlib.import_module(module_name(file))).failed == 0


@pytest.mark.parametrize("name", ["service.types", "service.artifact.manifest"])
def test_the_central_types_show_an_example(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).attempted > 0
