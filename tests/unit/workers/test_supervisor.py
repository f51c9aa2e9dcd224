"""The supervising process: what it imports, and what it makes of workers that never come up."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest
from service.workers import worker_process
from service.workers.supervisor import Supervisor

from service.configuration.settings_reading import read_settings

ROOT = Path(__file__).parents[3]
HEAVY = ["numpy", "numba", "llvmlite", "fastapi", "uvicorn", "uvloop", "grpc", "google", "tensorflow", "orjson"]


def test_it_imports_none_of_what_a_server_needs() -> None:
    code = (
        "import sys, service.cli, service.workers.supervisor\n"
        f"found = sorted(set({HEAVY!r}) & set(sys.modules))\n"
        "found += [name for name in sys.modules if name.startswith('service.core')]\n"
        "sys.exit(repr(found) if found else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.anyio
async def test_workers_that_never_listen_end_the_start(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(worker_process, "_START", "raise SystemExit(7)")
    settings = read_settings(
        ["--model_base_path=m", "--workers=2", "--host=127.0.0.1", "--port=0", "--rest_api_port=0"], {}
    )
    with caplog.at_level(logging.ERROR):
        assert await Supervisor(settings).run() == 1
    (record,) = [record for record in caplog.records if record.getMessage() == "cannot start"]
    assert "exit status 7 each time before it listened" in vars(record)["reason"]
