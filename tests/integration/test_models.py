"""One server has several models, by a file, by requests and with labels; a bad model does not affect the others."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from service.artifact.protos import message_class
from service.engine.model_config import UNTOLD
from tests.integration.conftest import Serve, add_version
from tests.integration.process import ServerProcess, until

RELOAD = "/tensorflow.serving.ModelService/HandleReloadConfigRequest"


def model(name: str, base: Path, settings: str = "") -> str:
    """Returns a model's entry in a config file."""
    return f'config {{ name: "{name}" base_path: "{base}" model_platform: "tensorflow" {settings} }}\n'


def label(name: str, version: int) -> str:
    return f'version_labels {{ key: "{name}" value: {version} }}'


ALL = "model_version_policy { all {} }"


@pytest.fixture
def bases(tmp_path: Path, base: Path) -> tuple[Path, Path]:
    """Writes models a (versions 1 and 2) and b (1); answers are the version times [1, 10]. Returns both folders."""
    add_version(base, 2, scale=2)
    other = tmp_path / "other"
    other.mkdir()
    add_version(other, 1)
    return base, other


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Returns a function that writes the config file of models in one step, as an editor does."""

    def write(*models: str) -> Path:
        path, draft = tmp_path / "models.conf", tmp_path / "models.conf.new"
        draft.write_text("model_config_list {\n" + "".join(models) + "}\n")
        os.replace(draft, path)
        return path

    return write


def ask(server: ServerProcess, where: str) -> Any:
    """Returns the embedding of user 1, or the status and text of the error."""
    response = server.http.post(f"/v1/models/{where}:lookup", json={"features": {"user": [1]}})
    if response.status_code == 200:
        return response.json()["embeddings"]["user"][0]
    return response.status_code, response.json()["error"]


def reload(server: ServerProcess, *entries: dict[str, Any], timeout: float = 60) -> tuple[str, str]:
    """Sends a reload request with this list of models; returns the status code and the error's text."""
    request = message_class("tensorflow.serving.ReloadConfigRequest")()
    request.config.model_config_list.SetInParent()
    for entry in entries:
        request.config.model_config_list.config.add(**({"model_platform": "tensorflow"} | entry))
    try:
        data = server.channel.unary_unary(RELOAD)(request.SerializeToString(), timeout=timeout)
    except grpc.RpcError as error:
        return error.code().name, error.details()
    response = message_class("tensorflow.serving.ReloadConfigResponse").FromString(data)
    return str(response.status.error_code), response.status.error_message


def test_a_file_lists_models_policies_and_labels(
    serve: Serve, bases: tuple[Path, Path], write: Callable[..., Path], tmp_path: Path
) -> None:
    a, b = bases
    labels = label("stable", 1) + label("canary", 2)
    config = write(model("a", a, ALL + labels), model("b", b), model("bad", tmp_path / "nothing"))
    server = serve(
        "--allow_version_labels_for_unavailable_models",
        model_base_path="",
        model_config_file=config,
        model_config_file_poll_wait_seconds=0.05,
    ).answering()
    server.wait_for_log("loaded", model="a", version=1)
    server.wait_for_log("loaded", model="b")
    assert [ask(server, where) for where in ("a", "a/versions/1", "a/labels/stable", "a/labels/canary", "b")] == [
        [2, 20],
        [1, 10],
        [1, 10],
        [2, 20],
        [1, 10],
    ]
    assert ask(server, "a/labels/x") == (400, "Unrecognized servable version label: x; labels: canary, stable")
    assert ask(server, "bad")[0] == 503
    assert server.http.get("/readyz").json()["problems"] == {
        "bad": f"cannot read its folder {tmp_path / 'nothing'}: No such file or directory"
    }
    # The model config file no longer has the models "bad" and "b", and moves a label.
    write(model("a", a, ALL + label("stable", 2)))
    until(lambda: ask(server, "a/labels/stable") == [2, 20])
    assert ask(server, "a/labels/canary") == (400, "Unrecognized servable version label: canary; labels: stable")
    assert ask(server, "b") == (404, "Servable not found for request: Latest(b)")
    assert server.http.get("/readyz").status_code == 200
    # A model config file that can not be parsed changes nothing: the server keeps its models and labels.
    config.write_text("improperly formatted file")
    server.wait_for_log("model config refused")
    assert ask(server, "a/labels/stable") == [2, 20]


