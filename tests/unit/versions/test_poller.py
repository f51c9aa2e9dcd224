"""One poller scans the folders of all models, and a model that hangs or loads does not delay another."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from service.errors import ArtifactError
from service.versions import model_config
from service.versions.loads import Attempt, LoadRules, TimeIsOver
from service.versions.model_config import Latest, ModelConfig
from service.versions.poller import CompensatingPool, Poller
from service.versions.registry import Registry
from service.versions.repository import ModelWatcher
from service.versions.servable import Servable
from service.versions.threads import Workers
from tests.unit.versions.fakes import FakeBackend, servable
from tests.unit.versions.test_model_set import until

RETRY_INTERVAL_S = 0.02


class World:
    """Folders of models, and a poller of them; loads of the models in `gates` wait for their event."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.registry = Registry(lambda model, status: None)
        self.gates: dict[str, threading.Event] = {}
        self.loads: list[str] = []
        self.broken: set[str] = set()
        self.ended: list[str] = []
        self.watchers: dict[str, ModelWatcher] = {}
        self.pollers: list[Poller] = []

    def poller(self, interval_s: float, scan_timeout_s: float = 60.0) -> Poller:
        poller = Poller(interval_s, scan_timeout_s)
        self.pollers.append(poller)
        return poller

    def watch(self, poller: Poller, name: str) -> ModelWatcher:
        (self.base / name / "1").mkdir(parents=True)
        self.registry.add_model(name)
        config = ModelConfig(name, str(self.base / name), Latest())
        rules = LoadRules(self.load, 5, RETRY_INTERVAL_S)
        watcher = ModelWatcher(config, self.registry, rules, lambda: poller.wake(name))
        self.watchers[name] = watcher
        poller.add(watcher, lambda: self.ended.append(name))
        return watcher

    def load(self, name: str, version: int, path: Path) -> Servable:
        self.loads.append(name)
        if name in self.gates:
            assert self.gates[name].wait(60)
        if name in self.broken:
            raise ArtifactError("broken")
        return servable(version, name, FakeBackend())

    def serves(self, name: str, version: int) -> bool:
        return self.registry.is_available(name, version)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A world without models; ends its pollers and the loads that wait."""
    world = World(tmp_path)
    yield world
    for gate in world.gates.values():
        gate.set()
    for poller in world.pollers:
        poller.stop()
        assert poller.wait_until_idle(60) == []


def _threads() -> int:
    return sum(thread.name.startswith("poll") for thread in threading.enumerate())


def test_many_idle_models_have_the_threads_of_one(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    before = _threads()
    poller = world.poller(0.01)
    names = [f"m{number}" for number in range(50)]
    for name in names:
        world.watch(poller, name)
    until(lambda: all(world.serves(name, 1) for name in names))
    scans: dict[Path, int] = {}
    threads: set[int] = set()
    find = model_config.find_all_folders

    def counted(base_path: Path) -> dict[int, list[Path]]:
        scans[base_path] = scans.get(base_path, 0) + 1
        threads.add(threading.get_ident())
        return find(base_path)

    monkeypatch.setattr(model_config, "find_all_folders", counted)
    until(lambda: len(scans) == 50 and min(scans.values()) > 3)
    # The poller, a thread that scans, and at most the four threads of the loads, which end when they were idle.
    assert _threads() - before <= 6
    # A scan is only in another thread if the thread before got no processor for LONG_S.
    assert len(threads) < 10, "no thread for each scan or each model"
    (world.base / "m7" / "2").mkdir()
    until(lambda: world.serves("m7", 2) and not world.serves("m7", 1))


def test_a_folder_that_does_not_answer_keeps_what_is_loaded_and_delays_no_other(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    poller = world.poller(0.01, scan_timeout_s=0.05)
    names = [f"m{number}" for number in range(8)]
    for name in names:
        world.watch(poller, name)
    until(lambda: all(world.serves(name, 1) for name in names))
    answer, asked = threading.Event(), []
    hanging = set(names[:5])
    find = model_config.find_all_folders

    def hang(base_path: Path) -> dict[int, list[Path]]:
        if base_path.name in hanging:
            asked.append(base_path.name)
            answer.wait()
        return find(base_path)

    # A mount that does not answer would need a server, so the test makes find_all_folders() hang.
    monkeypatch.setattr(model_config, "find_all_folders", hang)
    # No scan that began before may find version 2.
    until(lambda: sorted(asked) == sorted(hanging))
    for name in names:
        (world.base / name / "2").mkdir()
    problem = "cannot read the folder {}: its file system does not answer"
    until(lambda: all(world.serves(name, 2) for name in names[5:]))
    until(lambda: all(world.registry.noted_problem(n) == problem.format(world.base / n) for n in hanging))
    assert all(world.serves(name, 1) for name in hanging)
    # A model that is removed is unloaded, although the scan of its folder hangs.
    world.watchers["m0"].configure(None)
    until(lambda: world.ended == ["m0"])
    assert not world.registry.is_available("m0")
    assert sorted(asked) == sorted(hanging), "a folder is not scanned again while a scan of it hangs"
    hanging.clear()
    answer.set()
    until(lambda: all(world.serves(name, 2) and not world.registry.noted_problem(name) for name in names[1:]))


def test_loads_that_take_long_delay_no_other(world: World) -> None:
    poller = world.poller(0.01)
    slow = [f"slow{number}" for number in range(9)]
    world.gates = {name: threading.Event() for name in slow}
    for name in slow:
        world.watch(poller, name)
    world.watch(poller, "fast")
    until(lambda: world.serves("fast", 1) and set(world.loads) == {*slow, "fast"})
    until(lambda: poller.wait_until_idle(0) == slow)
    for gate in world.gates.values():
        gate.set()
    until(lambda: all(world.serves(name, 1) for name in slow))
    poller.stop()
    assert poller.wait_until_idle(60) == []


def test_an_interval_of_zero_scans_once_and_waits_for_news(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    scans: list[Path] = []
    find = model_config.find_all_folders

    def counted(base_path: Path) -> dict[int, list[Path]]:
        # The scan of an earlier test's poller may only end now.
        if base_path.parent == world.base:
            scans.append(base_path)
        return find(base_path)

    monkeypatch.setattr(model_config, "find_all_folders", counted)
    poller = world.poller(0)
    world.watch(poller, "m")
    until(lambda: world.serves("m", 1))
    assert poller.wait_until_idle(60) == []
    (world.base / "m" / "2").mkdir()
    # Another model's first scan and load show that time goes on for the poller.
    world.watch(poller, "other")
    until(lambda: world.serves("other", 1))
    assert [path.name for path in scans] == ["m", "other"]
    poller.wake("m")
    until(lambda: world.serves("m", 2))


def test_retries_come_in_their_time_also_where_the_folder_is_not_scanned_again(world: World) -> None:
    poller = world.poller(0)
    world.broken.add("m")
    world.watch(poller, "m")
    until(lambda: len(world.loads) > 2)
    world.broken.clear()
    until(lambda: world.serves("m", 1))


def test_a_model_without_a_config_is_unloaded_and_polled_no_more(world: World) -> None:
    poller = world.poller(60.0)
    watcher = world.watch(poller, "m")
    until(lambda: world.serves("m", 1))
    assert watcher.configure(None)
    poller.wait_until_ended(["m"], 60)
    assert (world.ended, world.serves("m", 1)) == (["m"], False)
    assert not watcher.configure(watcher.last_config), "too late: another watcher is needed"


@pytest.mark.parametrize("method", ["scan", "act"])
def test_polling_goes_on_after_a_surprise(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, method: str
) -> None:
    failures: list[str] = []
    right: Callable[..., object] = getattr(ModelWatcher, method)

    def fail(watcher: ModelWatcher, *arguments: object) -> object:
        if len(failures) == 3:
            return right(watcher, *arguments)
        failures.append("once more")
        raise RuntimeError("surprise")

    monkeypatch.setattr(ModelWatcher, method, fail)
    world.watch(world.poller(0.01), "m")
    until(lambda: world.serves("m", 1))
    assert [r.getMessage() for r in caplog.records if r.exc_info] == ["polling failed"] * 3


def test_a_call_in_time_returns_or_raises_what_it_did() -> None:
    late: list[object] = []
    assert Attempt("call", lambda: 7, late.append).result(60) == 7
    failing: Attempt[int] = Attempt("call", lambda: int("x"), late.append)
    with pytest.raises(ValueError, match="invalid literal"):
        failing.result(0)
    assert failing.is_over
    assert late == []


@pytest.mark.parametrize(("call", "thrown_away"), [(lambda: 7, 7), (lambda: int("x"), None)])
def test_what_comes_back_late_is_thrown_away(call: object, thrown_away: int | None) -> None:
    go, done = threading.Event(), threading.Event()
    late: list[int | None] = []

    def slow() -> int:
        go.wait()
        return call()  # type: ignore[operator, no-any-return]

    def throw_away(result: int | None) -> None:
        late.append(result)
        done.set()

    attempt = Attempt("call", slow, throw_away)
    with pytest.raises(TimeIsOver):
        attempt.result(0.01)
    assert not attempt.is_over
    go.set()
    assert done.wait(60)
    assert attempt.is_over
    assert late == [thrown_away]


class Tables:
    """The tables of a version that is loaded; a class of its own, to which a weak reference is possible."""


def test_a_failed_call_keeps_none_of_its_variables_without_the_garbage_collector() -> None:
    seen: list[weakref.ref[Tables]] = []

    def load() -> Tables:
        tables = Tables()
        seen.append(weakref.ref(tables))
        raise ValueError("its graph does not fit")

    gc.disable()
    try:
        with pytest.raises(ValueError, match="does not fit") as raised:
            Attempt("call", load).result(60)
        for thread in threading.enumerate():
            if thread.name == "call":
                thread.join()
        del raised
        assert seen[0]() is None
    finally:
        gc.enable()


def test_threads_of_loads_and_threads_that_they_start_have_a_lower_priority() -> None:
    own = os.getpriority(os.PRIO_PROCESS, os.getpid())
    found: Future[tuple[int, int]] = Future()

    def niceness() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    def job() -> None:
        of_child: list[int] = []
        child = threading.Thread(target=lambda: of_child.append(niceness()))
        child.start()
        child.join()
        # A job that submits a job lowers no priority twice.
        pool.submit(lambda: found.set_result((niceness(), of_child[0])))

    pool = CompensatingPool("niceness", 2)
    pool.submit(job)
    expected = min(own + 3, 19)
    assert found.result(60) == (expected, expected)
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == own


def test_idle_threads_end_and_new_jobs_get_new_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.versions.poller._IDLE_S", 0.01)
    pool = CompensatingPool("idle-soon", 2)

    def threads() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread.name == "idle-soon"]

    for _ in range(2):
        ran = threading.Event()
        pool.submit(ran.set)
        assert ran.wait(30)
        until(lambda: not threads())


def _start_none(thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_jobs_wait_while_the_system_starts_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = CompensatingPool("no-threads", 2)
    ran = threading.Semaphore(0)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", _start_none)
        for _ in range(3):
            pool.submit(ran.release)
        assert pool.tend()
    pool.tend()
    assert all(ran.acquire(timeout=60) for _ in range(3))


def test_work_of_a_pool_waits_while_the_system_starts_no_further_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = Workers(4, "no-further-threads")
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", _start_none)
        assert [workers.submit(pow, number, 2).result(60) for number in range(3)] == [0, 1, 4]
        with pytest.raises(RuntimeError):
            Workers(4, "no-threads")
    workers.shutdown()
