"""Typical mistakes of users, each as the real command: the exit status, and a text that says what to do.

Nothing here may start TensorFlow: what is cheap to check is checked before. Each command runs once, in a process of its
own, which is a fork of one process that has imported both programs.
"""

from __future__ import annotations

import os
import re
import socket
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

import grpc
import numpy as np
import pytest

from service.artifact.protos import message_class
from tests.fork_server import fork_server
from tests.integration.conftest import Serve
from tests.integration.process import PATIENCE_S, ROOT, environment, until
from tests.toy_model import write_toy_model

pytestmark = pytest.mark.core

# Content of a fake module tensorflow: a command that imports it fails.
_NO_TENSORFLOW = 'raise ImportError("this mistake must be found without TensorFlow")\n'
_FILES = {
    "ranker.keras": "PK",
    "ranker.h5": "HDF",
    "checkpoint/checkpoint": "",
    "checkpoint/model.ckpt-7.index": "",
    "run/run.json": "{}",
    "broken.toml": "tables = [",
    "key.toml": "[tabels.user]",
    "variable.toml": '[tables.user]\nvariable = "tables/usr"\n[features.user]\ntable = "user"',
    "table.toml": '[tables.user]\n[features.user]\ntable = "usr"',
    "export.toml": 'run = "runs/mine"\nout = "out"\nbatch_size = [1]',
    "end.conf": 'model_config_list { config { name: "m" base_path: "/models/m" }',
    "field.conf": 'model_config_list {\n  config { name: "m" base_pth: "/models/m" model_platform: "tensorflow" }\n}',
    "relative.conf": 'model_config_list { config { name: "m" base_path: "models/m" model_platform: "tensorflow" } }',
    "platform.conf": 'model_config_list { config { name: "m" base_path: "/models/m" } }',
    "paths.conf": 'model_config_list { config { name: "m" base_path: "BASE/toi" model_platform: "tensorflow" } }',
    "labels.conf": 'model_config_list { config { name: "a" base_path: "BASE/toy" model_platform: "tensorflow" '
    'version_labels { key: "stable" value: 1 } } }',
    "empty.npz": "",
    "monitoring.conf": 'prometheus_config { enable: true path: "x" }',
    "batching.conf": "allowed_batch_sizes: 2",
    "top.conf": 'config { name: "m" base_path: "/models/m" model_platform: "tensorflow" }',
    "wrapped.conf": "max_batch_size: 10",
    "spelt.conf": 'model_config_list { config { name: "m" base_path: "/models/m" model_platform: "tensorflw" } }',
    "auth.toml": '[[caller]]\nname = "a"\n',
    "hidden/tensorflow.py": _NO_TENSORFLOW,
}


# Each command line after "$ ", with variables before it, in a folder {where}, and all that the program says.
_TABLE = Path(__file__).with_name("typical_mistakes.txt")
_PLACES = {"{local}": "--host=127.0.0.1 --port=auto --rest_api_port=auto", "{long}": "x" * 120}
_PROGRAMS = {"model-export": "model_export", "embedding-server": "service"}
_CAN_NOT = "embedding-server can not start:\n"
_HINT = "; did you mean {where}/models/toy?"


def _mistakes() -> Iterator[tuple[str, str]]:
    for mistake in ("\n" + _TABLE.read_text()).split("\n$ ")[1:]:
        command, _, text = _filled(mistake.rstrip("\n"), _PLACES).partition("\n")
        yield command, text


def _filled(text: str, places: Mapping[str, object]) -> str:
    for name, value in places.items():
        text = text.replace(name, str(value))
    return text


MISTAKES = dict(_mistakes())


