"""Checks that lines of native libraries become records of a log in JSON, in a process of its own."""

from __future__ import annotations

import importlib.util
import json
import signal
import subprocess
import sys
import textwrap
from typing import Any

import pytest

from tests.integration.process import ROOT

_PROGRAM = """
import logging, os, sys
from service.observe.logs import LogWriter
from service.observe.logs import configure_logging
from service.observe.logs import native_lines_in_log

writer = LogWriter(os.dup(2))
configure_logging("{level}", "json", writer)
with native_lines_in_log(writer):
    print("to standard output", flush=True)
    os.write(2, b"WARNING: All log messages before absl::InitializeLog() is called are written to STDERR\\n")
    os.write(2, b"I0000 00:00:1795448396.756353   30164 port.cc:153] oneDNN is on\\n")
    os.write(2, b"2026-11-23 15:39:57.206753: W tensorflow/core/file.cc:210] slow\\nE0000 00:00:1.5 1 a.cc:1] wrong\\n")
    os.write(2, b"no level \\xff and 100%\\n\\n")
    print("of Python", file=sys.stderr)
    {last}
os.write(2, b"after\\n")
"""


def run(last: str = "pass", level: str = "info") -> tuple[int, list[Any]]:
    """Runs the test's program; returns its exit status, and each line of its standard error, parsed if it is JSON."""
    program = textwrap.dedent(_PROGRAM).format(last=last, level=level)
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True)
    lines: list[Any] = []
    for line in done.stderr.decode("utf-8", "replace").splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            lines.append(line)
        else:
            lines.append((record["level"], record["message"], record.get("source")))
    return done.returncode, lines


@pytest.mark.parametrize("level", ["info", "debug"])
def test_each_line_is_a_record_and_notes_are_for_debugging(level: str) -> None:
    notes = [("debug", "oneDNN is on", "port.cc:153")] if level == "debug" else []
    assert run(level=level) == (
        0,
        [
            ("warning", "to standard output", None),
            *notes,
            ("warning", "slow", "tensorflow/core/file.cc:210"),
            ("error", "wrong", "a.cc:1"),
            ("warning", "no level \\xff and 100%\nof Python", None),
            "after",
        ],
    )


@pytest.mark.skipif(
    importlib.util.find_spec("service._native") is None, reason="the native core is not built: see CONTRIBUTING.md"
)
def test_an_abort_leaves_the_last_line() -> None:
    status, lines = run('os.write(2, b"F0000 Check failed: 1 == 2\\n"); os.abort()')
    assert status == -signal.SIGABRT
    # The process may end before or after its thread has turned this line into a log record.
    last = "F0000 Check failed: 1 == 2"
    assert lines[-1] in (last, ("warning", last, None))


@pytest.mark.skipif(
    importlib.util.find_spec("service._native") is None, reason="the native core is not built: see CONTRIBUTING.md"
)
def test_a_crash_leaves_the_lines_that_are_not_written_yet() -> None:
    # The writer's thread can not run before the crash: the interpreter's lock is not released.
    last = 'sys.setswitchinterval(1e9); logging.error("reason"); import ctypes; ctypes.PyDLL(None).raise_(11)'
    status, lines = run(last.replace("raise_(11)", "raise(11)").replace(".raise(11)", "['raise'](11)"))
    assert status == -signal.SIGSEGV
    assert ("error", "reason", None) in lines
