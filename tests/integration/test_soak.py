"""A soak of seconds with tiny tables has no failures, shows those that are provoked, and fills the report's rows."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.process import ROOT, environment

pytestmark = [pytest.mark.tf, pytest.mark.core]

KINDS = {
    *("small lookup", "lookup", "tensor_content", "gzip", "large lookup", "bad request", "unknown model"),
    *("short deadline", "cancelled", "channel closed", "metadata", "status", "HTTP", "health watch", "version swap"),
    *("HTTP small lookup", "upsert"),
}


def soak(bench_models: Path, out: Path, *arguments: str) -> subprocess.Popen[str]:
    """Starts the soak test on tiny tables, with lookups only; returns its process."""
    own = ["--sizes=tiny", f"--folder={bench_models}", f"--out={out}", "--sample_seconds=0.5", "--swap_seconds=1"]
    flags = ["--graph_signatures=off", "--file_system_poll_wait_seconds=0.1"]
    command = [sys.executable, "-m", "loadtest.soak", *own, *arguments, "--", *flags]
    return subprocess.Popen(command, cwd=ROOT, env=environment(), stdout=subprocess.PIPE, text=True)


def read_until(process: subprocess.Popen[str], pattern: str) -> re.Match[str]:
    """Reads a run's output up to the first line with this pattern; returns the match."""
    assert process.stdout is not None
    for line in process.stdout:
        if found := re.search(pattern, line):
            return found
    raise AssertionError(f"ended without {pattern!r}")


def test_nothing_fails_and_the_report_has_its_rows(bench_models: Path, tmp_path: Path) -> None:
    with soak(bench_models, tmp_path, "--minutes=0.06", "--rate=200", "--upsert_seconds=0.5") as process:
        text, _ = process.communicate(timeout=300)
    assert process.returncode == 0, text
    found = json.loads((tmp_path / "soak.json").read_text())
    assert (found["problems"], found["faults"], found["totals"]["failures"]) == ({}, {}, {})
    assert set(found["totals"]["requests"]) == KINDS
    assert found["totals"]["outcomes"]["health watch: SERVING"] >= 1
    assert found["totals"]["outcomes"]["version swap: OK"] >= 1
    assert 6 <= len(found["samples"]) <= 8
    assert all(
        s["anonymous_mib"] > 0 and s["descriptors"] > 0 and s["p99_ms"] >= s["p50_ms"] >= 0 for s in found["samples"]
    )
    report = (tmp_path / "soak.md").read_text()
    assert report in text
    assert all(re.search(rf"^\| {kind} \| \d+ \| 0 \|", report, re.MULTILINE) for kind in KINDS)
    assert len(re.findall(r"^\| \d+\.\d \|", report, re.MULTILINE)) == len(found["samples"])
    assert re.search(r"^Growth in the second half, anonymous_mib: [+-]\d", report, re.MULTILINE)


def test_an_interrupted_run_reports_what_it_has(bench_models: Path, tmp_path: Path) -> None:
    with soak(bench_models, tmp_path, "--minutes=60") as process:
        read_until(process, r"min: \d+ requests")
        process.send_signal(signal.SIGINT)
        text, _ = process.communicate(timeout=120)
    assert process.returncode == 0, text
    assert json.loads((tmp_path / "soak.json").read_text())["totals"]["requests"]["small lookup"] > 0


def test_a_server_that_dies_fails_the_run(bench_models: Path, tmp_path: Path) -> None:
    with soak(bench_models, tmp_path, "--minutes=60") as process:
        server = int(read_until(process, r"^server (\d+): ")[1])
        read_until(process, r"min: \d+ requests")
        os.kill(server, signal.SIGKILL)
        text, _ = process.communicate(timeout=120)
    assert process.returncode == 1, text
    assert re.search(r"^FAILURE \d+ times: small lookup: UNAVAILABLE", text, re.MULTILINE), text
    assert re.search(r"^FAILURE 1 times: server: it is gone", text, re.MULTILINE), text
