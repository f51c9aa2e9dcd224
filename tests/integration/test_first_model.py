"""docs/first-model.md does what it says: its files are written, its commands run, and answers look as shown there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from tests.integration import browser as browsing
from tests.integration.process import ROOT, environment, until, unused_ports

pytestmark = [pytest.mark.tf, pytest.mark.core]

BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", (ROOT / "docs/first-model.md").read_text(), re.MULTILINE | re.DOTALL)
PROGRAMS = {"python": "{home}/brief.py", "embedding-server": "-m service"}
# Runs a script as `python` does. No test looks at measured speeds: each timing takes 2 ms in place of 60.
BRIEF = """import runpy, sys
import service.process.trial
service.process.trial._TURN_S = 0.002
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Writes a folder with the programs that the document calls."""
    (tmp_path / "brief.py").write_text(BRIEF)
    for name, module in PROGRAMS.items():
        run = module.format(home=tmp_path)
        program = tmp_path / ".venv/bin" / name
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT}:{ROOT}/client/src exec {sys.executable} {run} "$@"\n')
        program.chmod(0o755)
    return tmp_path


def shape_of(answer: str) -> str:
    """Returns an answer with N for each number with a point, because what a model learns depends on the processor."""
    return re.sub(r"-?\d+\.\d+(e[-+]?\d+)?", "N", answer.strip())


def test_every_block_runs_and_answers_as_shown(home: Path) -> None:
    grpc_port, http_port = unused_ports(2)

    def here(text: str) -> str:
        return text.replace("127.0.0.1:8501", f"127.0.0.1:{http_port}").replace(":8500", f":{grpc_port}")

    def run(command: str) -> str:
        done = subprocess.run(
            ["bash", "-c", command], cwd=home, env=environment(), capture_output=True, text=True, timeout=300
        )
        # curl fails until the server listens, and until() runs it again.
        assert done.returncode == 0 or command.startswith("curl"), done.stdout + done.stderr
        return done.stdout

    servers: list[subprocess.Popen[bytes]] = []
    compared, command, said = 0, "", ""
    try:
        for kind, text in BLOCKS:
            if kind == "python":
                (home / text.splitlines()[0].removeprefix("# ")).write_text(here(text))
            elif kind == "sh" and "embedding-server" in text:
                serving = f"exec {text.strip()} --port={grpc_port} --rest_api_port={http_port}"
                # The server writes text for a person to a terminal, and JSON to anything else.
                ours, terminal = os.openpty()
                servers.append(subprocess.Popen(["bash", "-c", serving], cwd=home, env=environment(), stderr=terminal))
                os.close(terminal)
            elif kind == "sh":
                command = here(text)
                said = run(command)
            elif "signature  " in text:
                (heading,) = (line.split() for line in text.splitlines() if line.startswith("signature  "))
                assert heading in [line.split() for line in said.splitlines()]
                assert said.splitlines()[-1] == text.splitlines()[-1]
                compared += 1
            else:
                # A server that still starts or loads has not answered yet, so the command is run until it does.
                if shape_of(said) != shape_of(text):
                    until(partial(lambda asked, shown: shape_of(run(asked)) == shape_of(shown), command, text))
                compared += 1
        shown = ""
        while not all(text in shown for text in ("console http", "docs http", "films version 1, ready after")):
            shown += os.read(ours, 1 << 12).decode()
        if browsing.CHROMIUM:
            look(shown)
    finally:
        for server in servers:
            server.terminate()
            server.wait(60)
        os.close(ours)
    assert compared == 5
    assert sorted(os.listdir(home / "models/films")) == ["1", "2"]


def look(shown: str) -> None:
    """Opens the addresses that the terminal shows in a browser."""
    (console, docs) = (re.findall(rf"{page} (http://\S+)/{page}", shown)[0] for page in ("console", "docs"))
    with browsing.chromium() as browser, browsing.watched(browser, console) as seen:
        model = seen.open().get_by_role("region", name="Model films", exact=True)
        model.locator("tr", has_text="AVAILABLE").locator("td", has_text=re.compile("^2$")).wait_for()
        seen.page.goto(f"{docs}/docs")
        seen.page.get_by_role("heading", name="Embedding server").wait_for()
