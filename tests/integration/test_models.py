"""One server has many models: by a file, by requests of admins and of clients, and with labels."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pytest

from service.artifact.protos import message_class
from service.observe.metrics import SHOWN_SCRAPES
from service.versions.model_config import UNTOLD
from tests.exposition import read_exposition
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
        "bad": f"cannot read the folder {tmp_path / 'nothing'}: No such file or directory"
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
    server.wait_for_log("no new versions are seen", model="default")
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
    assert f"cannot read the folder {elsewhere}/no" in refused.json()["error"], "an operator is told all"


NUM_MODELS = 60


@pytest.fixture
def entries(tmp_path: Path, base: Path) -> list[dict[str, Any]]:
    """Makes models m0, m1, ... of hard links to one version; returns their entries in a list of models."""
    for number in range(NUM_MODELS):
        shutil.copytree(base / "1", tmp_path / f"m{number}" / "1", copy_function=os.link)
    return [{"name": f"m{number}", "base_path": str(tmp_path / f"m{number}")} for number in range(NUM_MODELS)]


def num_threads(server: ServerProcess) -> int:
    return len(os.listdir(f"/proc/{server.pid}/task"))


def peak_memory(server: ServerProcess) -> int:
    """Returns the largest resident memory of the server so far, in bytes."""
    status = Path(f"/proc/{server.pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) << 10


def labelled(server: ServerProcess) -> set[str]:
    """Scrapes the metrics; returns the models that some series names."""
    families = read_exposition(server.http.get("/monitoring/prometheus/metrics").text)
    found = [labels for family in families.values() for labels in family.labelled()]
    return {labels[key] for labels in found for key in ("model", "model_name") if key in labels} - {""}


def test_threads_do_not_grow_with_the_models(serve: Serve, entries: list[dict[str, Any]]) -> None:
    server = serve().ready()
    assert reload(server, *entries[:1]) == ("0", "")
    server.lookup({"user": [1]}, model="m0")
    few = num_threads(server)
    assert reload(server, *entries) == ("0", "")
    for entry in entries:
        assert server.lookup({"user": [1]}, model=entry["name"]) == {"user": [[1, 10]]}
    # The threads of the loads end when they have had no load for some seconds.
    until(lambda: num_threads(server) <= few + 5)
    # All folders are still polled.
    for entry in (entries[0], entries[-1]):
        add_version(Path(entry["base_path"]), 2, scale=2)
        until(lambda name=entry["name"]: server.lookup({"user": [1]}, model=name) == {"user": [[2, 20]]})


def test_the_metrics_of_a_removed_model_end_after_some_scrapes(serve: Serve, entries: list[dict[str, Any]]) -> None:
    server = serve().ready()
    assert reload(server, *entries[:10]) == ("0", "")
    for entry in entries[:10]:
        name = entry["name"]
        server.lookup({"user": [1]}, model=name)
        server.predict_grpc({"user": np.array([1])}, "lookup", model=name)
        with pytest.raises(grpc.RpcError):
            server.predict_grpc({"user": np.array([-1])}, "lookup", model=name)
        # A large request runs on a pool of threads, so that its wait is counted; a wrong one is counted with its code.
        server.lookup({"user": [1] * 50_000}, model=name)
        assert server.http.post(f"/v1/models/{name}/versions/77:predict", json={"inputs": {}}).status_code == 404
    all_ten = {entry["name"] for entry in entries[:10]}
    assert labelled(server) >= all_ten
    assert reload(server, *entries[:1]) == ("0", "")
    assert labelled(server) >= all_ten, "Prometheus gets the last counts"
    for _ in range(SHOWN_SCRAPES + 1):
        found = labelled(server)
    assert found == {"m0"}
    count = ":tensorflow:serving:request_count"
    before = read_exposition(server.http.get("/monitoring/prometheus/metrics").text)[count]
    # A model that comes back counts from zero; the other model's counts go on.
    assert reload(server, *entries[:2]) == ("0", "")
    server.lookup({"user": [1]}, model="m1")
    after = read_exposition(server.http.get("/monitoring/prometheus/metrics").text)[count]
    assert after.value(model_name="m1", status="OK") == 1
    assert after.value(model_name="m0", status="OK") == before.value(model_name="m0", status="OK") == 3


def test_a_saved_model_of_millions_of_empty_messages_is_refused_and_others_load(
    serve: Serve, entries: list[dict[str, Any]], tmp_path: Path
) -> None:
    # A message takes two bytes, and was 88 bytes when it was parsed: 120 MB took 5.3 GB.
    large = tmp_path / "large"
    (large / "1").mkdir(parents=True)
    (large / "1" / "saved_model.pb").write_bytes(b"\x12\0" * 60_000_000)
    server = serve(version_settle_s=0, max_num_load_retries=0).ready()
    before = peak_memory(server)
    code, text = reload(server, entries[0], {"name": "large", "base_path": str(large)})
    assert code != "0", text
    failed = server.wait_for_log("load failed", model="large")
    assert "has 120000000 bytes with more than 4000000 protobuf fields" in failed["reason"]
    assert reload(server, *entries[:3]) == ("0", "")
    assert server.lookup({"user": [1]}, model="m2") == {"user": [[1, 10]]}
    # The file itself, in memory once, and what other loads take.
    assert peak_memory(server) - before < 300 << 20