def test_a_reload_by_request_is_taken_whole_or_not_at_all(serve: Serve, bases: tuple[Path, Path]) -> None:
    a, b = bases
    server = serve(model_base_path=a, model_name="a", max_num_load_retries=0).ready()
    entry_a, entry_b = {"name": "a", "base_path": str(a)}, {"name": "b", "base_path": str(b)}
    assert reload(server, entry_a, entry_b) == ("0", "")
    assert (ask(server, "a"), ask(server, "b")) == ([2, 20], [1, 10])
    unavailable = "Request to assign label to version 9 of model a, which is not currently available for inference"
    assert reload(server, entry_a | {"version_labels": {"stable": 9}}) == ("FAILED_PRECONDITION", unavailable)
    assert reload(server, entry_a | {"version_labels": {"stable": 2}}, entry_b) == ("0", "")
    assert ask(server, "a/labels/stable") == [2, 20]

    broken = a.parent / "broken"
    (broken / "1").mkdir(parents=True)
    (broken / "1" / "saved_model.pb").write_bytes(b"\xff")
    code, text = reload(server, {"name": "new", "base_path": str(b)}, {"name": "bad", "base_path": str(broken)})
    assert code == "UNKNOWN"
    assert text == f"1 model(s) did not become available: {{{{{{name: bad}} due to error: {UNTOLD}}}, }}"
    assert (ask(server, "a/labels/stable"), ask(server, "b")) == ([2, 20], [1, 10])
    for name in ("new", "bad"):
        assert server.http.get(f"/v1/models/{name}").status_code == 404, "no trace"
    assert reload(server, {"name": "x", "base_path": "relative"}) == (
        "INVALID_ARGUMENT",
        "Expected model x to have an absolute path or URI; got base_path()=relative",
    )
    assert reload(server, entry_a | {"model_platform": ""})[0] == "INVALID_ARGUMENT"

    assert reload(server, entry_b) == ("0", "")
    assert ask(server, "a") == (404, "Servable not found for request: Latest(a)")
    ended = {"version": "2", "state": "END", "status": {"error_code": "OK", "error_message": ""}}
    until(lambda: server.http.get("/v1/models/a").json() == {"model_version_status": [ended]})


def test_a_savedmodel_without_manifest_waits_until_its_copy_is_at_rest(serve: Serve, base: Path) -> None:
    server = serve(version_settle_s=0.5, max_num_load_retries=0).ready()
    incoming = base.parent / "incoming"
    shutil.copytree(base / "1", incoming)
    shutil.rmtree(incoming / "assets.extra")
    shutil.copytree(incoming, base / "2")
    # Version 2 needs TensorFlow, which this server must not use. So its load fails, but not before its files have
    # rested for version_settle_s.
    record = server.wait_for_log("load failed", version=2)
    assert "has no lookup manifest" in record["reason"]
    assert server.lookup({"user": [1]}) == {"user": [[1, 10]]}


def test_a_config_that_can_not_be_used_stops_the_start(
    serve: Serve, bases: tuple[Path, Path], write: Callable[..., Path]
) -> None:
    server = serve(model_base_path="", model_config_file=write(model("a", bases[0], label("stable", 1))))
    assert server.exit_code() == 2
    assert "Request to assign label to version 1 of model a" in server.text()
    assert "--allow_version_labels_for_unavailable_models=true" in server.text()


def test_a_reload_by_request_stays_in_force_until_the_file_changes(
    serve: Serve, bases: tuple[Path, Path], write: Callable[..., Path]
) -> None:
    a, b = bases
    config = write(model("a", a))
    polling = {"model_config_file_poll_wait_seconds": 0.05, "load_retry_interval_micros": 200_000}
    server = serve(model_base_path="", model_config_file=config, **polling).ready()
    assert reload(server, {"name": "b", "base_path": str(b)}) == ("0", "")
    # The server polls the config file while it is unchanged, rewritten with the same text, and missing for a moment.
    write(model("a", a))
    config.rename(config.with_suffix(".away"))
    server.wait_for_log("model config refused", reason=f"cannot read {config}: No such file or directory")
    config.with_suffix(".away").rename(config)
    time.sleep(0.3)
    assert (ask(server, "a")[0], ask(server, "b")) == (404, [1, 10])
    write(model("a", a), model("b", b))
    until(lambda: ask(server, "a") == [2, 20])
    # The server refuses a config file with a model that it can not load, and tries again later, because the model's
    # folder may come.
    c = a.parent / "c"
    write(model("a", a), model("c", c))
    server.wait_for_log("reload refused")
    assert (ask(server, "a"), ask(server, "b")) == ([2, 20], [1, 10])
    c.mkdir()
    add_version(c, 3, scale=3)
    until(lambda: ask(server, "c") == [3, 30])
    assert ask(server, "b") == (404, "Servable not found for request: Latest(b)")


@pytest.mark.parametrize("text", [None, "model_config_list { config { name: 1 } }"])
def test_a_file_that_is_missing_or_wrong_stops_the_start_and_is_named(
    serve: Serve, tmp_path: Path, text: str | None
) -> None:
    file = tmp_path / "models.conf"
    if text is not None:
        file.write_text(text)
    server = serve(model_base_path="", model_config_file=file)
    assert server.exit_code() == 2
    assert f"--model_config_file={file}: " in server.text()
