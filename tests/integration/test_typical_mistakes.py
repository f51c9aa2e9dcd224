"""Typical mistakes of users, each as the real command: the exit status, and a text that says what to do.

Nothing here may start TensorFlow: what is cheap to check is checked before. Each command runs once, in a process of its
own, which is a fork of one process that has imported both programs.
"""

from __future__ import annotations

import os
import socket
import zipfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
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
    "empty.npz": "",
    "hidden/tensorflow.py": _NO_TENSORFLOW,
}


@dataclass(frozen=True, slots=True)
class Mistake:
    """A command line in the folder {w}, its exit status, and all that it writes to stderr."""

    command: str
    status: int
    text: str
    environ: tuple[tuple[str, str], ...] = ()


EXPORT: dict[str, Mistake] = {
    "adopt nothing": Mistake("adopt models/tooy", 1, "models/tooy does not exist; did you mean toy?"),
    "adopt an empty folder": Mistake("adopt empty", 1, "empty has no saved_model.pb: it is not a SavedModel"),
    "adopt a folder of versions": Mistake(
        "adopt models/toy", 1, "models/toy is a folder of versions: name one, such as models/toy/1"
    ),
    "adopt a Keras file": Mistake(
        "adopt ranker.keras --out out",
        1,
        "ranker.keras is not a model that Keras saved: File is not a zip file",
    ),
    "adopt an HDF5 file": Mistake(
        "adopt ranker.h5",
        1,
        "ranker.h5 is not a model that Keras saved: Unable to synchronously open file (file signature not found)",
    ),
    "export a Keras file without a folder": Mistake(
        "export whole.keras", 1, "--out is missing: the folder of the model's versions, such as models/whole"
    ),
    "export a SavedModel": Mistake(
        "export foreign --out out", 1, "foreign is a SavedModel: model-export adopt foreign --out DIR"
    ),
    "adopt a checkpoint": Mistake(
        "adopt checkpoint",
        1,
        "checkpoint holds a checkpoint: variables without signatures. Restore it into its model and export that "
        "(tf.saved_model.save, or model_export.export)",
    ),
    "adopt the run of a training": Mistake(
        "adopt run",
        1,
        "run is the folder of a training run: write a SavedModel with `model-export export --run run`",
    ),
    "adopt the file in a SavedModel": Mistake(
        "adopt foreign/saved_model.pb",
        1,
        "foreign/saved_model.pb is the file in a SavedModel: name its folder, foreign",
    ),
    "adopt without the spec file": Mistake(
        "adopt foreign --out out --spec none.toml", 1, "cannot read none.toml: No such file or directory"
    ),
    "a spec that is no TOML": Mistake(
        "adopt foreign --out out --spec broken.toml",
        1,
        "cannot read broken.toml: it is no TOML: Invalid value (at end of document)",
    ),
    "a spec with an unknown key": Mistake(
        "adopt foreign --out out --spec key.toml",
        1,
        "key.toml: tabels is no key of a spec; the keys are tables, features, signatures, lookup; did you mean tables?",
    ),
    "a spec with an unknown variable": Mistake(
        "adopt foreign --out out --spec variable.toml",
        1,
        "variable 'tables/usr' is not there; did you mean tables/user?\nCandidates:\n"
        "  table? tables/tag/.ATTRIBUTES/VARIABLE_VALUE  [4, 3] float32\n"
        "  table? tables/user/.ATTRIBUTES/VARIABLE_VALUE  [5, 2] float32\n"
        "         _padding  [3] uint8",
    ),
    "a spec with an unknown table": Mistake(
        "adopt foreign --out out --spec table.toml",
        1,
        "table.toml: tables and features: feature 'user' uses table 'usr', which is not declared; did you mean user?",
    ),
    "adopt into a version that exists": Mistake(
        "adopt foreign --out models/toy --version 1 --spec key.toml",
        1,
        "models/toy/1 exists; a version is never overwritten: leave --version out for the next",
    ),
    "adopt into a file": Mistake(
        "adopt foreign --out ranker.h5/models --spec key.toml",
        1,
        "cannot write to ranker.h5/models: ranker.h5 is a file",
    ),
    "adopt into a folder of the kernel": Mistake(
        "adopt foreign --out /proc/models",
        1,
        "cannot write to /proc/models: /proc: No such file or directory",
    ),
    "adopt with a version of 0": Mistake(
        "adopt foreign --out out --version 0 --spec key.toml", 1, "version is 0; versions are positive integers"
    ),
    "verify a folder of versions": Mistake(
        "verify models/toy", 1, "models/toy is a folder of versions: name one, such as models/toy/1"
    ),
    "verify a Keras file": Mistake("verify whole.keras", 1, "whole.keras is a file, not the folder of a SavedModel"),
    "inspect a Keras file": Mistake("inspect whole.keras", 1, "whole.keras is a file, not the folder of a SavedModel"),
    "inspect a version with a broken manifest": Mistake(
        "inspect manifest",
        1,
        "assets.extra/lookup_manifest.json is not valid JSON: Expecting property name enclosed in double quotes: line "
        "1 column 2 (char 1)",
    ),
    "compact with a journal that is not there": Mistake(
        "compact models/toy/1 --journal none", 1, "none does not exist"
    ),
    "labels of rows that are not there": Mistake(
        "inspect models/toy/1 --labels tag=none.csv",
        1,
        "cannot read the labels of table 'tag' from none.csv: No such file or directory",
    ),
    "verify a foreign SavedModel": Mistake(
        "verify foreign", 1, "foreign has no lookup manifest; `model-export` did not write it"
    ),
    "inspect nothing": Mistake("inspect modles", 1, "modles does not exist; did you mean models?"),
    "compact a folder of versions": Mistake(
        "compact models/toy", 1, "{w}/models/toy is a folder of versions: name one, such as {w}/models/toy/1"
    ),
    "delta without rows": Mistake(
        "delta models/toy/1 --table user --rows none.npz",
        1,
        "cannot read none.npz: No such file or directory",
    ),
    "delta of a .npy file": Mistake(
        "delta models/toy/1 --table user --rows rows.npy",
        1,
        "rows.npy: expected a .npz file with the arrays ids and rows",
    ),
    "delta of a .npz file that is cut short": Mistake(
        "delta models/toy/1 --table user --rows cut.npz",
        1,
        "cut.npz: expected a .npz file with the arrays ids and rows",
    ),
    "delta of an empty file": Mistake(
        "delta models/toy/1 --table user --rows empty.npz",
        1,
        "empty.npz: expected a .npz file with the arrays ids and rows",
    ),
    "delta of an unknown table": Mistake(
        "delta models/toy/1 --table usr --rows rows.npz", 1, "no table 'usr'; tables: tag, user"
    ),
    "export of a run that is not there": Mistake(
        "export --run runs/mine --out out",
        1,
        "runs/mine has no run.json: it is not the folder of a `model-export train` run; a model of yours: "
        "model-export export MODEL.keras --out DIR",
    ),
    "export of a config with a misspelt key": Mistake(
        "export --config export.toml",
        1,
        "export.toml: unknown keys ['batch_size']; there are factory, run, adopt, spec, out, version, lookup_device, "
        "signatures, batch_sizes, export_to_tpu, allow_nonfinite, warmup, table_dtype, labels, options; did you mean "
        "batch_sizes?",
    ),
}

