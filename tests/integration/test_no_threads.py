"""The server while the system starts no further thread, as in a container whose limit on processes is reached."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import grpc
import numpy as np
import pytest

from tests.conformance.wires import PREDICT, predict_request
from tests.integration.conftest import add_version
from tests.integration.control_groups import ControlGroup, thread_group
from tests.integration.limited import lookup
from tests.integration.process import PATIENCE_S, ROOT, ServerProcess, environment, skip_without_core, until

pytestmark = pytest.mark.slow
# More threads than any server of this file has.
_PLENTY = 500
# Seconds after which the threads that scan folders and load versions have ended, because they had no work.
_IDLE_S = 11.0
_STATUS = "/tensorflow.serving.ModelService/GetModelStatus"
_STATUS_REQUEST = b"\n\x09\n\x07default"


# gRPC and the core's runtime got no thread where the limit was 8 or 20, and 12.
@pytest.mark.parametrize("limit", [8, 12, 20])
def test_a_server_that_gets_too_few_threads_does_not_start(base: Path, limit: int) -> None:
    skip_without_core({})
    with thread_group(limit) as group:
        joining = ["sh", "-c", f'echo $$ > {group.folder}/cgroup.procs && exec "$@"', "sh"]
        command = [sys.executable, "-m", "service", f"--model_base_path={base}", "--host=127.0.0.1", "--port=auto"]
        command += ["--rest_api_port=auto", "--graph_signatures=off"]
        ended = subprocess.run(
            [*joining, *command], cwd=ROOT, env=environment(), timeout=PATIENCE_S, capture_output=True, check=False
        )
    assert ended.returncode == 2
    assert b"raise the limit on processes" in ended.stderr


def _squeezed(server: ServerProcess, group: ControlGroup) -> None:
    """Lets the server start no further thread."""
    group.add(server.pid)
    group.limit(group.used)


def _code(server: ServerProcess, method: str, request: bytes) -> str:
    """Calls a method over a new connection; returns the code of its answer."""
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        try:
            channel.unary_unary(method)(request, timeout=PATIENCE_S)
        except grpc.RpcError as error:
            return str(error.code().name)
        return "OK"


def _at_once(call: Callable[[], object], count: int) -> None:
    threads = [threading.Thread(target=call) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)


def test_without_a_further_thread_requests_are_answered_and_changes_wait(base: Path, tmp_path: Path) -> None:
    settings = {"graph_signatures": "off", "admin_port": "auto", "delta_journal_dir": tmp_path / "journal"}
    with (
        thread_group(_PLENTY) as group,
        ServerProcess(model_base_path=base, file_system_poll_wait_seconds=0.05, **settings) as server,
    ):
        server.ready()
        time.sleep(_IDLE_S)
        _squeezed(server, group)
        add_version(base, 2)
        server.signal(signal.SIGHUP)
        for path in ("/v1/models/default", "/v1/statusz", "/metrics", "/readyz"):
            assert server.http.get(path).status_code == 200, path
        searched = server.http.post("/v1/models/default/tables/user:neighbors", json={"ids": [1], "k": 1})
        assert searched.status_code == 200
        _at_once(lambda: _code(server, _STATUS, _STATUS_REQUEST), 20)
        upserts = f"http://127.0.0.1:{server.admin_port}/v1/models/default/versions/1/tables/user:upsert"
        assert server.http.post(upserts, json={"ids": [1], "rows": [[7, 7]]}).status_code == 200
        assert lookup(server.http, [2]) == [[2, 20]]
        group.limit(_PLENTY)
        until(lambda: '"2"' in server.http.get("/v1/models/default").text)
        assert _code(server, _STATUS, _STATUS_REQUEST) == "OK"
        group.limit(group.used)
        server.signal(signal.SIGTERM)
        assert server.exit_code() == 0


@pytest.mark.tf
def test_a_graph_for_which_there_is_no_thread_is_tried_again(tower_version: Path, tmp_path: Path) -> None:
    base = tmp_path / "towers"
    shutil.copytree(tower_version, base / "1")
    settings = {"file_system_poll_wait_seconds": 0.05, "load_retry_interval_micros": 0}
    with thread_group(_PLENTY) as group, ServerProcess(model_base_path=base, **settings) as server:
        server.ready()

        def predict() -> str:
            ids, floats = np.array([0, 1], np.int64), np.array([1], np.float32)
            inputs = {"user": ids[1:], "tags__values": ids[:1], "tags__row_splits": ids, "extra": floats}
            # The output filter, field 3, makes a part of the graph that was not run before.
            request = predict_request("default", inputs, "with_extra") + b"\x1a\x05score"
            return _code(server, PREDICT, request)

        group.add(server.pid)
        # Enough threads for a load, and too few for TensorFlow.
        group.limit(group.used + 3)
        assert predict() == "UNAVAILABLE"
        shutil.copytree(tower_version, tmp_path / "2")
        os.rename(tmp_path / "2", base / "2")
        assert "further threads" in server.wait_for_log("load failed", version=2)["reason"]
        group.limit(_PLENTY)
        until(lambda: server.http.get("/v2/models/default/versions/2/ready").status_code == 200)
        assert predict() == "OK"
