"""Loads that hang, fail, arrive in pieces or are limited do not stop other versions, nor the end of the server."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.artifact.protos import message_class
from tests.conformance.wires import fill_tensor
from tests.integration.conftest import Serve, add_version
from tests.integration.process import ServerProcess, until, write_models
from tests.integration.test_models import ask, reload
from tests.toy_model import rewrite_manifest, write_toy_model
from tests.unit.artifact.test_encodings import record

WARMUP = Path("assets.extra/tf_serving_warmup_requests")
AVAILABLE = ("AVAILABLE", "OK")
LOADING = ("LOADING", "OK")


class Hanging:
    """A version whose load waits until it is let go, for 45 s at most: opening its recorded requests does not return.

    Another process has a lease on that file, so Linux blocks any process that opens it, like a mount without a server.
    """

    def __init__(self, folder: Path) -> None:
        self.base = folder.parent
        draft = folder.parent.parent / "hanging"
        write_toy_model(draft)
        self._file = os.open(draft / WARMUP, os.O_RDWR | os.O_CREAT)
        fcntl.fcntl(self._file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        folder.parent.mkdir(exist_ok=True)
        os.rename(draft, folder)

    def let_go(self) -> None:
        """Lets the hanging load, and all later ones, open the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


@pytest.fixture
def hanging(tmp_path: Path) -> Iterator[Hanging]:
    """Writes version 1 of a model in folder "slow", whose load hangs."""
    # The fixture holds a file lease, and Linux sends its holder SIGIO for each blocked open; by default SIGIO would end
    # the process.
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)
    hanging = Hanging(tmp_path / "slow" / "1")
    yield hanging
    hanging.let_go()
    signal.signal(signal.SIGIO, before)


def status(server: ServerProcess, name: str) -> dict[int, tuple[str, str]]:
    """Returns the state and error code of each version of a model."""
    answer = server.http.get(f"/v1/models/{name}").json()
    return {int(s["version"]): (s["state"], s["status"]["error_code"]) for s in answer.get("model_version_status", [])}


def entry(name: str, base: Path) -> dict[str, Any]:
    """Returns a model's entry in a reload."""
    return {"name": name, "base_path": str(base)}


def test_a_load_that_hangs_holds_up_no_other_model(serve: Serve, base: Path, hanging: Hanging, tmp_path: Path) -> None:
    config = write_models(tmp_path, {"slow": hanging.base, "default": base})
    server = serve(model_base_path="", model_config_file=config, first_loads_timeout_s=0.5).answering()
    until(lambda: ask(server, "default") == [1, 10])
    until(lambda: status(server, "slow") == {1: LOADING})
    add_version(base, 2, scale=2)
    until(lambda: ask(server, "default") == [2, 20])
    assert ask(server, "slow") == (503, 'Model "slow" is not ready: version 1 is LOADING')
    ready = server.http.get("/readyz")
    assert (ready.status_code, ready.json()["problems"]) == (503, {"slow": "version 1 is LOADING"})
    hanging.let_go()
    until(lambda: ask(server, "slow") == [1, 10])
    assert server.http.get("/readyz").status_code == 200


@pytest.mark.parametrize("fault", ["absent", "empty", "broken"])
def test_the_ports_do_not_wait_for_a_model_that_has_failed(serve: Serve, base: Path, fault: str) -> None:
    if fault == "broken":
        (base / "1" / "saved_model.pb").write_bytes(b"none")
        rewrite_manifest(base / "1", lambda manifest: manifest["files"].update({"saved_model.pb": 4}))
    else:
        shutil.rmtree(base if fault == "absent" else base / "1")
    server = serve(first_loads_timeout_s=3600).answering()
    assert ask(server, "default")[0] == 503


def test_a_reload_that_waits_for_a_hanging_load_ends_with_its_deadline(
    serve: Serve, base: Path, hanging: Hanging
) -> None:
    server = serve(drain_timeout_s=1).ready()
    both = [entry("default", base), entry("slow", hanging.base)]
    assert reload(server, *both, timeout=1)[0] == "DEADLINE_EXCEEDED"
    assert ask(server, "default") == [1, 10]
    assert ask(server, "slow") == (404, "Servable not found for request: Latest(slow)")
    hanging.let_go()
    assert reload(server, *both) == ("0", "")
    assert ask(server, "slow") == [1, 10]


def test_loads_at_once_can_be_limited(serve: Serve, base: Path, hanging: Hanging, tmp_path: Path) -> None:
    server = serve(num_load_threads=1).ready()
    models = [entry("default", base), entry("slow", hanging.base)]
    assert reload(server, *models, timeout=1)[0] == "DEADLINE_EXCEEDED", "and the load goes on"
    add_version(base, 2, scale=2)
    until(lambda: status(server, "default") == {2: ("START", "OK"), 1: AVAILABLE})
    assert ask(server, "default") == [1, 10]
    hanging.let_go()
    until(lambda: ask(server, "default") == [2, 20])