_CAN_NOT = "embedding-server can not start:\n"
_AT = "--host=127.0.0.1 --port=auto --rest_api_port=auto"
_HINT = "; did you mean {w}/models/toy?"
SERVER: dict[str, Mistake] = {
    "no model": Mistake(
        "",
        2,
        _CAN_NOT
        + "name a folder of models, or of the versions of one model, for example: embedding-server models/movielens",
    ),
    "a misspelt folder": Mistake(
        f"models/toi {_AT}", 2, "cannot read the folder {w}/models/toi: No such file or directory" + _HINT
    ),
    "a version as the folder": Mistake(
        f"models/toy/1 {_AT}",
        2,
        "no version folder (an integer name such as 1) in {w}/models/toy/1, which holds saved_model.pb and so is a "
        "version itself" + _HINT,
    ),
    "a folder in two ways": Mistake(
        f"models --model_base_path=models/toy {_AT}",
        2,
        _CAN_NOT + "models are named in two ways, by the folder models and by --model_base_path: give one",
    ),
    "a misspelt flag": Mistake(
        "--model_base_path=models/toy --rest_api_prot=8501",
        2,
        _CAN_NOT + "--rest_api_prot=8501 is no flag of this server (see --help); did you mean --rest_api_port?",
    ),
    "a misspelt variable": Mistake(
        "--model_base_path=models/toy",
        2,
        _CAN_NOT + "EMB_MODEL_NAM is not a setting of this server (see --help); did you mean EMB_MODEL_NAME?",
        (("EMB_MODEL_NAM", "toy"),),
    ),
    "a variable with a wrong value": Mistake(
        "--model_base_path=models/toy",
        2,
        _CAN_NOT + "EMB_PORT is 70000: expected 0 to 65535",
        (("EMB_PORT", "70000"),),
    ),
    "a socket in a folder that is not there": Mistake(
        f"--model_base_path=models/toy --grpc_socket_path=none/grpc {_AT}",
        2,
        "--grpc_socket_path=none/grpc: No such file or directory. Choose another path.",
    ),
    "a socket with a long path": Mistake(
        f"--model_base_path=models/toy --grpc_socket_path={'x' * 120} {_AT}",
        2,
        f"--grpc_socket_path={'x' * 120}: AF_UNIX path too long. Choose another path.",
    ),
    "a file as the folder of hot rows": Mistake(
        f"--model_base_path=models/toy --hot_rows_dir=ranker.h5 {_AT}",
        2,
        "--hot_rows_dir=ranker.h5 is a file: name a folder",
    ),
    "a store's URI in capital letters": Mistake(
        f"S3://bucket/m {_AT}",
        2,
        "cannot read {w}/S3:/bucket/m: a place in an object store is written s3://BUCKET/PLACE",
    ),
    "a port that is no number": Mistake(
        "--model_base_path=models/toy --port=http", 2, _CAN_NOT + "--port is 'http': expected a whole number, or 'auto'"
    ),
    "a config file that is not there": Mistake(
        f"--model_config_file=none.conf {_AT}",
        2,
        "--model_config_file=none.conf: cannot read none.conf: No such file or directory",
    ),
    "a config file without its last bracket": Mistake(
        f"--model_config_file=end.conf {_AT}",
        2,
        "--model_config_file=end.conf: Invalid protobuf file: 'end.conf': 1:63 : Expected \"}}\".",
    ),
    "a config file with a misspelt field": Mistake(
        f"--model_config_file=field.conf {_AT}",
        2,
        "--model_config_file=field.conf: Invalid protobuf file: 'field.conf': 2:22 : Message type "
        '"tensorflow.serving.ModelConfig" has no field named "base_pth".',
    ),
    "a config file with a relative path": Mistake(
        f"--model_config_file=relative.conf {_AT}",
        2,
        "--model_config_file=relative.conf: Expected model m to have an absolute path or URI; got base_path()=models/m",
    ),
    "a config file without a platform": Mistake(
        f"--model_config_file=platform.conf {_AT}",
        2,
        "--model_config_file=platform.conf: Illegal setting neither ModelServerConfig::model_type (deprecated) nor "
        "ModelServerConfig::model_platform, model name is m",
    ),
    "a config file with a wrong path, strictly": Mistake(
        f"--strict --model_config_file=paths.conf {_AT}",
        1,
        "--strict: model m: cannot read the folder {w}/models/toi: No such file or directory" + _HINT,
    ),
    "a misspelt path, strictly": Mistake(
        f"--strict --model_base_path=models/toi {_AT}",
        1,
        "--strict: model default: cannot read the folder {w}/models/toi: No such file or directory" + _HINT,
    ),
    "a version as the path, strictly": Mistake(
        f"--strict --model_base_path=models/toy/1 {_AT}",
        1,
        "--strict: model default: no version folder (an integer name such as 1) in {w}/models/toy/1, which holds "
        "saved_model.pb and so is a version itself" + _HINT,
    ),
    "the folder above as the path, strictly": Mistake(
        f"--strict --model_base_path=models {_AT}",
        1,
        "--strict: model default: no version folder (an integer name such as 1) in {w}/models" + _HINT,
    ),
    "a file as the path, strictly": Mistake(
        f"--strict --model_base_path=ranker.h5 {_AT}",
        1,
        "--strict: model default: cannot read the folder {w}/ranker.h5: Not a directory",
    ),
    "a URI as the path, strictly": Mistake(
        f"--strict --model_base_path=hdfs://host/m {_AT}",
        1,
        "--strict: model default: cannot read the folder hdfs://host/m: it is a URI; this server reads "
        "mounted folders, and s3://, gs:// and az://",
    ),
    "a bucket as the path, and no cache": Mistake(
        f"--model_base_path=s3://bucket/m {_AT}",
        2,
        _CAN_NOT + "s3://bucket/m is in an object store, so --store_cache_dir must name a folder for its versions",
    ),
    "an HTTP port in use": Mistake(
        "--model_base_path=models/toy --host=127.0.0.1 --port=auto --rest_api_port={port}",
        2,
        "cannot listen on 127.0.0.1:{port} for HTTP: Address already in use. Choose another with --rest_api_port or "
        "--host.",
    ),
    "a gRPC port in use": Mistake(
        "--model_base_path=models/toy --host=127.0.0.1 --rest_api_port=auto --port={port}",
        2,
        "cannot listen on 127.0.0.1:{port} for gRPC: Address already in use. Choose another with --port or --host.",
    ),
}
ALL = {("model_export", name): mistake for name, mistake in EXPORT.items()} | {
    ("service", name): mistake for name, mistake in SERVER.items()
}


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
def commands(where: Path, port: int) -> dict[tuple[str, str], tuple[int, str]]:
    """Runs every command once; returns each one's exit status and what it wrote."""
    imported = ("model_export.commands", "service.process.cli")
    with fork_server(imported, 0, folder=where, path=[where / "hidden", ROOT]) as forks:
        started = {}
        for (program, name), mistake in ALL.items():
            arguments = mistake.command.format(port=port).split() + ["--log_format=text"] * (program == "service")
            started[program, name] = forks.start(program, *arguments, environment=environment() | dict(mistake.environ))
            started[program, name].wait(PATIENCE_S)
        return {command: process.end(PATIENCE_S) for command, process in started.items()}


