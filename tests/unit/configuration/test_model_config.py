"""Files of models and of monitoring are read, and their faults named."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from service.configuration.config_files import ConfigFile, metrics_paths, models_of, read_monitoring_config
from service.configuration.settings import Settings
from service.errors import ConfigConflict, InvalidRequest, ReloadFailed, ServiceError
from service.versions.model_config import ModelConfig
from service.versions.threads import repeat
from service.wire.config_protos import PrometheusConfig
from tests.conftest import Clock

RETRY_INTERVAL_S = 60.0


def text(*names: str) -> str:
    """Returns the text of a config file that lists these models."""
    listed = " ".join(f'config {{ name: "{n}" base_path: "/{n}" model_platform: "tensorflow" }}' for n in names)
    return f"model_config_list {{ {listed} }}"


class World:
    """A model config file, and the reloads that its watcher asked for."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self.path, self.clock = path, clock
        self.reloads: list[list[str]] = []
        self.error: ServiceError | None = None
        self.file = ConfigFile(path, RETRY_INTERVAL_S, clock)

    def write(self, *names: str) -> None:
        self.path.write_text(text(*names))

    def reload(self, models: Sequence[ModelConfig]) -> None:
        self.reloads.append([model.name for model in models])
        if self.error:
            raise self.error

    def poll(self) -> None:
        self.file.poll_once(self.reload)


@pytest.fixture
def world(tmp_path: Path, clock: Clock) -> World:
    """Writes a file that lists model "a", and reads it as a server's start does."""
    world = World(tmp_path / "models.conf", clock)
    world.write("a")
    assert [model.name for model in world.file.read()] == ["a"]
    return world


def models(*folders: Path | str, **settings: str) -> dict[str, str]:
    """Returns name -> base path of the models that a command with these arguments serves."""
    named = Settings(models=",".join(map(str, folders)), **settings)
    return {config.name: config.base_path for config in models_of(named)}


def test_a_folder_is_one_of_models_or_of_the_versions_of_one(tmp_path: Path) -> None:
    for version in ("films/1", "films/2", "users/7", "other/films/1", ".tmp/x/1", "notes/a"):
        (tmp_path / version).mkdir(parents=True)
        (tmp_path / version / "saved_model.pb").touch()
    films, users = str(tmp_path / "films"), str(tmp_path / "users")
    assert models(tmp_path) == {"films": films, "users": users}
    assert models(films) == models(films, films) == {"films": films}
    assert models(films, users, "s3://bucket/shop/") == {"films": films, "users": users, "shop": "s3://bucket/shop/"}
    assert models(films, model_name="mine") == {"mine": films}
    faults = {
        (
            films,
            tmp_path / "other",
        ): f"{films} and {tmp_path}/other/films would both be the model films: rename one of the folders",
        (
            tmp_path / "film",
        ): f"cannot read the folder {tmp_path}/film: No such file or directory; did you mean {films}?",
        (
            tmp_path / "films/1",
        ): f"no version folder (an integer name such as 1) in {films}/1, which holds saved_model.pb "
        f"and so is a version itself; did you mean {films}?",
    }
    for folders, fault in faults.items():
        with pytest.raises(InvalidRequest) as caught:
            models(*folders)
        assert caught.value.message == fault
    with pytest.raises(InvalidRequest, match="--model_name is 'mine', but there are 2 models"):
        models(tmp_path, model_name="mine")


def test_a_file_that_has_not_changed_is_not_taken_again(world: World) -> None:
    world.poll()
    world.write("a")
    world.poll()
    assert world.reloads == [], "or it would undo a reload by request"


def test_a_file_that_has_changed_is_taken_once(world: World) -> None:
    world.write("a", "b")
    world.poll()
    world.poll()
    assert world.reloads == [["a", "b"]]


