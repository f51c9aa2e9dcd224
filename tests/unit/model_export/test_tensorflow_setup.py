"""How model_export imports TensorFlow."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.conftest import HEAVY_IMPORTS
from tests.source_files import ROOT
from tests.unit.model_export.late import Late, late

# In place of TensorFlow: keeps what it found when it was imported.
FOUND = """
import gc
was_on = gc.isenabled()
try:
    import jax
except ImportError:
    jax = None

class config:
    list_physical_devices = list
"""


def test_the_import_collects_no_garbage_and_finds_no_jax(tmp_path: Path) -> None:
    for name, text in (("tensorflow", FOUND), ("tensorflow_recommenders", ""), ("jax", "")):
        (tmp_path / f"{name}.py").write_text(text)
    code = "from model_export.tensorflow_setup import tf; import gc, jax; print(tf.was_on, tf.jax, gc.isenabled())"
    variables = os.environ | {"PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, env=variables, check=True, stdout=subprocess.PIPE, text=True)
    assert done.stdout.split() == ["False", "None", "True"]


with late():
    import pyclbr
    from tabnanny import format_witnesses


def test_no_file_imports_them_while_it_is_collected() -> None:
    assert HEAVY_IMPORTS == {}


def test_names_of_the_block_are_imported_at_their_first_use() -> None:
    assert isinstance(pyclbr, Late) and isinstance(format_witnesses, Late)
    assert not {"pyclbr", "tabnanny"} & sys.modules.keys()
    assert format_witnesses([(4,)]) == "at tab size 4"
    assert pyclbr.Class is sys.modules["pyclbr"].Class