@pytest.mark.parametrize(("program", "name"), ALL)
def test_a_mistake_has_its_status_and_says_what_to_do(
    program: str, name: str, commands: dict[tuple[str, str], tuple[int, str]], where: Path, port: int
) -> None:
    mistake, (status, errors) = ALL[program, name], commands[program, name]
    text = mistake.text.format(w=where, port=port)
    told = errors.rstrip("\n")
    if program == "model_export":
        assert told == f"model-export: {text}"
    elif not text.startswith(_CAN_NOT):
        # The reason is in the last line of the log.
        told = told.splitlines()[-1].partition("cannot start reason=")[2]
        assert told == text
    else:
        assert told == text
    assert status == mistake.status
    assert "Traceback" not in errors and "must be found without TensorFlow" not in errors
    assert not (where / "out").exists()


# Maps --model_base_path, relative to the test's folder, to the reason that a server without any version gives.
WAITING = {
    "models/toi": "cannot read the folder {w}/models/toi: No such file or directory" + _HINT,
    "models/toy/1": "no version folder (an integer name such as 1) in {w}/models/toy/1, which holds saved_model.pb and "
    "so is a version itself" + _HINT,
}


@pytest.mark.parametrize("path", WAITING)
def test_a_server_that_waits_says_why_everywhere_and_takes_what_appears(serve: Serve, where: Path, path: str) -> None:
    server = serve(model_base_path=where / path, model_name="toy").answering()
    text = WAITING[path].format(w=where)
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
