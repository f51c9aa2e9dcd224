"""A log, a disk, a server, a name or a client that never answers stops no other request, health check or shutdown.

Each test blocks one of them while a real server runs, and then sends it requests that do not need the blocked one. A
request that waits for it would fail by its client's timeout, and a shutdown by the wait for the process's end. The node
of a table is blocked in test_remote_faults.py.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import threading
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.exposition import read_exposition
from tests.integration.conftest import Serve, add_version
from tests.integration.limited import limited, lookup
from tests.integration.process import PATIENCE_S, ServerProcess, until, write_models
from tests.integration.silent import full_pipe, needs_mounts, silent_disk, silent_names, silent_server
from tests.integration.test_hot_rows import config

pytestmark = pytest.mark.slow
ROW_1 = [[1, 10]]
TIMES = 50


def is_served(http: httpx.Client, model: str = "default") -> None:
    """Checks that lookups, refusals, health, status and metrics are answered."""
    for _ in range(TIMES):
        body = {"features": {"user": [1]}}
        answer = http.post(f"/v1/models/{model}:lookup", json=body)
        assert answer.json() == {"embeddings": {"user": ROW_1}}
        body = {"features": {"user": [77]}}
        assert http.post(f"/v1/models/{model}:lookup", json=body).status_code == 400
        assert http.get("/readyz").status_code == 200
    assert http.get(f"/v1/models/{model}").status_code == 200
    assert http.get("/metrics").status_code == 200
    assert http.get("/v1/statusz").status_code == 200


def ends(process: subprocess.Popen[Any] | ServerProcess) -> None:
    """Checks that SIGTERM ends a server in a regular way."""
    if isinstance(process, ServerProcess):
        process.signal(signal.SIGTERM)
        assert process.exit_code() == 0
    else:
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0


@pytest.mark.parametrize("log_format", ["json", "text"])
def test_a_log_that_nobody_reads(base: Path, log_format: str) -> None:
    with (
        full_pipe() as (reading, writing),
        limited(base, stdout=writing, stderr=writing, log_format=log_format) as (process, http),
    ):
        # The log lines of so many refused requests are longer than the pipe.
        for _ in range(10):
            is_served(http)
        add_version(base, 2, scale=2)
        until(lambda: lookup(http, [1]) == [[2, 20]])
        process.send_signal(signal.SIGUSR1)
        assert lookup(http, [1]) == [[2, 20]]
        ends(process)


@pytest.mark.parametrize("number", [signal.SIGABRT, signal.SIGSEGV])
def test_a_crash_has_last_words_and_waits_for_nobody(serve: Serve, base: Path, number: signal.Signals) -> None:
    server = serve().ready()
    server.signal(number)
    assert server.exit_code() == -number
    assert "Fatal Python error" in server.text() and "Thread 0x" in server.text()
    with full_pipe() as (_, writing), limited(base, stdout=writing, stderr=writing) as (process, http):
        is_served(http)
        process.send_signal(number)
        assert process.wait(PATIENCE_S) == -number


def test_a_log_that_is_read_again_has_every_line_that_was_not_dropped(base: Path) -> None:
    with full_pipe() as (reading, writing), limited(base, stderr=writing, log_format="json") as (process, http):
        is_served(http)
        os.set_blocking(reading, False)
        text = b""

        def is_told() -> bool:
            nonlocal text
            try:
                text += os.read(reading, 1 << 20)
            except BlockingIOError:
                return False
            return text.endswith(b"\n") and b'"version state"' in text

        until(is_told)
        lines = [json.loads(line) for line in text.splitlines() if not line.startswith(b"xxx")]
        assert lines[0]["message"] == "settings"
        assert not [line for line in lines if "left_out" in line]
        dropped = read_exposition(http.get("/metrics").text)["embedding_server_log_lines_dropped_total"]
        assert dropped.value(reason="output") == 0
        ends(process)


@needs_mounts
def test_the_disk_of_the_request_log(serve: Serve, base: Path, tmp_path: Path) -> None:
    models = config(tmp_path, base)
    server = serve(f"--model_config_file={models}", model_base_path="", drain_timeout_s=2)
    server.ready()
    with silent_disk(tmp_path / "log"):
        is_served(server.http, "toy")
        # A list of models without the log ends the log, and waits for no record of it.
        models.write_text(models.read_text().partition("logging_config")[0] + "} }")
        server.signal(signal.SIGHUP)
        server.wait_for_log("model config applied")
        is_served(server.http, "toy")
        ends(server)


@needs_mounts
def test_the_disk_of_the_journal(serve: Serve, tmp_path: Path) -> None:
    journals = tmp_path / "journals"
    journals.mkdir()
    flags: dict[str, object] = {"delta_journal_dir": journals, "delta_poll_wait_seconds": 0.05}
    server = serve(admin_port="auto", drain_timeout_s=2, **flags).ready()
    url = f"http://127.0.0.1:{server.admin_port}/v1/models/default/tables/user:upsert"

    answers = []

    def upsert() -> None:
        # The shutdown cuts the request, or answers 500.
        with suppress(httpx.TransportError):
            answers.append(httpx.post(url, json={"ids": [2], "rows": [[5, 5]]}, timeout=PATIENCE_S).status_code)

    with silent_disk(journals):
        # More upserts than there are threads for them.
        threads = [threading.Thread(target=upsert, daemon=True) for _ in range(8)]
        for thread in threads:
            thread.start()
        is_served(server.http)
        with httpx.Client(base_url=f"http://127.0.0.1:{server.admin_port}", timeout=PATIENCE_S) as admin:
            assert admin.get("/metrics").status_code == 200
        assert answers == []
        ends(server)
    for thread in threads:
        thread.join(PATIENCE_S)
    assert 200 not in answers


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_the_collector_of_traces(serve: Serve, monkeypatch: pytest.MonkeyPatch, protocol: str) -> None:
    with silent_server() as port:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
        server = serve("--tracing=otlp", drain_timeout_s=2).ready()
        is_served(server.http)
        ends(server)


def two_models(folder: Path, local: Path, place: str) -> str:
    """Returns the flag with a list of two models: `default`, which is local, and one in a store."""
    return f"--model_config_file={write_models(folder, {'default': local, 'stored': place})}"


def test_the_object_store(serve: Serve, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with silent_server() as port:
        for name, value in (
            ("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}"),
            ("AWS_ALLOW_HTTP", "true"),
            ("AWS_ACCESS_KEY_ID", "key"),
            ("AWS_SECRET_ACCESS_KEY", "secret"),
            ("AWS_REGION", "us-east-1"),
        ):
            monkeypatch.setenv(name, value)
        flags: dict[str, object] = {"store_cache_dir": tmp_path / "cache", "first_loads_timeout_s": 0.5}
        given = two_models(tmp_path, base, "s3://models/toy")
        server = serve(given, model_base_path="", drain_timeout_s=2, **flags).ready()
        is_served(server.http)
        ends(server)


@needs_mounts
@pytest.mark.parametrize("what", ["store", "collector"])
def test_names(base: Path, tmp_path: Path, what: str) -> None:
    resolver = tmp_path / "resolv.conf"
    flags = {"model_base_path": str(base)}
    variables = {"AWS_REGION": "us-east-1", "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
    more = []
    if what == "store":
        flags = {"store_cache_dir": str(tmp_path / "cache"), "first_loads_timeout_s": "0.5"}
        more = [two_models(tmp_path, base, "s3://models/toy")]
        variables["AWS_ENDPOINT_URL"] = "https://store.example"
    else:
        more = ["--tracing=otlp"]
        variables |= {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector.example:4317", "OTEL_BSP_SCHEDULE_DELAY": "20"}
    mount = f'mount --bind {resolver} /etc/resolv.conf && exec "$@"'
    prefix = ["unshare", "--mount", "sh", "-c", mount, "sh"]
    variables |= {"no_proxy": "*", "HTTPS_PROXY": "", "HTTP_PROXY": ""}
    with (
        silent_names(resolver),
        limited(prefix=prefix, variables=variables, flags=more, drain_timeout_s=2, **flags) as (process, http),
    ):
        is_served(http)
        ends(process)


def test_callers_of_the_admin_port(serve: Serve) -> None:
    server = serve(admin_port="auto", drain_timeout_s=2).ready()
    assert server.admin_port is not None
    with ExitStack() as stack:
        for text in (
            b"POST /v1/config:reload HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nmodel",
            b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 500,
            b"GET /metr",
        ):
            for _ in range(10):
                client = stack.enter_context(socket.create_connection(("127.0.0.1", server.admin_port)))
                client.setblocking(False)
                client.send(text)
        is_served(server.http)
        with httpx.Client(base_url=f"http://127.0.0.1:{server.admin_port}", timeout=PATIENCE_S) as admin:
            assert admin.get("/metrics").status_code == 200
        ends(server)
