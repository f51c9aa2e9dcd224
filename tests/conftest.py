"""Fixtures of all tests: the toy model's artifact, and an engine that serves it without sockets or TensorFlow."""

from __future__ import annotations

import dataclasses
import fcntl
import gc
import os
import re
import shutil
import sys
import warnings
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from service.control.engine import Engine
from service.control.request_context import Finished
from service.core.native_servable import compile_native
from service.loading.loader import ServableLoader
from service.native_tables import NATIVE_TABLES
from service.versions.registry import Registry
from tests.tower_model import write_tower_model
from tests.toy_model import write_toy_model

MakeOnce = Callable[[str, Callable[[Path], object]], Path]
TESTS = Path(__file__).resolve().parent
SHARED = TESTS.parents[1] / "shared"
# `--quick` leaves out these folders and tests, because they start processes, import TensorFlow or loop for seconds. The
# rest calls each layer of the server, the client and the native core inside one process.
SLOW_FOLDERS = ("conformance", "integration", "unit/graph", "unit/loadtest", "unit/model_export", "unit/movielens")
SLOW_MARKERS = ("tf", "slow")
# Long files that would otherwise be collected late, so that one processor would be idle while they end.
FIRST_FILES = (
    "unit/tables/test_row_index.py",
    "unit/model_export/compaction/test_reduction.py",
    "unit/test_doctests.py",
)
# When the version of `rating_version` says that it was exported.
CREATED = datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC)
_LEFT_OUT = pytest.StashKey[int]()
# Packages that take seconds to import -> what was being collected when it was imported, in the order of the imports.
HEAVY_IMPORTS: dict[str, str] = {}


# Hypothesis gets no deadline per example, because a test must not fail on a busy machine.
hypothesis.settings.register_profile("default", deadline=None)
hypothesis.settings.load_profile("default")


def pytest_configure(config: pytest.Config) -> None:
    """Sets the environment variables that TensorFlow reads when it is first imported."""
    # TFRS's TPUEmbedding layer works with Keras 2 only.
    os.environ["TF_USE_LEGACY_KERAS"] = "1"
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds --quick, --parity-requests and --record-refusals to pytest."""
    parser.addoption("--quick", action="store_true", help="run in a minute, without the tests that take long to start")
    parser.addoption(
        "--parity-requests",
        type=int,
        default=200,
        help="random requests that the served answers are compared with TensorFlow's on (default 200)",
    )
    parser.addoption(
        "--record-refusals",
        action="store_true",
        help="write the server's answers to tests/conformance/cases/refusals.json",
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skips the folders that `--quick` leaves out, before their files are imported."""
    return True if config.getoption("--quick") and collection_path in map(TESTS.joinpath, SLOW_FOLDERS) else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collects the tests without garbage collections, and excludes the collected objects from later ones.

    Modules and test items stay until the end. Garbage collections among them took a third of the time (4.7 of 12.9 s).
    In a fresh checkout, three quarters of the rest go to rewriting the modules' assertions. One worker process does so
    and keeps the compiled modules; the others wait for it, for else each would rewrite all.
    """
    gc.disable()
    with open(__file__) as lock:
        if "PYTEST_XDIST_WORKER" in os.environ and not sys.dont_write_bytecode:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                fcntl.flock(lock, fcntl.LOCK_SH)
        try:
            return (yield)
        finally:
            gc.freeze()
            gc.enable()


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Notes the file whose collection imported TensorFlow, JAX or Keras."""
    for name in {"tensorflow", "jax", "keras", "tf_keras"} & sys.modules.keys() - HEAVY_IMPORTS.keys():
        HEAVY_IMPORTS[name] = report.nodeid


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Moves the files of FIRST_FILES to the front; drops tests marked slow if `--quick` is set, and counts these."""
    first = set(map(TESTS.joinpath, FIRST_FILES))
    items.sort(key=lambda item: item.path not in first)
    if not config.getoption("--quick"):
        return
    marked = [item for item in items if any(map(item.get_closest_marker, SLOW_MARKERS))]
    items[:] = [item for item in items if item not in set(marked)]
    config.hook.pytest_deselected(items=marked)
    files = (file for folder in SLOW_FOLDERS for file in TESTS.joinpath(folder).rglob("test_*.py"))
    in_folders = sum(len(re.findall(r"^ *(?:async )?def test_", file.read_text(), re.MULTILINE)) for file in files)
    config.stash[_LEFT_OUT] = in_folders + len({item.nodeid.partition("[")[0] for item in marked})


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Sends the number of tests left out from a worker process of xdist to the main process, which reports it."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left_out"] = session.config.stash.get(_LEFT_OUT, 0)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Receives the number of tests left out from an xdist worker. All workers collect, and so count, the same tests."""
    node.config.stash[_LEFT_OUT] = getattr(node, "workeroutput", {}).get("left_out", 0)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Writes the number of tests that `--quick` left out into pytest's summary."""
    if config.getoption("--quick"):
        terminalreporter.write_line(
            f"--quick left out {config.stash.get(_LEFT_OUT, 0)} test functions: all in {', '.join(SLOW_FOLDERS)}, "
            f"and others that are marked {' or '.join(SLOW_MARKERS)}."
        )