def test_the_end_waits_for_a_hanging_load_no_longer_than_for_requests(
    serve: Serve, base: Path, hanging: Hanging
) -> None:
    server = serve(drain_timeout_s=1).ready()
    reload(server, entry("default", base), entry("slow", hanging.base), timeout=1)
    server.signal(signal.SIGTERM)
    assert server.exit_code() == 0
    record = server.records[-1]
    assert (record["message"], record["models"]) == ("not waiting for models that still load", ["slow"])


def test_a_load_that_does_not_come_back_is_given_up_and_tried_again_when_it_has(
    serve: Serve, base: Path, hanging: Hanging
) -> None:
    server = serve(load_timeout_s=0.5, load_retry_interval_micros=0, num_load_threads=1).ready()
    both = [entry("default", base), entry("slow", hanging.base)]
    code, message = reload(server, *both)
    assert (code, "the server's log has the reason" in message) == ("UNKNOWN", True), message
    given_up = server.wait_for_log("load failed", model="slow")
    assert "did not load within 0.5 s (--load_timeout_s)" in given_up["reason"]
    assert str(hanging.base / "1") in given_up["reason"]
    # The load that was given up no longer takes a slot, so version 2 of the other model is loaded.
    add_version(base, 2, scale=2)
    until(lambda: ask(server, "default") == [2, 20])
    hanging.let_go()
    assert reload(server, *both) == ("0", "")
    assert ask(server, "slow") == [1, 10]


def test_a_load_that_was_given_up_holds_up_no_later_version_and_no_end(
    serve: Serve, base: Path, hanging: Hanging
) -> None:
    server = serve(model_base_path=hanging.base, load_timeout_s=0.5, max_num_load_retries=1000, drain_timeout_s=3600)
    server.answering()
    until(lambda: status(server, "default") == {1: ("END", "DEADLINE_EXCEEDED")})
    assert "version 1 is END" in server.http.get("/readyz").json()["problems"]["default"]
    add_version(hanging.base, 2, scale=2)
    until(lambda: ask(server, "default") == [2, 20])
    # A load that hangs is not tried again, so only one thread hangs.
    failed = [record["version"] for record in server.records if record["message"] == "load failed"]
    assert failed.count(1) == 1
    server.signal(signal.SIGTERM)
    assert server.exit_code() == 0
    assert server.records[-1]["models"] == ["default"]


@pytest.mark.tf
def test_a_graph_that_waits_for_ever_in_a_warm_up_holds_up_no_later_version_and_no_end(
    serve: Serve, tmp_path: Path
) -> None:
    import tensorflow as tf

    # The named pipe is outside the version's folder, because the server refuses a version whose folder has a pipe.
    os.mkfifo(tmp_path / "pipe")

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, "x")])
    def waiting(x: Any) -> dict[str, Any]:
        return {"y": x + tf.strings.to_number(tf.io.read_file(str(tmp_path / "pipe")))}

    version = tmp_path / "graphs" / "1"
    tf.saved_model.save(tf.Module(), str(version), signatures={"serving_default": waiting})
    log = message_class("tensorflow.serving.PredictionLog")()
    log.predict_log.request.model_spec.signature_name = "serving_default"
    fill_tensor(log.predict_log.request.inputs["x"], np.zeros(1, np.float32))
    (version / "assets.extra").mkdir()
    (version / WARMUP).write_bytes(record(log.SerializeToString()))
    server = serve(
        model_base_path=tmp_path / "graphs",
        graph_signatures="auto",
        load_timeout_s=10,
        drain_timeout_s=3600,
        version_settle_s=0,
    ).answering()
    until(lambda: status(server, "default") == {1: ("END", "DEADLINE_EXCEEDED")})
    add_version(tmp_path / "graphs", 2)
    until(lambda: ask(server, "default") == [1, 10])
    server.signal(signal.SIGTERM)
    assert server.exit_code() == 0
    assert server.records[-1]["models"] == ["default"]


def test_a_second_signal_does_not_wait_for_it_at_all(serve: Serve, base: Path, hanging: Hanging) -> None:
    server = serve(drain_timeout_s=3600).ready()
    reload(server, entry("default", base), entry("slow", hanging.base), timeout=1)
    server.signal(signal.SIGTERM)
    server.wait_for_log("stopped")
    server.signal(signal.SIGTERM)
    assert server.exit_code() == 0


def test_a_reload_does_not_hold_up_the_end(serve: Serve, base: Path, tmp_path: Path) -> None:
    # A version that is copied only in part: the reload would wait for the rest of it until its timeout.
    write_toy_model(tmp_path / "other" / "1")
    (tmp_path / "other" / "1" / "saved_model.pb").unlink()
    server = serve(drain_timeout_s=3600, version_settle_s=3600).ready()
    answers: list[tuple[str, str]] = []
    models = (entry("default", base), entry("other", tmp_path / "other"))
    reloading = threading.Thread(target=lambda: answers.append(reload(server, *models)))
    reloading.start()
    until(lambda: status(server, "other") == {1: ("START", "OK")})
    server.signal(signal.SIGTERM)
    reloading.join(60)
    assert answers == [("UNAVAILABLE", "The server is shutting down.")]
    assert server.exit_code() == 0
    assert server.records[-1]["message"] == "stopped"


