"""Checks a real server's conformance to HTTP/2 with h2spec: on the gRPC port, also behind TLS, and on the HTTP port.

h2spec sends requests like a browser's, and gets answers with a body. h2spec-grpc sends gRPC's headers, and gets gRPC
answers. Together they test every way of ending a stream.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.certificates import Authority, ssl_config
from tests.integration.process import ServerProcess
from tests.toy_model import write_toy_model

ROOT = Path(__file__).parents[2]
TOOLS = ROOT.parent / "shared" / "tools"
pytestmark = pytest.mark.skipif(
    not (TOOLS / "h2spec").exists(), reason="no ../shared/tools: h2spec is not part of this repository"
)
PATH = "/tensorflow.serving.PredictionService/Predict"
# The sections whose test case does not apply to this server, with the reason.
ANSWERED = "the request before is answered by then: its stream is closed, counts no more, and takes no windows"
IN_HTTP_1 = "the HTTP port takes a wrong preface for HTTP/1.1, answers in HTTP/1.1, and closes"
EXCEPTIONS = {"http2/5.1.2/1": ANSWERED, "http2/6.9.1/3": ANSWERED, "http2/3.5/2": IN_HTTP_1}
# The HTTP port refuses gRPC calls by headers alone, and these cases wait for a frame of data.
NO_DATA = {"generic/2/2", "generic/2/3"}


@pytest.fixture(scope="module", params=["plain", "tls", "http"])
def port(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, ...]]:
    """Starts a server; yields h2spec's flags for its gRPC port, plaintext or TLS, or for its HTTP port."""
    folder = tmp_path_factory.mktemp("h2spec")
    write_toy_model(folder / "model" / "1")
    settings: dict[str, object] = {"model_base_path": folder / "model", "graph_signatures": "off"}
    if request.param == "tls":
        (folder / "ssl.conf").write_text(ssl_config(Authority().issue()))
        settings["ssl_config_file"] = folder / "ssl.conf"
    with ServerProcess(**settings) as server:
        server.ready()
        if request.param == "http":
            yield ("-p", str(server.http_port))
            return
        yield ("-p", str(server.grpc_port), *(("-t", "-k") if request.param == "tls" else ()))


def failures(program: str, *arguments: str) -> tuple[set[str], int]:
    """Runs a program; returns the cases that failed, such as http2/4.2/3, and how many passed."""
    command = [str(TOOLS / program), "-h", "127.0.0.1", "-o", "2", *arguments]
    command += ["-P", PATH] if program == "h2spec-grpc" else []
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    found = re.search(r"(\d+) tests, (\d+) passed, \d+ skipped, (\d+) failed", done.stdout)
    assert found, done.stdout + done.stderr
    failed: set[str] = set()
    suite = section = ""
    suites = {"Generic": "generic", "Hypertext": "http2", "HPACK": "hpack"}
    for line in done.stdout.partition("Failures:")[2].splitlines():
        words = line.split()
        if not words:
            continue
        if words[0] in suites:
            suite = suites[words[0]]
        elif numbered := re.fullmatch(r"\s*((?:\d+\.)+) .*", line):
            section = numbered[1].rstrip(".")
        elif case := re.fullmatch(r"\s*× (\d+): .*", line):
            failed.add(f"{suite}/{section}/{case[1]}")
    assert len(failed) == int(found[3]), done.stdout
    return failed, int(found[2])


@pytest.mark.parametrize("program", ["h2spec", "h2spec-grpc"])
def test_every_case_passes_that_holds_here(program: str, port: tuple[str, ...], request: pytest.FixtureRequest) -> None:
    failed, passed = failures(program, "generic", "http2", "hpack", "--max-header-length", "4000", *port)
    if (program, request.node.callspec.params["port"]) == ("h2spec-grpc", "http"):
        assert failed >= NO_DATA
        failed -= NO_DATA
    assert failed <= EXCEPTIONS.keys(), failed - EXCEPTIONS.keys()
    # h2spec skips the cases that need an answer with a body.
    assert passed >= 137