@dataclass
class RecordingObserver:
    """An observer for engines that keeps their reports in a list, in order."""

    finished_requests: list[dict[str, Any]] = field(default_factory=list)

    def finished(self, request: Finished) -> None:
        """Appends the report of a finished request to the list."""
        fields = {field.name: getattr(request, field.name) for field in dataclasses.fields(request)}
        self.finished_requests.append({**fields.pop("subject")._asdict(), **fields})


@dataclass
class Clock:
    """A clock whose time changes only when a test sets it."""

    now_s: float = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture(scope="session")
def toy_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Writes a base path that holds version 1 of the toy model; tests must not change the files."""
    base = tmp_path_factory.mktemp("toy")
    write_toy_model(base / "1")
    return base


def _skipped_without_core() -> Generator[None, object, object]:
    """Runs a test or its fixtures; skips the test if it imports the native core, and the core is not built."""
    try:
        return (yield)
    except ImportError as error:
        if NATIVE_TABLES is None and "_native" in str(error):
            pytest.skip("the native core is not built")
        raise


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    """Skips a test if it or one of its fixtures needs the native core.

    pytest raises the first error of a shared fixture again for each further test, so the fixture's own hook would see
    only the first one.
    """
    if NATIVE_TABLES is None and item.get_closest_marker("core") is not None:
        pytest.skip("the native core is not built")
    return (yield from _skipped_without_core())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    """Skips a test that finds no native core."""
    return (yield from _skipped_without_core())


@pytest.fixture
def clock() -> Clock:
    """Makes a clock whose time a test sets."""
    return Clock()


@pytest.fixture
def observer() -> RecordingObserver:
    """Makes the observer to which a test's engines report."""
    return RecordingObserver()


@pytest.fixture
def toy_engine(toy_model: Path, observer: RecordingObserver, clock: Clock) -> Engine:
    """Makes an engine that serves version 1 of model "toy"; the model has only lookups."""
    return Engine(serving(toy_model), observer, clock)


def serving(base: Path, *, name: str = "toy", version: int = 1) -> Registry:
    """Returns a registry of models that serves one version without TensorFlow."""
    registry = Registry(lambda model, status: None)
    registry.add_model(name)
    registry.start(name, version)
    registry.publish(ServableLoader(frozenset({"serve"}), "off", compile_native)(name, version, base / str(version)))
    return registry


@pytest.fixture(scope="session")
def tf() -> Any:
    """Imports TensorFlow for tests that have the marker `tf`, and hides the warnings of the import."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import tensorflow
    # Without this, each full garbage collection would visit the 280,000 objects of TensorFlow.
    gc.freeze()
    return tensorflow


@pytest.fixture(scope="session")
def make_once(tmp_path_factory: pytest.TempPathFactory) -> MakeOnce:
    """Returns a function that makes a named folder once for all worker processes; tests must not change the files.

    A worker that asks for a folder waits if another worker is making the folder.
    """
    run = tmp_path_factory.getbasetemp()
    # The folder of an xdist worker lies in the folder of the run.
    made = (run.parent if "PYTEST_XDIST_WORKER" in os.environ else run) / "made-once"
    made.mkdir(exist_ok=True)

    def make(name: str, write: Callable[[Path], object]) -> Path:
        folder, is_made = made / name, made / f"{name}.made"
        with (made / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not is_made.exists():
                shutil.rmtree(folder, ignore_errors=True)
                write(folder)
                is_made.touch()
        return folder

    return make


@pytest.fixture(scope="session")
def tower_version(tf: Any, make_once: MakeOnce) -> Path:
    """Returns version 1 of the tower model, alone in the model's folder; tests must not change the files."""
    return make_once("towers", lambda folder: write_tower_model(tf, folder)) / "model" / "1"


@pytest.fixture(scope="session")
def zoo_version(tf: Any, make_once: MakeOnce) -> Callable[[str], Path]:
    """Returns a function that makes version 1 of a model of tests.tower_zoo; tests must not change the files."""
    from tests.tower_zoo import write_zoo_model

    return lambda name: make_once(f"zoo-{name}", lambda folder: write_zoo_model(tf, name, folder)) / "1"


@pytest.fixture(scope="session")
def rating_run(tf: Any, make_once: MakeOnce) -> Path:
    """Trains the demo's model for an epoch on the synthetic ratings; tests must not change the run's folder."""
    from movielens.rating_model import TrainConfig
    from movielens.ratings import synthetic_ratings
    from movielens.run import train

    config = TrainConfig(epochs=1, batch_size=64)
    return make_once("rating-run", lambda folder: train(synthetic_ratings(), config, folder))


@pytest.fixture(scope="session")
def rating_version(rating_run: Path, make_once: MakeOnce) -> Path:
    """Exports version 1 from that run for a CPU and a TPU, alone in the model's folder; tests must not change it."""
    from model_export.export_model import export

    options: Any = {"lookup_device": ["cpu", "tpu_tensor_core"], "batch_sizes": (1, 4), "export_to_tpu": True}
    return make_once("rating-model", lambda base: export(rating_run, base, **options, clock=lambda: CREATED)) / "1"


@pytest.fixture(scope="session")
def tf_serving_testdata() -> Path:
    """Returns the folder of TensorFlow Serving's test models, which the repository does not include."""
    folder = SHARED / "testdata" / "tf_serving"
    if not folder.is_dir():
        pytest.skip("…/shared is not here")
    return folder
