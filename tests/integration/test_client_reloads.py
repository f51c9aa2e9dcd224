"""A client of the public ports can reload models, and neither writes files nor learns about the server's disk."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.artifact.protos import message_class
from service.engine.model_config import UNTOLD
from tests.integration.conftest import Serve, add_version
from tests.integration.process import ServerProcess, until
from tests.integration.test_models import ask, reload

STATUS = "/tensorflow.serving.ModelService/GetModelStatus"


def log_to(prefix: Path) -> dict[str, Any]:
    """Returns the part of a reload request's entry that starts a log of all requests."""
    return {
        "logging_config": {
            "log_collector_config": {"filename_prefix": str(prefix)},
            "sampling_config": {"sampling_rate": 1.0},
        }
    }


def files_of(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_a_request_log_is_written_only_below_its_root(serve: Serve, base: Path, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "out").symlink_to(tmp_path)
    victim = tmp_path / "victim-20200101T000000-1-0001.tfrecord"
    victim.write_bytes(b"old")
    before = files_of(tmp_path)
    entry = {"name": "default", "base_path": str(base)}
    server = serve(request_log_root=logs).ready()
    for prefix in (tmp_path / "victim", logs / ".." / "victim", logs / "out" / "victim", logs):
        code, text = reload(server, entry | log_to(prefix))
        assert code == "PERMISSION_DENIED", prefix
        assert "--request_log_root" in text and str(tmp_path) not in text
        server.lookup({"user": [1]})
    assert files_of(tmp_path) == before
    assert reload(server, entry | log_to(logs / "films")) == ("0", "")
    server.lookup({"user": [1]})
    until(lambda: any(name.startswith("films-") for name in os.listdir(logs)))
    server.signal(15)
    assert server.exit_code() == 0
    assert victim.read_bytes() == b"old"


def test_a_client_adds_models_beside_the_served_ones_and_learns_nothing_of_the_disk(
    serve: Serve, base: Path, tmp_path: Path
) -> None:
    beside_base = base.with_name("beside")
    beside_base.mkdir()
    near = base.with_name("besides-1")
    broken = base.with_name("broken")
    (broken / "7").mkdir(parents=True)
    (broken / "7" / "saved_model.pb").write_bytes(b"\xff")
    file = base.with_name("file.conf")
    file.write_text("x")
    private = base.with_name("private")
    private.mkdir(0o000)
    server = serve(max_num_load_retries=0).ready()
    kept = {"name": "default", "base_path": str(base)}
    # What can not be read has one text, whether it is there or not.
    told = {
        path: reload(server, kept, {"name": "new", "base_path": str(path)})
        for path in (base.with_name("absent"), near, broken, file, private, base.with_name("besid"))
    }
    expected = f"1 model(s) did not become available: {{{{{{name: new}} due to error: {UNTOLD}}}, }}"
    assert set(told.values()) == {("UNKNOWN", expected)}
    assert server.wait_for_log("load failed", model="new")["reason"].startswith(f"{broken}/7/saved_model.pb")
    # What lies elsewhere has one text, too, which names only what the client has sent.
    outside = {}
    for path in ("/etc", "/etc/passwd", "/srv/x", "/no/such", f"{base}/../../x", f"{tmp_path.parent}"):
        code, text = reload(server, kept, {"name": "new", "base_path": path})
        outside[path] = (code, text.replace(path, "PATH"))
    assert len(set(outside.values())) == 1 and outside["/etc"][0] == "PERMISSION_DENIED", outside
    # A served model that is moved to another folder is told no more about that folder.
    assert reload(server, {"name": "default", "base_path": "/etc"})[0] == "PERMISSION_DENIED"
    moved = {"name": "default", "base_path": str(base.with_name("absent"))}
    beside = {"name": "new", "base_path": str(beside_base)}
    add_version(beside_base, 3, scale=3)
    assert reload(server, moved, beside) == ("0", "")
    assert ask(server, "new") == [3, 30]
    server.wait_for_log("model has no versions", model="default")
    other = {"name": "other", "base_path": str(beside_base)}
    # A model that a client moves to a broken folder: neither its status nor readiness says what is in that folder.
    assert reload(server, {"name": "new", "base_path": str(broken)}, other) == ("0", "")
    server.wait_for_log("load failed", model="new", attempt=1, version=7)
    until(lambda: status(server, "new").get(7) == UNTOLD)
    seen = server.http.get("/readyz").text + server.http.get("/v1/models/new").text
    assert str(tmp_path) not in seen


def status(server: ServerProcess, name: str) -> dict[int, str]:
    """Returns version -> error text of a model's versions."""
    request = message_class("tensorflow.serving.GetModelStatusRequest")()
    request.model_spec.name = name
    data = server.channel.unary_unary(STATUS)(request.SerializeToString(), timeout=60)
    response = message_class("tensorflow.serving.GetModelStatusResponse").FromString(data)
    return {one.version: one.status.error_message for one in response.model_version_status}


def test_the_operator_opens_a_folder_and_the_admin_port_opens_all(
    serve: Serve, base: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root, elsewhere = tmp_path_factory.mktemp("opened"), tmp_path_factory.mktemp("elsewhere") / "model"
    (root / "films").mkdir()
    elsewhere.mkdir()
    add_version(root / "films", 1)
    add_version(elsewhere, 1)
    server = serve(model_root=root, admin_port="auto").ready()
    kept = {"name": "default", "base_path": str(base)}
    assert reload(server, kept, {"name": "films", "base_path": str(root / "films")}) == ("0", "")
    assert ask(server, "films") == [1, 10]
    assert reload(server, kept, {"name": "e", "base_path": str(elsewhere)})[0] == "PERMISSION_DENIED"
    entries = "".join(
        f'config {{ name: "{name}" base_path: "{path}" model_platform: "tensorflow" }}'
        for name, path in (("default", base), ("e", elsewhere))
    )
    answer = httpx.post(
        f"http://127.0.0.1:{server.admin_port}/v1/config:reload",
        content=f"model_config_list {{ {entries} }}",
        timeout=60,
    )
    assert answer.json() == {"models": ["default", "e"]}
    missing = f'config {{ name: "x" base_path: "{elsewhere}/no" model_platform: "tensorflow" }}'
    refused = httpx.post(
        f"http://127.0.0.1:{server.admin_port}/v1/config:reload",
        content=f"model_config_list {{ {entries} {missing} }}",
        timeout=60,
    )
    assert f"cannot read its folder {elsewhere}/no" in refused.json()["error"], "an operator is told all"
