"""Fixtures of all tests: the toy artifact and an engine over it, without sockets or TensorFlow."""

from __future__ import annotations

import dataclasses
import os
import re
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from service.engine.call import Finished
from service.engine.engine import Engine
from service.engine.registry import Registry
from service.loading.loader import ServableLoader
from tests.toy_model import write_toy_model

TESTS = Path(__file__).resolve().parent
SHARED = TESTS.parents[1] / "shared"
# `--quick` leaves these folders and tests out, because they start processes, import TensorFlow or loop for seconds. The
# rest calls each layer of the server, the client and the native core inside one process.
SLOW_FOLDERS = ("conformance", "integration", "unit/graph", "unit/loadtest", "unit/model_export")
SLOW_MARKERS = ("tf", "slow")
_LEFT_OUT = pytest.StashKey[int]()


# No deadline for hypothesis: a busy machine must not fail a test.
hypothesis.settings.register_profile("default", deadline=None)
hypothesis.settings.load_profile("default")


def pytest_configure(config: pytest.Config) -> None:
    """Sets the environment variables that TensorFlow reads when a test first imports it."""
    # The TFRS embedding layer works with Keras 2 only.
    os.environ["TF_USE_LEGACY_KERAS"] = "1"
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds pytest options that make a run shorter or longer."""
    parser.addoption("--quick", action="store_true", help="run in a minute, without the tests that take long to start")
    parser.addoption(
        "--parity-requests",
        type=int,
        default=300,
        help="random requests that the served answers are compared with TensorFlow's on (default 300)",
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skips the folders that `--quick` leaves out, before their files are imported."""
    return True if config.getoption("--quick") and collection_path in map(TESTS.joinpath, SLOW_FOLDERS) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Drops the marked tests that `--quick` leaves out, and counts the test functions that do not run."""
    if not config.getoption("--quick"):
        return
    marked = [item for item in items if any(map(item.get_closest_marker, SLOW_MARKERS))]
    items[:] = [item for item in items if item not in set(marked)]
    config.hook.pytest_deselected(items=marked)
    files = (file for folder in SLOW_FOLDERS for file in TESTS.joinpath(folder).rglob("test_*.py"))
    in_folders = sum(len(re.findall(r"^ *(?:async )?def test_", file.read_text(), re.MULTILINE)) for file in files)
    config.stash[_LEFT_OUT] = in_folders + len({item.nodeid.partition("[")[0] for item in marked})


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Hands the count from a process of xdist to the one that reports."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left_out"] = session.config.stash.get(_LEFT_OUT, 0)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Takes the count from a process of xdist. Each has the same, because each collects all tests."""
    node.config.stash[_LEFT_OUT] = getattr(node, "workeroutput", {}).get("left_out", 0)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Says how many tests `--quick` left out."""
    if config.getoption("--quick"):
        terminalreporter.write_line(
            f"--quick left out {config.stash.get(_LEFT_OUT, 0)} test functions: all in {', '.join(SLOW_FOLDERS)}, "
            f"and others that are marked {' or '.join(SLOW_MARKERS)}."
        )


@dataclass
class RecordingObserver:
    """An observer that keeps the engine's reports in order."""

    finished_requests: list[dict[str, Any]] = field(default_factory=list)

    def finished(self, request: Finished) -> None:
        """Keeps the report of a finished request."""
        fields = {field.name: getattr(request, field.name) for field in dataclasses.fields(request)}
        self.finished_requests.append({**fields.pop("subject")._asdict(), **fields})


@dataclass
class Clock:
    """A clock that moves only when a test says so."""

    now_s: float = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture(scope="session")
def toy_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Writes a base path with version 1 of the toy model; tests must not change it."""
    base = tmp_path_factory.mktemp("toy")
    write_toy_model(base / "1")
    return base


@pytest.fixture
def clock() -> Clock:
    """Makes a clock that a test sets."""
    return Clock()


@pytest.fixture
def observer() -> RecordingObserver:
    """Makes the observer to which engines report."""
    return RecordingObserver()


@pytest.fixture
def toy_engine(toy_model: Path, observer: RecordingObserver, clock: Clock) -> Engine:
    """Makes an engine of version 1 of model "toy", with lookups only."""
    return Engine(serving(toy_model), observer, clock)


def serving(base: Path, *, name: str = "toy", version: int = 1) -> Registry:
    """Returns a registry that serves a version without TensorFlow."""
    registry = Registry(lambda model, status: None)
    registry.add_model(name)
    registry.start(name, version)
    registry.publish(ServableLoader(frozenset({"serve"}), "off", 1)(name, version, base / str(version)))
    return registry


@pytest.fixture(scope="session")
def tf() -> Any:
    """Imports TensorFlow for tests with the marker `tf`, and silences its warnings at import."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import tensorflow
    return tensorflow


@pytest.fixture(scope="session")
def tf_serving_testdata() -> Path:
    """Returns the folder of TensorFlow Serving's test models, which are not part of the repository."""
    folder = SHARED / "testdata" / "tf_serving"
    if not folder.is_dir():
        pytest.skip("…/shared is not here")
    return folder
