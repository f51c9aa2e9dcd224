"""What is imported before the native core answers its first lookup."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest


@pytest.mark.skipif(importlib.util.find_spec("service._native") is None, reason="the native core is not built")
def test_the_core_opens_its_ports_without_fastapi_grpcio_and_tensorflow() -> None:
    heavy = "{'tensorflow', 'fastapi', 'pydantic', 'starlette', 'uvicorn', 'grpc'}"
    code = f"import sys, service.app, service.native_servers; print(sorted({heavy} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE, text=True)
    assert found.stdout == "[]\n"
