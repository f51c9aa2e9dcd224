"""The command line, the resources of the process, and what it imports and tells at its start."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

import service.process.cli
from service.configuration.settings import Settings, StartError
from service.configuration.settings_reading import installed_version
from service.errors import ConfigConflict, ModelNotFound, VersionNotFound
from service.process.app import HealthUpdates
from service.process.model_lists import ModelLists
from service.process.resources import FreedMemory, MemoryBound
from service.versions.model_config import Latest, ModelConfig, Specific
from service.versions.model_set import ModelSet
from tests.conftest import Clock
from tests.unit.versions.test_model_set import until


class FakeApp:
    """An App that records its settings, and raises an error if the test says so."""

    seen: list[Settings] = []
    problem: str = ""

    def __init__(self, settings: Settings) -> None:
        self.seen.append(settings)

    async def run(self) -> list[str]:
        """Ends at once, or raises StartError."""
        if self.problem == "interrupt":
            raise KeyboardInterrupt
        if self.problem:
            raise StartError(self.problem)
        return []


def test_a_command_line_is_read_without_numpy() -> None:
    # prepare_libraries() sets the number of numpy's threads, which numpy reads at its import.
    program = """if True:
        import sys
        from service.process import cli
        cli.shown_settings(cli.read_settings(["models"], {}))
        assert "numpy" not in sys.modules"""
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.fixture
def fake_app(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[FakeApp]]:
    """Replaces the app, and the reference server, which main takes without the core, and each function with which main
    changes the process.
    """
    app = type("App", (FakeApp,), {"seen": []})
    for name, server in (("service.process.app", "App"), ("service.process.reference_server", "ReferenceServer")):
        module = types.ModuleType(name)
        vars(module)[server] = app
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(service.process.cli, "prepare_libraries", lambda bytes_in_flight: None)
    monkeypatch.setattr(service.process.cli, "set_signals", lambda log: None)
    monkeypatch.delenv("EMB_MODEL_BASE_PATH", raising=False)
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield app
    root.handlers[:] = handlers
    root.setLevel(level)


def test_bad_settings_exit_with_2_and_all_faults(fake_app: type[FakeApp], capfd: pytest.CaptureFixture[str]) -> None:
    assert service.process.cli.main(["--port=x", "--log_level=loud"]) == 2
    lines = capfd.readouterr().err.splitlines()
    assert lines[0] == "embedding-server can not start:"
    assert len(lines) == 4
    assert fake_app.seen == []


@pytest.mark.core
def test_a_drained_server_exits_with_0_and_logs_its_settings(
    fake_app: type[FakeApp], capfd: pytest.CaptureFixture[str]
) -> None:
    assert service.process.cli.main(["--model_base_path=m", "--port=7", "--log_format=text"]) == 0
    assert [s.port for s in fake_app.seen] == [7]
    assert (
        capfd.readouterr().err[9:]
        == f"embedding-server {installed_version()} --model_base_path=m --port=7 --log_format=text\n"
    )
    # Nobody reads a password in a log.
    secret = "--remote_tables=user=valkey://me:secret@a:1"
    assert service.process.cli.main(["--model_base_path=m", secret, "--log_format=json"]) == 0
    line = json.loads(capfd.readouterr().err)
    assert (line["message"], line["model_base_path"], line["port"]) == ("settings", "m", 8500)
    assert line["remote_tables"] == "user=valkey://(hidden)@a:1"


@pytest.mark.parametrize("is_reference", [False, True])
def test_the_reference_server_is_started_in_place_of_the_app(
    is_reference: bool, fake_app: type[FakeApp], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Without its module, the other server can not be started.
    other = "service.process.app" if is_reference else "service.process.reference_server"
    monkeypatch.setitem(sys.modules, other, None)
    given = ["--data_plane=reference"] if is_reference else ["--data_plane=core"]
    monkeypatch.setattr("service.process.cli.with_data_plane", lambda settings: settings)
    monkeypatch.setattr("service.process.cli.check_threads", lambda num_threads: None)
    assert service.process.cli.main(["--model_base_path=m", *given]) == 0
    assert [s.data_plane for s in fake_app.seen] == given[0].split("=")[1:]


def test_the_links_of_a_kubernetes_service_have_one_line_in_the_log(
    fake_app: type[FakeApp], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMB_PORT", "tcp://10.96.3.7:8500")
    monkeypatch.setenv("EMB_SERVICE_HOST", "10.96.3.7")
    assert service.process.cli.main(["--model_base_path=m", "--log_format=text"]) == 0
    assert [s.port for s in fake_app.seen] == [8500]
    (line,) = [line for line in capfd.readouterr().err.splitlines() if "service links" in line]
    assert "EMB_PORT" in line and "EMB_SERVICE_HOST" in line


def test_what_stops_the_start_exits_with_2_and_says_so(
    fake_app: type[FakeApp], capfd: pytest.CaptureFixture[str]
) -> None:
    fake_app.problem = "cannot listen on port 80"
    assert service.process.cli.main(["--model_base_path=m", "--log_format=text"]) == 2
    assert "cannot start reason=cannot listen on port 80" in capfd.readouterr().err


def test_an_interrupt_during_the_start_leaves_no_traceback(
    fake_app: type[FakeApp], capfd: pytest.CaptureFixture[str]
) -> None:
    fake_app.problem = "interrupt"
    assert service.process.cli.main(["m", "--log_format=text"]) == 130
    assert "Traceback" not in capfd.readouterr().err


def test_the_arguments_of_the_process_are_the_default(fake_app: type[FakeApp], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["embedding-server", "--model_base_path=from argv"])
    assert service.process.cli.main() == 0
    assert fake_app.seen[0].model_base_path == "from argv"


def test_flags_of_tensorflow_serving_without_effect_are_named(
    fake_app: type[FakeApp], capfd: pytest.CaptureFixture[str]
) -> None:
    assert service.process.cli.main(["--model_base_path=m", "--enable_profiler", "--log_format=text"]) == 0
    lines = [line for line in capfd.readouterr().err.splitlines() if "flag has no effect" in line]
    assert len(lines) == 1
    assert "flag=--enable_profiler reason=there is no profiler service" in lines[0]


def test_strict_ends_the_start_where_a_model_has_no_version(
    fake_app: type[FakeApp], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "films" / "1").mkdir(parents=True)
    (tmp_path / "films" / "1" / "saved_model.pb").touch()
    config = tmp_path / "models.conf"
    entry = 'config {{ name: "{0}" base_path: "{1}/{0}" model_platform: "tensorflow" }}'
    entries = " ".join(entry.format(name, tmp_path) for name in ("films", "film", "users"))
    config.write_text(f"model_config_list {{ {entries} }}")
    for flags in ([f"--model_config_file={config}"], [f"--model_base_path={tmp_path / 'film'}", "--model_name=film"]):
        assert service.process.cli.main(["--strict", "--log_format=text", *flags]) == 1
        told = [line.partition(" reason=")[2] for line in capfd.readouterr().err.splitlines() if "cannot start" in line]
        gone = f"cannot read the folder {tmp_path}/{{}}: No such file or directory"
        assert told[0] == f"--strict: model film: {gone.format('film')}; did you mean {tmp_path}/films?"
        by_file = [f"--strict: model users: {gone.format('users')}"]
        assert told[1:] == (by_file if "config" in flags[0] else [])
    assert fake_app.seen == []
    assert service.process.cli.main(["--strict", f"--model_base_path={tmp_path / 'films'}"]) == 0
    assert service.process.cli.main([f"--model_base_path={tmp_path / 'film'}"]) == 0
    # --strict does not judge a missing config file, because the start itself reports it.
    assert service.process.cli.main(["--strict", f"--model_config_file={tmp_path / 'none.conf'}"]) == 0


def test_a_change_is_shown_at_once() -> None:
    shown: list[int] = []
    updates = HealthUpdates(lambda: shown.append(threading.get_ident()))
    updates.note()
    updates.update()
    assert shown == [threading.get_ident()] * 2


def test_changes_in_the_pause_after_an_update_are_shown_together_and_the_last_one_is_not_lost(clock: Clock) -> None:
    state, shown = [0], list[int]()

    def update() -> None:
        shown.append(state[0])
        clock.now_s += 1e-3

    updates = HealthUpdates(update, clock)
    for number in range(1, 1001):
        state[0] = number
        updates.note()
    until(lambda: shown[-1] == 1000)
    assert shown[0] == 1
    # The thread's sleep takes real time, and the fake clock goes on with each update only.
    assert len(shown) < 1000


def test_a_change_during_an_update_is_shown_after_it() -> None:
    state, shown = [1], list[int]()
    is_read, goes_on = threading.Event(), threading.Event()

    def update() -> None:
        seen = state[0]
        is_read.set()
        assert goes_on.wait(60)
        shown.append(seen)

    updates = HealthUpdates(update)
    first = threading.Thread(target=updates.note)
    first.start()
    assert is_read.wait(60)
    state[0] = 2
    updates.note()
    goes_on.set()
    until(lambda: shown == [1, 2])
    first.join()


def test_a_failed_update_ends_no_later_ones(clock: Clock) -> None:
    numbers, shown, failed = iter(range(3)), list[int](), threading.Event()

    def update() -> None:
        clock.now_s += 1e-3
        if (number := next(numbers)) == 1:
            failed.set()
            raise OSError("no thread can be started")
        shown.append(number)

    updates = HealthUpdates(update, clock)
    updates.note()
    updates.note()
    assert failed.wait(60)
    updates.note()
    until(lambda: shown == [0, 2])


class KeptModels:
    """A stand-in for ModelSet with the parts that ModelLists uses; each model has folders of versions 1 to 3."""

    def __init__(self) -> None:
        self.configs = tuple(ModelConfig(name, f"/models/{name}", Latest(2)) for name in ("a", "b"))

    def folder(self, name: str, version: int) -> Path:
        """See ModelSet.folder."""
        if version not in (1, 2, 3):
            raise VersionNotFound(f"no folder of version {version}")
        return Path(f"/models/{name}/{version}")

    def reload(
        self, configs: Sequence[ModelConfig], deadline_s: float | None = None, agree: Callable[[], None] = lambda: None
    ) -> None:
        """See ModelSet.reload."""
        agree()
        self.configs = tuple(configs)


@pytest.fixture
def models() -> KeptModels:
    return KeptModels()


@pytest.fixture
def lists(models: KeptModels) -> ModelLists:
    return ModelLists(Settings(model_base_path="/models"), cast(ModelSet, cast(Any, models)))


def test_a_pin_is_kept_over_labels_and_ends_with_the_first_policy(models: KeptModels, lists: ModelLists) -> None:
    lists.pin("a", 1)
    lists.set_label("a", "stable", 1)
    lists.pin("a", 2)
    assert [lists.pinned(name) for name in ("a", "b", "none")] == [2, None, None]
    first, other = models.configs
    assert (first.policy, first.labels, other.policy) == (Specific(frozenset({2})), {"stable": 1}, Latest(2))
    lists.pin("a", None)
    assert (models.configs[0].policy, models.configs[0].labels) == (Latest(2), {"stable": 1})
    assert lists.pinned("a") is None
    with pytest.raises(ConfigConflict, match='Model "a" is not pinned'):
        lists.pin("a", None)


def test_a_new_list_ends_a_pin(models: KeptModels, lists: ModelLists) -> None:
    lists.pin("a", 1)
    lists.reload([ModelConfig("a", "/models/a", Specific(frozenset({1})))], origin="client")
    with pytest.raises(ConfigConflict):
        lists.pin("a", None)
    lists.pin("a", 3)
    lists.pin("a", None)
    assert models.configs[0].policy == Specific(frozenset({1}))


def test_a_signal_reloads_the_operators_file_with_the_operators_rights(models: KeptModels, tmp_path: Path) -> None:
    file = tmp_path / "models.conf"
    file.write_text('model_config_list { config { name: "c" base_path: "/new/c" model_platform: "tensorflow" } }')
    settings = Settings(model_base_path="", model_config_file=str(file))
    ModelLists(settings, cast(ModelSet, cast(Any, models))).read_again()
    assert [(one.name, one.base_path, one.origin) for one in models.configs] == [("c", "/new/c", "operator")]


def test_a_version_without_a_folder_changes_nothing(models: KeptModels, lists: ModelLists) -> None:
    before = models.configs
    with pytest.raises(VersionNotFound):
        lists.pin("a", 9)
    with pytest.raises(ModelNotFound):
        lists.pin("none", 1)
    assert models.configs == before


# Allocates four buffers of 2.6 MB and frees them together, fifty times after five that are not counted; page faults
# show memory that went back to the kernel.
SCRIPT = """
import resource, sys
from service.process.resources import keep_freed_memory
is_kept = len(sys.argv) > 1 and keep_freed_memory()
def answers(): return [bytearray(2_621_440) for _ in range(4)]
for _ in range(5): answers()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(50): answers()
print(is_kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(*arguments: str) -> tuple[bool, int]:
    command = [sys.executable, "-c", SCRIPT, *arguments]
    is_kept, count = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return is_kept == "True", int(count)


@pytest.mark.slow
def test_kept_memory_is_not_faulted_in_again() -> None:
    is_kept, kept = faults("keep")
    if not is_kept:
        pytest.skip("not glibc")
    _, unchanged = faults()
    # A buffer has 640 pages, and 200 buffers are allocated: without the setting, most of them get new pages from the
    # kernel.
    assert kept < 640
    assert unchanged > 50 * 640


# Frees 40 MB in blocks of 2 KB, and prints how many MiB of them are resident after each of three counts of connections.
FLOOD = """
from pathlib import Path
from service.process.resources import FreedMemory, keep_freed_memory
def resident(): return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 >> 20
is_kept = keep_freed_memory()
freed = FreedMemory()
before = resident()
blocks = [bytearray(2000) for _ in range(20_000)]
del blocks
print(is_kept)
for count in (300, 151, 150):
    freed.look(count, 0)
    print(resident() - before)
"""


@pytest.mark.slow
def test_kept_memory_is_returned_when_half_of_many_connections_have_closed() -> None:
    command = [sys.executable, "-c", FLOOD]
    is_kept, at_most, before_half, at_half = subprocess.run(
        command, capture_output=True, text=True, check=True
    ).stdout.split()
    if is_kept != "True":
        pytest.skip("not glibc")
    assert int(at_most) > 30
    assert int(before_half) > 30
    assert int(at_half) < 10


def trims(*steps: int) -> list[bool]:
    """Says for each look whether freed memory was returned; steps: MiB that requests held since the look before."""
    freed = FreedMemory()
    counted: list[int] = []
    freed._trim = counted.append  # type: ignore[assignment]
    found, total = [], 0
    for step in steps:
        before, total = len(counted), total + (step << 20)
        freed.look(1, total)
        found.append(len(counted) > before)
    return found


def bounds(root: Path, *looks: tuple[int, int]) -> list[int | None]:
    """Returns the limit in kB after each look at a process that has mapped and holds so many kB of private memory."""
    folders = {name: root / name for name in ("proc/self", "sys/fs/cgroup/pod")}
    for folder in folders.values():
        folder.mkdir(parents=True)
    (root / "proc/meminfo").write_text("MemTotal: 1000000 kB\nSwapTotal: 50 kB\n")
    (root / "proc/self/cgroup").write_text("0::/pod\n")
    (root / "sys/fs/cgroup/pod/memory.max").write_text(str(800_000 * 1024))
    bound, found = MemoryBound(root), []
    for mapped, held in looks:
        (root / "proc/self/status").write_text(f"VmData: {mapped} kB\nRssAnon: {held} kB\n")
        bytes_ = bound.bound_bytes()
        found.append(bytes_ and bytes_ // 1024)
    return found


def test_private_memory_is_limited_to_that_of_the_control_group(tmp_path: Path) -> None:
    # A tensor of 500,000 kB is being filled at the second look; from the third on, more threads have stacks. A map of a
    # file is larger than memory.
    looks = [(300, 100), (500_300, 100), (500_800, 500_100), (2_000_000, 500_100), *[(1_000, 100)] * 60]
    spare = 64 << 10
    expected = [800_250, 800_250, 800_250, 2_000_000 + spare, *[800_250] * 56, *[800_750] * 2, *[800_950] * 2]
    assert bounds(tmp_path, *looks) == expected


def test_without_its_figures_private_memory_is_not_limited(tmp_path: Path) -> None:
    assert MemoryBound(tmp_path).bound_bytes() is None


def test_freed_memory_is_returned_once_after_a_flood_of_bytes() -> None:
    assert trims(900, 900, 80, *[0] * 3, *[0] * 20) == [*[False] * 6, True, *[False] * 19]


@pytest.mark.parametrize("steps", [[20] * 100, [0, 200] * 50, [0, 0, 0, 0, 900] * 20, [60, *[0] * 100]])
def test_freed_memory_is_kept_for_a_load_that_goes_on(steps: list[int]) -> None:
    assert not any(trims(*steps))


# Modules that a lookup does not need, and whose import takes from milliseconds to seconds.
HEAVY = {
    *("tensorflow", "fastapi", "pydantic", "starlette", "uvicorn", "grpc", "prometheus_client", "tomllib"),
    *("email", "http", "importlib.metadata", "google.protobuf.descriptor_pb2"),
    *("service.graph.tower", "service.graph.savedmodel", "service.loading.graph_opening"),
}
# A script that loads a version as a server does, and compiles the description for the native core.
LOAD = """
from service.configuration.settings_reading import read_settings
read_settings(["--model_base_path=" + sys.argv[1]], {})
import service.process.cli, service.process.app, service.process.native_servers
from service.core.native_servable import compile_native
from service.loading.loader import ServableLoader
servable = ServableLoader(frozenset({"serve"}), "off", compile_native)("toy", 1, Path(sys.argv[1]))
assert servable.native is not None
"""


@pytest.mark.slow
@pytest.mark.core
def test_a_lookup_is_answered_before_anything_heavy_is_imported(toy_model: Path) -> None:
    program = f"import sys\nfrom pathlib import Path\n{LOAD}\nprint(*sys.modules)"
    command = [sys.executable, "-c", program, str(toy_model / "1")]
    found = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.split()
    assert "numpy" in found
    assert not HEAVY & set(found)
