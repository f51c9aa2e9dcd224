"""Tests that the import of TensorFlow collects no garbage and leaves out JAX, and that both work afterwards."""

from __future__ import annotations

import subprocess
import sys

import pytest

# Prints whether a garbage collection met a half-imported TensorFlow, and what is left of the import's settings.
IMPORT = """
import gc, sys
from service.graph.library import import_tensorflow
if {is_off}:
    gc.disable()
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
@pytest.mark.parametrize("is_off", [False, True])
def test_nothing_is_collected_and_jax_is_not_imported_and_both_work_afterwards(is_off: bool) -> None:
    pytest.importorskip("jax")
    command = [sys.executable, "-W", "ignore", "-c", IMPORT.format(is_off=is_off)]
    found = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.split()
    assert found == ["0", str(not is_off), "False", "0", "2.0"]
