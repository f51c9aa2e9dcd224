"""The client's wheel holds all that it needs, and nothing of the server."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from email import message_from_bytes
from fnmatch import fnmatch
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.integration.conftest import Serve
from tests.integration.process import ROOT, environment

ASK = """
import sys
import embedding_client
from embedding_client import EmbeddingClient
for target in sys.argv[1:]:
    with EmbeddingClient(target, model="default", timeout_s=60) as client:
        found = client.lookup({"user": [1, 4]})
        print(found["user"].tolist(), found.version)
names = {name.partition(".")[0] for name in sys.modules}
print(embedding_client.__file__, sorted(names & {"service", "google", "orjson"}))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Builds the client's wheel as `make wheel` does; returns its path."""
    folder = tmp_path_factory.mktemp("wheel")
    # setuptools writes files beside the sources, so the test builds a copy of them.
    shutil.copytree(ROOT / "client", folder / "client", ignore=shutil.ignore_patterns("build", "*.egg-info"))
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*command, "--wheel-dir", str(folder), str(folder / "client")], check=True, env=environment())
    (built,) = folder.glob("*.whl")
    return built


def test_its_contents(wheel: Path) -> None:
    with ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (metadata,) = (name for name in names if name.endswith("/METADATA"))
        told = message_from_bytes(archive.read(metadata))
    sources = {f"embedding_client/{file.name}" for file in (ROOT / "client/src/embedding_client").glob("*.py")}
    assert {name for name in names if ".dist-info/" not in name} == sources | {"embedding_client/py.typed"}
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert (told["Name"], told["License-Expression"]) == ("embedding-client", "Apache-2.0")
    required = {line.split(">=")[0]: line.partition("; ")[2] for line in told.get_all("Requires-Dist", [])}
    assert required == {"numpy": "", "grpcio": 'extra == "grpc"', "httpx": 'extra == "http"'}


def test_it_answers_over_both_wires_without_the_server_beside_it(wheel: Path, serve: Serve, tmp_path: Path) -> None:
    server = serve().ready()
    done = subprocess.run(
        [sys.executable, "-c", ASK, f"127.0.0.1:{server.grpc_port}", f"http://127.0.0.1:{server.http_port}"],
        cwd=tmp_path,
        env=environment(PYTHONPATH=str(wheel)),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    answer = "[[1.0, 10.0], [4.0, 40.0]] 1"
    assert done.stdout.splitlines() == [answer, answer, f"{wheel}/embedding_client/__init__.py []"]


def test_the_servers_wheel_does_not_bring_it() -> None:
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    patterns = setuptools["packages"]["find"]["include"]
    assert patterns and not any(fnmatch("embedding_client", pattern) for pattern in patterns)
    assert not (ROOT / "service" / "client").exists()
