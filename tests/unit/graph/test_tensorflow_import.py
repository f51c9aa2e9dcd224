"""Tests that the import of TensorFlow collects no garbage and leaves out JAX, and that both work afterwards."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

from service.graph.library import import_tensorflow
from tests.source_files import ROOT

# Prints whether a garbage collection met a half-imported TensorFlow, and what is left of the import's settings.
IMPORT = """
import gc, sys
from service.graph.library import import_tensorflow
met = set()

def collecting(phase, info):
    if "tensorflow" in sys.modules and sys.modules["tensorflow"].__spec__._initializing:
        met.add(1)

gc.callbacks.append(collecting)
import_tensorflow()
assert sys.modules["tensorflow"].constant(1) == 1
# Objects of TensorFlow that garbage collections go on to visit.
visited = sum(getattr(each, "__module__", "") == "tensorflow.python.framework.ops" for each in gc.get_objects())
import_tensorflow()
print(len(met), gc.isenabled(), "jax" in sys.modules, visited)
import jax
print(jax.numpy.float32(1) + 1)
"""


@pytest.mark.tf
def test_nothing_is_collected_and_jax_is_not_imported_and_both_work_afterwards() -> None:
    pytest.importorskip("jax")
    command = [sys.executable, "-W", "ignore", "-c", IMPORT]
    found = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.split()
    assert found == ["0", "True", "False", "0", "2.0"]


@pytest.mark.parametrize("is_on", [True, False])
def test_garbage_collection_is_on_afterwards_if_it_was_before(
    is_on: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tensorflow.py").write_text("import gc\nwas_on = gc.isenabled()\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    del sys.modules["tensorflow"]
    (gc.enable if is_on else gc.disable)()
    try:
        import_tensorflow()
        assert (sys.modules["tensorflow"].was_on, gc.isenabled()) == (False, is_on)
    finally:
        gc.enable()


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


def test_model_export_imports_it_so_too(tmp_path: Path) -> None:
    for name, text in (("tensorflow", FOUND), ("tensorflow_recommenders", ""), ("jax", "")):
        (tmp_path / f"{name}.py").write_text(text)
    code = "from model_export.tensorflow_setup import tf; import gc, jax; print(tf.was_on, tf.jax, gc.isenabled())"
    variables = os.environ | {"PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, env=variables, check=True, stdout=subprocess.PIPE, text=True)
    assert done.stdout.split() == ["False", "None", "True"]