def test_a_refused_file_is_tried_at_each_look_and_complained_of_once(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.error = ConfigConflict("version 2 is not there")
    world.write("b")
    for _ in range(3):
        world.poll()
    assert world.reloads == [["b"]] * 3
    world.error = None
    world.poll()
    world.poll()
    assert world.reloads == [["b"]] * 4
    refused = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [vars(record)["reason"] for record in refused] == ["version 2 is not there"]


def test_a_file_whose_models_fail_is_tried_again_after_the_interval_or_when_it_changes(world: World) -> None:
    world.error = ReloadFailed("b does not load")
    world.write("b")
    for _ in range(3):
        world.poll()
    assert world.reloads == [["b"]]
    world.clock.now_s += RETRY_INTERVAL_S
    world.poll()
    assert world.reloads == [["b"]] * 2
    world.write("c")
    world.poll()
    assert world.reloads == [["b"]] * 2 + [["c"]]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"improperly formatted file", "Invalid protobuf file: "),
        (b"", "is empty; to serve no models it must say model_config_list {}"),
        (b"\xff", "it is not UTF-8 text"),
        (None, "cannot read"),
    ],
)
def test_a_file_that_can_not_be_used_changes_nothing_and_is_named(
    world: World, data: bytes | None, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    if data is None:
        world.path.unlink()
    else:
        world.path.write_bytes(data)
    world.poll()
    world.poll()
    assert world.reloads == []
    (record,) = caplog.records
    assert reason in vars(record)["reason"] and str(world.path) in vars(record)["reason"]
    world.write("b")
    world.poll()
    assert world.reloads == [["b"]]


def test_at_the_start_an_empty_file_lists_nothing_and_a_bad_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "models.conf"
    with pytest.raises(InvalidRequest, match=f"^cannot read {path}: No such file or directory$"):
        ConfigFile(path, 1.0).read()
    path.write_text("")
    assert ConfigFile(path, 1.0).read() == ()
    path.write_text("improperly formatted file")
    with pytest.raises(InvalidRequest, match=f"^Invalid protobuf file: '{path}': "):
        ConfigFile(path, 1.0).read()


def test_polling_goes_on_after_a_surprise_and_ends_when_told(world: World, caplog: pytest.LogCaptureFixture) -> None:
    class Stop(threading.Event):
        waits = 0

        def wait(self, timeout: float | None = None) -> bool:
            assert timeout == 7.0
            self.waits += 1
            return self.waits == 3

    def fail(models: Sequence[ModelConfig]) -> None:
        raise RuntimeError("surprise")

    world.write("b")
    repeat(partial(world.file.poll_once, fail), Stop(), 7.0, "config-file").join()
    assert [record.getMessage() for record in caplog.records] == ["polling failed"] * 2


@pytest.mark.parametrize(
    ("config", "paths"),
    [
        (None, ("/metrics", "/monitoring/prometheus/metrics")),
        (PrometheusConfig(True), ("/metrics", "/monitoring/prometheus/metrics")),
        (PrometheusConfig(True, "/monitoring/prometheus/metrics"), ("/metrics", "/monitoring/prometheus/metrics")),
        (PrometheusConfig(True, "/m/x"), ("/metrics", "/m/x")),
        (PrometheusConfig(True, "/metrics"), ("/metrics",)),
        (PrometheusConfig(False, "/m/x"), ()),
        (PrometheusConfig(), ()),
    ],
)
def test_paths(config: PrometheusConfig | None, paths: tuple[str, ...]) -> None:
    assert metrics_paths(config) == paths


def test_the_default_is_the_applications_too() -> None:
    assert metrics_paths(None) == ("/metrics", "/monitoring/prometheus/metrics")


@pytest.mark.parametrize("path", ["metrics", "/a{b}", "/a?b", "/a b", "/healthz", "/docs", "/v1/models/m/metadata"])
def test_a_path_that_can_not_be_served_is_refused(path: str) -> None:
    with pytest.raises(InvalidRequest, match="^prometheus_config.path is "):
        metrics_paths(PrometheusConfig(True, path))


def test_reads_a_file(tmp_path: Path) -> None:
    path = tmp_path / "m.conf"
    path.write_text('prometheus_config { enable: true path: "/x" }')
    assert read_monitoring_config(path) == PrometheusConfig(True, "/x")
    path.write_bytes(b"\xff")
    with pytest.raises(InvalidRequest, match="it is not UTF-8 text"):
        read_monitoring_config(path)
    with pytest.raises(InvalidRequest, match="^cannot read .*: No such file or directory$"):
        read_monitoring_config(tmp_path / "nobody")
