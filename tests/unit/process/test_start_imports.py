"""Checks which modules are imported before the native core answers its first lookup."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

# Modules that a lookup does not need, and whose import takes from milliseconds to seconds.
HEAVY = {
    *("tensorflow", "fastapi", "pydantic", "starlette", "uvicorn", "grpc", "prometheus_client", "tomllib"),
    *("email", "http", "importlib.metadata", "google.protobuf.descriptor_pb2"),
    *("service.graph.tower", "service.graph.savedmodel", "service.loading.graph_opening"),
}
# A script that loads a version as a server does, and compiles the description for the native core.
LOAD = """
from service.configuration.settings_reading import read_settings
read_settings(["--model_base_path=" + sys.argv[1]], {})
import service.process.cli, service.process.app, service.process.native_servers
from service.native.native_servable import compile_native
from service.loading.loader import ServableLoader
servable = ServableLoader(frozenset({"serve"}), "off", 1, compile_native)("toy", 1, Path(sys.argv[1]))
assert servable.native is not None
"""


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("service._native") is None, reason="the native core is not built")
def test_a_lookup_is_answered_before_anything_heavy_is_imported(toy_model: Path) -> None:
    program = f"import sys\nfrom pathlib import Path\n{LOAD}\nprint(*sys.modules)"
    command = [sys.executable, "-c", program, str(toy_model / "1")]
    found = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.split()
    assert "numpy" in found
    assert not HEAVY & set(found)
