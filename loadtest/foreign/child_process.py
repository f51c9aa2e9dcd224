"""Runs a module for many models in a child process; if the process dies, a new one continues with the next model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from loadtest.live_server import ROOT

# Number of bytes at the end of a crashed process's output that the report quotes.
_LAST_BYTES = 600
_MARK = "done: "
_KERAS_VARIABLES = ("TF_USE_LEGACY_KERAS", "KERAS_BACKEND")


def run_each(
    module: str, names: Sequence[str], arguments: Sequence[str], environment: Mapping[str, str]
) -> dict[str, dict[str, Any]]:
    """Runs `python -m module *arguments *names`; if it dies at one name, runs it again with the names after that one.

    Args:
      environment: added to this process's environment, from which choices of Keras are removed.

    Returns:
      By name, the result that the module wrote with `write_result`; {"error": ...} for a name that killed the process.
    """
    found: dict[str, dict[str, Any]] = {}
    inherited = {name: value for name, value in os.environ.items() if name not in _KERAS_VARIABLES}
    waiting = [*names]
    while waiting:
        done = subprocess.run(
            [sys.executable, "-m", module, *arguments, *waiting],
            cwd=ROOT,
            env={**inherited, "TF_CPP_MIN_LOG_LEVEL": "3", **environment},
            capture_output=True,
            text=True,
        )
        lines = [json.loads(line.removeprefix(_MARK)) for line in done.stdout.splitlines() if line.startswith(_MARK)]
        found |= dict(lines)
        waiting = waiting[len(lines) :]
        if waiting:
            found[waiting.pop(0)] = {"error": f"the process ended ({done.returncode}): {done.stderr[-_LAST_BYTES:]}"}
    return found


def write_result(name: str, work: Callable[[], Mapping[str, Any]]) -> None:
    """Calls `work` for a name, and writes the result or the error to stdout, where run_each() reads it."""
    try:
        result = {**work()}
    except Exception as error:
        frame = error.__traceback__
        while frame is not None and frame.tb_next is not None:
            frame = frame.tb_next
        where = f" ({Path(frame.tb_frame.f_code.co_filename).name}:{frame.tb_lineno})" if frame else ""
        result = {"error": f"{type(error).__name__}: {error}{where}"}
    sys.stdout.write(f"{_MARK}{json.dumps([name, result])}\n")
    sys.stdout.flush()
