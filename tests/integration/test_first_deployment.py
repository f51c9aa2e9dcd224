"""The commands of docs/first-deployment.md and docs/first-night-on-call.md work as the pages say, on one server."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.integration import browser as browsing
from tests.integration.process import ROOT, environment, until, unused_ports
from tests.toy_model import write_toy_model

pytestmark = pytest.mark.core

PROGRAMS = {"python": "", "embedding-server": "-m service"}


def blocks(page: str) -> list[tuple[str, str]]:
    """Returns the fenced blocks of a page that name a language, with the language."""
    return re.findall(r"^```(\w+)\n(.*?)^```$", (ROOT / "docs" / page).read_text(), re.MULTILINE | re.DOTALL)


class Home:
    """A folder in which the pages' commands run, on ports of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.grpc_port, self.http_port = unused_ports(2)
        write_toy_model(folder / "models/films/1")
        (folder / ".venv/bin").mkdir(parents=True)
        for name, module in PROGRAMS.items():
            program = folder / ".venv/bin" / name
            program.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT}:{ROOT}/client/src exec {sys.executable} {module} "$@"\n')
            program.chmod(0o755)

    def here(self, text: str) -> str:
        """Returns a text in which the pages' ports are replaced by this folder's ports."""
        return text.replace("localhost:8501", f"localhost:{self.http_port}").replace(
            "localhost:8500", f"localhost:{self.grpc_port}"
        )

    def run(self, command: str) -> str:
        """Runs a command in the home folder; returns its standard output, or "" if it failed."""
        done = subprocess.run(
            ["bash", "-c", self.here(command)], cwd=self.folder, env=environment(), capture_output=True, text=True
        )
        return done.stdout if done.returncode == 0 else ""

    def serve(self, command: str) -> subprocess.Popen[bytes]:
        """Starts the server with a page's command, and with ports and flags of its own."""
        ports = f"--port={self.grpc_port} --rest_api_port={self.http_port}"
        # Every request takes longer than this limit, so the list of slow requests is not empty.
        more = f"--graph_signatures=off --slow_request_ms=0.000001 {ports}"
        return subprocess.Popen(["bash", "-c", f"exec {command.strip()} {more}"], cwd=self.folder, env=environment())


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    """Runs all steps of the page on deployment; yields the folder, while its server runs."""
    home = Home(tmp_path_factory.mktemp("deployment"))
    servers = []
    asked = ""
    try:
        for kind, text in blocks("first-deployment.md"):
            if kind in ("toml", "python"):
                (home.folder / text.splitlines()[0].removeprefix("# ")).write_text(home.here(text))
            elif kind == "text":
                until(partial(_answers, home, asked, text))
            elif "bin/embedding-server" in text:
                servers.append(home.serve(text))
            else:
                asked = text
                if "curl" not in text and "ask.py" not in text:
                    subprocess.run(["bash", "-ec", text], cwd=home.folder, check=True, capture_output=True)
        assert len(servers) == 1
        yield home
    finally:
        for server in servers:
            server.terminate()
            server.wait(60)


def _answers(home: Home, command: str, shown: str) -> bool:
    return _shape_of(home.run(command)) == _shape_of(shown)


def _shape_of(answer: str) -> str:
    """Returns an answer with N for each vector: another model has other numbers, and more or fewer of them."""
    return re.sub(r"\[-?\d+\.\d+(,-?\d+\.\d+)*\]", "N", answer.strip())


def test_a_deployment_counts_what_it_answered(home: Home) -> None:
    found = home.run(next(text for _, text in blocks("first-deployment.md") if "/metrics" in text))
    assert all(f'api="{api}",code="OK",model="films"' in found for api in ("grpc", "http")), found


@pytest.mark.skipif(not browsing.CHROMIUM, reason="chromium is not installed")
def test_the_operator_signs_in_by_a_browser_and_sees_what_the_pages_say(home: Home) -> None:
    url = f"https://localhost:{home.http_port}"
    token = (home.folder / "operator.token").read_text().strip()
    with browsing.chromium() as browser, browsing.watched(browser, url, ignore_https_errors=True) as seen:
        seen.expected = ("401", "501")
        # Without a session a page of the server is a page about the sign-in, and no JSON.
        assert (answer := seen.page.goto(f"{url}/v1/statusz")) is not None and answer.status == 401
        seen.page.get_by_role("link", name="Sign in with your token").click()
        seen.page.wait_for_selector("h1 >> text=Sign in")
        seen.page.get_by_label("Token").fill(token)
        seen.page.get_by_role("button", name="Sign in").click()
        seen.page.wait_for_selector("section[aria-label='Model films']")
        # The checks of the page sent a request without a token.
        attention = seen.page.get_by_role("region", name="Needs attention")
        attention.get_by_text(re.compile(r"\d+ requests? failed in the last 5 minutes")).wait_for()
        attention.get_by_role("row", name="UNAUTHENTICATED").wait_for()
        attention.get_by_role("link", name="Last errors").click()
        seen.page.get_by_role("region", name="Failed requests").get_by_text(
            "Valid credentials are required"
        ).first.wait_for()
        seen.open("tables?model=films&table=user&id=1")
        seen.page.wait_for_selector("h2 >> text=Row 1")
        assert (answer := seen.page.goto(f"{url}/v1/statusz")) is not None and answer.status == 200
        assert "films" in seen.page.inner_text("body")


ON_CALL = [text for kind, text in blocks("first-night-on-call.md") if kind == "sh"]


@pytest.mark.parametrize("command", ON_CALL[1:])
def test_a_command_for_a_night_on_call_says_something(home: Home, command: str) -> None:
    # The table has no row 99, so the log and the metrics have an error that these commands can show.
    token = (home.folder / "ranker.token").read_text().strip()
    ask = f"curl -s --cacert tls.crt -H 'Authorization: Bearer {token}' https://localhost:8501/v1/models/films:lookup"
    assert "out of range" in home.run(f"""{ask} -d '{{"features": {{"user": [99]}}}}'""")
    assert home.run(ON_CALL[0] + command).strip(), command
