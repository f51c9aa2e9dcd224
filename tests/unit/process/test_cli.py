"""The command line refuses bad settings before anything is started, and hands the good ones to the app."""

from __future__ import annotations

import json
import logging
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

import service.process.cli
from service.configuration.settings import Settings, StartError
from service.configuration.settings_reading import installed_version


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
    monkeypatch.setattr(service.process.cli, "prepare_libraries", lambda: None)
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
        gone = f"cannot read its folder {tmp_path}/{{}}: No such file or directory"
        assert told[0] == f"--strict: model film: {gone.format('film')}; did you mean {tmp_path}/films?"
        by_file = [f"--strict: model users: {gone.format('users')}"]
        assert told[1:] == (by_file if "config" in flags[0] else [])
    assert fake_app.seen == []
    assert service.process.cli.main(["--strict", f"--model_base_path={tmp_path / 'films'}"]) == 0
    assert service.process.cli.main([f"--model_base_path={tmp_path / 'film'}"]) == 0
    # --strict does not judge a missing config file, because the start itself reports it.
    assert service.process.cli.main(["--strict", f"--model_config_file={tmp_path / 'none.conf'}"]) == 0