def test_a_version_that_fails_is_tried_as_often_as_the_flags_say_and_at_once_when_it_is_mended(
    serve: Serve, base: Path
) -> None:
    server = serve(max_num_load_retries=2, load_retry_interval_micros=100_000).ready()
    broken = write_toy_model(base.parent / "broken", scale=2)
    whole = (broken / "saved_model.pb").read_bytes()
    (broken / "saved_model.pb").write_bytes(b"\xff" * len(whole))
    os.rename(broken, base / "2")
    server.wait_for_log("load failed", attempt=3)
    # More than four retry intervals, so that a fourth attempt would have been logged.
    time.sleep(0.5)
    attempts = [(r["attempt"], r.get("retry_in_s")) for r in server.records if r["message"] == "load failed"]
    assert attempts == [(1, 0.1), (2, 0.1), (3, None)]
    assert status(server, "default") == {2: ("END", "FAILED_PRECONDITION"), 1: AVAILABLE}
    assert ask(server, "default") == [1, 10]
    (base / "2" / "saved_model.pb").write_bytes(whole)
    until(lambda: ask(server, "default") == [2, 20])


def test_a_negative_interval_waits_for_nothing(serve: Serve, base: Path) -> None:
    server = serve(max_num_load_retries=3, load_retry_interval_micros=-1, file_system_poll_wait_seconds=0).ready()
    (base / "2").mkdir()
    assert reload(server, entry("default", base)) == ("0", "")
    # The server retries the load at once: it does not wait for a poll of the folder, and polls are off.
    server.wait_for_log("load failed", attempt=4)
    assert ask(server, "default") == [1, 10]


def test_a_copy_that_takes_its_time_is_loaded_when_the_last_file_has_come(serve: Serve, base: Path) -> None:
    server = serve(version_settle_s=3600, max_num_load_retries=0).ready()
    incoming = write_toy_model(base.parent / "incoming", scale=2)

    def copy(source: str, target: str) -> None:
        data = Path(source).read_bytes()
        with open(target, "wb") as file:
            for half in (data[: len(data) // 2], data[len(data) // 2 :]):
                file.write(half)
                file.flush()
                time.sleep(0.07)

    shutil.copytree(incoming, base / "2", copy_function=copy)
    until(lambda: ask(server, "default") == [2, 20])
    assert not [record for record in server.records if record["level"] in ("error", "warning")]


def test_a_model_may_come_after_the_start_and_go_with_its_last_version(serve: Serve, tmp_path: Path) -> None:
    late = tmp_path / "late"
    server = serve(model_base_path=late).answering()
    assert server.http.get("/readyz").status_code == 503
    assert server.http.get("/healthz").status_code == 200
    late.mkdir()
    add_version(late, 3, scale=3)
    until(lambda: ask(server, "default") == [3, 30])
    assert server.http.get("/readyz").status_code == 200
    # A model folder that vanishes, as a mount that fails, takes no version out of service.
    os.rename(late, tmp_path / "elsewhere")
    time.sleep(0.3)
    assert ask(server, "default") == [3, 30]
    os.rename(tmp_path / "elsewhere", late)
    shutil.rmtree(late / "3")
    until(lambda: status(server, "default") == {3: ("END", "OK")})
    assert server.http.get("/readyz").status_code == 503


def test_recorded_requests_are_replayed_unless_the_flag_says_no(serve: Serve, base: Path) -> None:
    server = serve(max_num_load_retries=0).ready()
    cold = write_toy_model(base.parent / "cold", scale=2)
    (cold / WARMUP).write_bytes(b"no records")
    os.rename(cold, base / "2")
    record = server.wait_for_log("load failed", version=2)
    assert record["reason"] == "truncated record at 0. Please verify your warmup data is in TFRecord format."
    assert ask(server, "default") == [1, 10]
    other = serve("--enable_model_warmup=false", max_num_load_retries=0).ready()
    assert ask(other, "default") == [2, 20]


def test_flags_that_tensorflow_serving_has_and_this_server_not_are_named_or_stop_the_start(serve: Serve) -> None:
    server = serve("--enable_profiler", "--flush_filesystem_caches=false", num_unload_threads=2).ready()
    named = {record["flag"] for record in server.records if record["message"] == "flag has no effect"}
    assert named == {"--enable_profiler", "--num_unload_threads"}
    refused = serve("--use_alts_credentials")
    assert refused.exit_code() == 2
    assert "--use_alts_credentials is not supported: --ssl_config_file sets TLS for gRPC" in refused.text()
