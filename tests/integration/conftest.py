"""Fixtures of the integration tests: a model folder that tests may change, and servers over it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from loadtest.bench.models import prepared
from tests.conftest import MakeOnce
from tests.fork_server import fork_server
from tests.integration.process import PATIENCE_S, ROOT, ServerProcess, environment
from tests.integration.remote_tables import large
from tests.integration.s3_server import BUCKET, S3Server
from tests.integration.store_proxy import StoreProxy
from tests.toy_model import write_toy_model
from tests.valkey_cluster import Cluster

Serve = Callable[..., ServerProcess]
# Takes the command's arguments; returns its exit status and all that it wrote.
ModelExport = Callable[..., tuple[int, str]]
# The most rows that the padded lookup signatures of the demo's model accept in a request.
DEMO_ROWS = 8


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """Makes a model folder with version 1 of the toy model."""
    write_toy_model(tmp_path / "model" / "1")
    return tmp_path / "model"


@pytest.fixture
def serve(base: Path) -> Iterator[Serve]:
    """Returns a function that starts servers over the model folder, with lookups only by default; stops them later."""
    with ExitStack() as stack:

        def start(*flags: str, **settings: object) -> ServerProcess:
            given = {
                "model_base_path": base,
                "graph_signatures": "off",
                "file_system_poll_wait_seconds": 0.05,
            }
            return stack.enter_context(ServerProcess(*flags, **(given | settings)))

        yield start


@pytest.fixture(scope="session")
def demo_model(make_once: MakeOnce) -> Path:
    """Makes a small model folder with the command that `make demo` runs; tests must not change the files."""

    def write(folder: Path) -> None:
        command = [sys.executable, "-m", "model_export", "demo", "--dataset=synthetic", "--epochs=1"]
        command += [f"--out={folder}", f"--batch_sizes=1,{DEMO_ROWS}"]
        done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr

    return make_once("demo-model", write)


@pytest.fixture(scope="session")
def model_export() -> Iterator[ModelExport]:
    """Returns a function that runs the command model-export in a fork of a process that has imported TensorFlow."""
    with fork_server(("model_export.commands", "model_export.tensorflow_setup"), 0) as forks:
        yield lambda *arguments: forks.start("model_export", *arguments, environment=environment()).end(PATIENCE_S)


@pytest.fixture(scope="session")
def bench_models(make_once: MakeOnce) -> Path:
    """Exports the benchmark's models with tiny tables, adopted and plain; returns their folder.

    Tests must not change them.
    """
    return make_once("bench-models", lambda folder: prepared(folder, "tiny", ("model", "graph_predict")))


@pytest.fixture(scope="session")
def moto() -> Iterator[S3Server]:
    """Starts one S3 server for all tests of a worker process."""
    server = S3Server()
    yield server
    server.kill()


@pytest.fixture
def s3(moto: S3Server) -> S3Server:
    """Returns the S3 server, with an empty bucket."""
    moto.empty()
    return moto


@pytest.fixture
def proxy(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[StoreProxy]:
    """Starts a proxy before the S3 server, and points the store's clients at it with environment variables."""
    proxy = StoreProxy(s3.port)
    for name, value in s3.variables(proxy.url).items():
        monkeypatch.setenv(name, value)
    yield proxy
    proxy.close()


@pytest.fixture
def uri() -> str:
    """Returns a URI in the S3 server's bucket."""
    return f"s3://{BUCKET}/toy"


@pytest.fixture
def start(serve: Serve, tmp_path: Path, uri: str) -> Serve:
    """Returns a function that starts a server of the model in the store."""

    def start(**settings: object) -> ServerProcess:
        given = {
            "model_base_path": uri,
            "store_cache_dir": tmp_path / "cache",
            "store_poll_wait_seconds": 0.2,
            "first_loads_timeout_s": 0.5,
            "max_num_load_retries": 1000,
        }
        return serve(**(given | settings))

    return start


def add_version(base: Path, version: int, **options: object) -> Path:
    """Adds a version as an exporter does: writes it to another folder, then renames that."""
    hidden = base.parent / f"incoming-{version}"
    write_toy_model(hidden, **options)  # type: ignore[arg-type]
    os.rename(hidden, base / str(version))
    return base / str(version)


@pytest.fixture(scope="module")
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, np.ndarray]:
    """Writes a version whose table "user" has the test file's ROWS rows; tests must not change the files."""
    return large(tmp_path_factory.mktemp("model") / "toy" / "1", request.module.ROWS)


@pytest.fixture
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    """A cluster of three primaries, with as many replicas of each as the test asks for."""
    with Cluster(tmp_path / "nodes", 3, getattr(request, "param", 0)) as started:
        yield started