@pytest.fixture(scope="module")
def where(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a toy model, a SavedModel without a manifest, and each wrong file that the mistakes name."""
    folder = tmp_path_factory.mktemp("mistakes")
    write_toy_model(folder / "models/toy/1")
    write_toy_model(folder / "foreign")
    (folder / "foreign/assets.extra/lookup_manifest.json").unlink()
    write_toy_model(folder / "manifest")
    (folder / "manifest/assets.extra/lookup_manifest.json").write_text("{")
    (folder / "empty").mkdir()
    for name, text in _FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text.replace("BASE", str(folder / "models")))
    with zipfile.ZipFile(folder / "whole.keras", "w") as archive:
        archive.writestr("metadata.json", '{"keras_version": "3.0"}')
    np.save(folder / "rows.npy", np.zeros((1, 2), np.float32))
    np.savez(folder / "rows.npz", ids=np.array([1]), rows=np.zeros((1, 2), np.float32))
    (folder / "cut.npz").write_bytes((folder / "rows.npz").read_bytes()[:100])
    return folder


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """Yields a port on which another program listens."""
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield taken.getsockname()[1]


@pytest.fixture(scope="module")
def commands(where: Path, port: int) -> dict[str, tuple[int, str]]:
    """Runs every command once; returns each one's exit status and what it wrote."""
    imported = ("model_export.commands", "service.process.cli")
    with fork_server(imported, 0, folder=where, path=[where / "hidden", ROOT]) as forks:
        started = {}
        for command in MISTAKES:
            variables, program, arguments = re.fullmatch(r"((?:\w+=\S+ )*)(\S+)(.*)", command).groups()  # type: ignore[union-attr]
            words = arguments.replace("{port}", str(port)).split() + ["--log_format=text"] * (program != "model-export")
            given = environment() | dict(one.split("=") for one in variables.split())
            started[command] = forks.start(_PROGRAMS[program], *words, environment=given)
            started[command].wait(PATIENCE_S)
        return {command: process.end(PATIENCE_S) for command, process in started.items()}


@pytest.mark.parametrize("command", MISTAKES)
def test_a_mistake_has_its_status_and_says_what_to_do(
    command: str, commands: dict[str, tuple[int, str]], where: Path, port: int
) -> None:
    text = _filled(MISTAKES[command], {"{where}": where, "{port}": port})
    status, errors = commands[command]
    told = errors.rstrip("\n")
    if not text.startswith(("model-export: ", _CAN_NOT)):
        # The reason is in the last line of the log.
        told = told.splitlines()[-1].partition("cannot start reason=")[2]
    assert told == text
    assert status == (1 if command.startswith("model-export") or "--strict" in command else 2)
    assert "Traceback" not in errors and "must be found without TensorFlow" not in errors
    assert not (where / "out").exists()


# Maps --model_base_path, relative to the test's folder, to the reason that a server without any version gives.
WAITING = {
    "models/toi": "cannot read the folder {where}/models/toi: No such file or directory" + _HINT,
    "models/toy/1": "no version folder (an integer name such as 1) in {where}/models/toy/1, which holds saved_model.pb "
    "and so is a version itself" + _HINT,
}


@pytest.mark.parametrize("path", WAITING)
def test_a_server_that_waits_says_why_everywhere_and_takes_what_appears(serve: Serve, where: Path, path: str) -> None:
    server = serve(model_base_path=where / path, model_name="toy").answering()
    text = _filled(WAITING[path], {"{where}": where})
    assert server.wait_for_log("model has no versions")["reason"] == text
    status = server.http.get("/v1/models/toy")
    error = f"Could not find any versions of model toy: {text}"
    assert (status.status_code, status.json()) == (404, {"error": error})
    request = message_class("tensorflow.serving.GetModelStatusRequest")()
    request.model_spec.name = "toy"
    call = server.channel.unary_unary("/tensorflow.serving.ModelService/GetModelStatus")
    with pytest.raises(grpc.RpcError) as caught:
        call(request.SerializeToString(), timeout=30)
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    assert caught.value.details() == f"Could not find any versions of model toy: {text}"
    assert server.http.get("/readyz").json()["problems"] == {"toy": text}
    assert text in server.http.get("/v1/statusz", headers={"Accept": "application/json"}).text
    write_toy_model(where / "incoming")
    (where / path).mkdir(exist_ok=True)
    os.rename(where / "incoming", where / path / "7")
    server.wait_for_log("loaded", model="toy", version=7)
    until(lambda: server.http.get("/readyz").status_code == 200)
    assert server.http.get("/v1/models/toy/versions/7").json()["model_version_status"][0]["state"] == "AVAILABLE"
