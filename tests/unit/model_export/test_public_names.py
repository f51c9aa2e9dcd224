"""Every public name of model_export exists, and has its own docstring."""

from __future__ import annotations

import subprocess
import sys

import pytest

import model_export

pytestmark = pytest.mark.tf


def test_every_name_is_imported_from_its_home() -> None:
    # The test imports the names in a new process, because other tests may have imported the modules in this one.
    script = (
        "import model_export\n"
        "for name in model_export.__all__:\n"
        "    found = getattr(model_export, name)\n"
        "    assert found.__name__ == name and found.__doc__, name\n"
        "    assert found.__module__.startswith('model_export.'), name\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_no_name_is_hidden_by_a_folder() -> None:
    # After an import of the folder model_export.x, `from model_export import x` gives this folder, even if x is also a
    # public name.
    import importlib.util

    folders = [name for name in model_export.__all__ if importlib.util.find_spec(f"model_export.{name}")]
    assert folders == []


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'embeding_column'"):
        _ = model_export.embeding_column
