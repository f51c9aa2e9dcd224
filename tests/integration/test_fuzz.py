"""Sends a server of the toy model some mutated requests of each kind, as `make fuzz` does for minutes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.process import ROOT, environment

pytestmark = pytest.mark.core


def fuzz(base: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs the fuzzer against a server that has lookups but no graph signatures."""
    flags = ["--graph_signatures=off"]
    command = [sys.executable, "-m", "loadtest.fuzz", "--model_name=toy", f"--model_base_path={base}", *arguments]
    return subprocess.run(
        [*command, "--", *flags], cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=300
    )


def test_mutated_messages_and_bodies_find_nothing(base: Path) -> None:
    done = fuzz(base, "--wires=grpc,http,reload", "--requests=600", "--seed=3")
    assert done.returncode == 0, done.stdout + done.stderr
    # Some requests have mutated HTTP headers and HTTP/2 frames, too.
    figures = r"^{}: 720 requests, .*\n .*\b{} \d+.*\b{} \d+.*\b{} "
    assert re.search(figures.format("grpc", "INVALID_ARGUMENT", "OK", "frames"), done.stdout, re.MULTILINE)
    assert re.search(figures.format("http", "400", "200", "head"), done.stdout, re.MULTILINE)
    assert re.search(r"^reload: 7 requests, .*\n .*\bINVALID_ARGUMENT \d+", done.stdout, re.MULTILINE)
    assert "0 findings" in done.stdout


def test_mutated_messages_and_bodies_over_tls_find_nothing(base: Path) -> None:
    done = fuzz(base, "--wires=grpc,http", "--tls", "--requests=400", "--seed=4")
    assert done.returncode == 0, done.stdout + done.stderr
    for wire, refused, answered in (("grpc", "INVALID_ARGUMENT", "OK"), ("http", "400", "200")):
        assert re.search(rf"^{wire}: 480 requests, .*\n .*\b{refused} \d+.*\b{answered} \d+", done.stdout, re.MULTILINE)


def test_tls_is_refused_for_other_wires(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from loadtest.fuzz.__main__ import main

    monkeypatch.setattr(sys, "argv", ["fuzz", "--wires=schema", "--tls"])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert "--tls is for the wires" in capsys.readouterr().err


def test_schemathesis_finds_nothing(base: Path) -> None:
    pytest.importorskip("schemathesis", reason="schemathesis is not installed")
    done = fuzz(base, "--wires=schema", "--phases=coverage")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"Operations: +\d\d selected", done.stdout)


def test_a_finding_fails_the_run_and_one_request_can_be_sent_again(base: Path) -> None:
    # The run counts as grown unless the server's memory shrinks by more than 1 GiB, so it always has a finding.
    done = fuzz(base, "--wires=http", "--seed=3", "--only=17", "--max_growth_mib=-1024")
    assert done.returncode == 1
    assert "http: 1 requests" in done.stdout
    assert "FINDING http: grew by" in done.stdout
    assert done.stdout.splitlines()[-1] == "FAILED: http"
