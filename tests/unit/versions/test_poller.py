"""One poller scans the folders of all models, and a model that hangs or loads does not delay another."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from service.errors import ArtifactError
from service.versions import model_config
from service.versions.loads import LoadRules
from service.versions.model_config import Latest, ModelConfig
from service.versions.poller import Poller
from service.versions.registry import Registry
from service.versions.repository import ModelWatcher
from service.versions.servable import Servable
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
    problem = "cannot read its folder {}: its file system does not answer"
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
