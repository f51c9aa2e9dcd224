"""Starts server processes, with clients that call them over real sockets."""

from __future__ import annotations

import atexit
import importlib.util
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from tests.conformance.wires import PREDICT, predict_outputs, predict_request
from tests.fork_server import ForkedProcess, ForkServer, fork_server

ROOT = Path(__file__).parents[2]
# Longest wait in seconds: enough for a slow machine to import TensorFlow. A passing test never waits so long.
PATIENCE_S = 120
# Pause of clients that send requests for as long as a test runs, so that the processors are free for other tests too.
PACE_S = 0.005
HAS_CORE = importlib.util.find_spec("service._native") is not None


def environment(**more: str) -> dict[str, str]:
    """Returns this process's environment without the server's variables."""
    return {name: value for name, value in os.environ.items() if not name.startswith("EMB_")} | more


def skip_without_core(settings: Mapping[str, object]) -> None:
    """Skips a test that starts a server where the core is not built, unless the server is the reference."""
    if not HAS_CORE and settings.get("data_plane") != "reference":
        pytest.skip("the core is not built here: see CONTRIBUTING.md")


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Stops a process with SIGSTOP and waits until none of its threads runs, which takes a moment on other cores."""
    os.kill(pid, signal.SIGSTOP)
    try:
        threads = [Path(f"/proc/{pid}/task", thread, "stat") for thread in os.listdir(f"/proc/{pid}/task")]
        until(lambda: all(stat.read_text().rpartition(")")[2].split()[0] == "T" for stat in threads))
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


# Modules that each server imports at its start, which is most of the start's processor time.
_IMPORTED = ("service.process.cli", "service.process.app", "service.process.control_servers", "uvloop")
_IMPORTED += ("service.process.native_servers",) if HAS_CORE else ()
# Beginnings of the names of variables that an interpreter and its libraries read when they start.
_AT_START = ("PYTHON", "LD_", "MALLOC_", "OPENBLAS_", "TF_")


@cache
def _forks() -> ForkServer:
    """Starts the process of which this one's servers are forks."""
    stack = ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(fork_server(_IMPORTED, random.randrange(1 << 32)))


def _at_start(variables: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in variables.items() if name.startswith(_AT_START)}


_USUAL = _at_start(os.environ)


class ServerProcess:
    """A process of `python -m service`; the `with` block always stops it.

    The process is forked from one that has imported the server's modules, which saves four fifths of the start. It is a
    new interpreter where a test has set variables that an interpreter reads when it starts.

    records: the parsed lines of its log.
    """

    def __init__(self, *flags: str, **settings: object) -> None:
        skip_without_core(settings)
        given = {"host": "127.0.0.1", "port": "auto", "rest_api_port": "auto", "log_format": "json"} | settings
        arguments = ["service", *(f"--{name}={value}" for name, value in given.items()), *flags]
        variables = environment()
        reading, writing = os.pipe()
        self._process: subprocess.Popen[bytes] | ForkedProcess
        if _at_start(variables) != _USUAL:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *arguments], cwd=ROOT, env=variables, stderr=writing, stdin=subprocess.DEVNULL
            )
        else:
            self._process = _forks().start(*arguments, environment=variables, output=writing)
        os.close(writing)
        self._log = open(reading, encoding="utf-8")
        self.pid = self._process.pid
        self.records: list[dict[str, Any]] = []
        self._news = threading.Condition()
        self._is_over = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self._log:
            try:
                record = json.loads(line)
            except ValueError:
                record = {"message": line.rstrip(), "level": "raw"}
            with self._news:
                self.records.append(record)
                self._news.notify_all()
        with self._news:
            self._is_over = True
            self._news.notify_all()

    def wait_for_log(self, message: str, **fields: object) -> dict[str, Any]:
        """Waits for a log record with this message and these fields, and returns the first one."""

        def find() -> dict[str, Any] | None:
            for record in self.records:
                if record["message"] == message and fields.items() <= record.items():
                    return record
            return None

        with self._news:
            self._news.wait_for(lambda: find() or self._is_over, PATIENCE_S)
            found = find()
        assert found, f"no {message!r} {fields} in {self.records}"
        return found

    def answering(self) -> ServerProcess:
        """Waits until the server has logged its ports; returns the server. The log leaves out a port that is off."""
        listening = self.wait_for_log("listening")
        self.http_port, self.grpc_port = listening.get("http_port"), listening.get("grpc_port")
        self.admin_port: int | None = listening.get("admin_port")
        # No certificate is checked on this plaintext port; by default, each client would read some hundred authorities.
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{self.http_port}", timeout=PATIENCE_S, verify=False)
        self.channel = grpc.insecure_channel(f"127.0.0.1:{self.grpc_port}")
        return self

    def ready(self) -> ServerProcess:
        """Waits until the server answers requests to its models; returns the server."""
        self.answering().wait_for_log("loaded")
        until(lambda: self.http.get("/readyz").status_code == 200)
        return self

    def signal(self, number: int) -> None:
        """Sends a signal to the main process of the server."""
        self._process.send_signal(number)

    def exit_code(self) -> int:
        """Waits for the end of the process and returns its exit code."""
        code = self._process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        return code

    def text(self) -> str:
        """Returns all log messages and their reasons as one text."""
        return "\n".join(f"{record['message']} {record.get('reason', '')}" for record in self.records)

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        for name in ("http", "channel"):
            if hasattr(self, name):
                getattr(self, name).close()
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        self._log.close()

    def lookup(self, features: Mapping[str, Any], weights: Mapping[str, Any] | None = None, **more: Any) -> Any:
        """Posts a lookup and returns the embeddings; fails on an error answer."""
        response = self.http.post(
            f"/v1/models/{more.pop('model', 'default')}:lookup",
            json={"features": features} | ({"weights": weights} if weights else {}) | more,
        )
        assert response.status_code == 200, response.text
        return response.json()["embeddings"]

    def tells(self, features: Mapping[str, Any], embeddings: Mapping[str, Any], *, model: str = "default") -> bool:
        """Says whether a lookup returns these embeddings; False also for status 503, as between two versions."""
        response = self.http.post(f"/v1/models/{model}:lookup", json={"features": features})
        assert response.status_code in (200, 503), response.text
        return bool(response.status_code == 200 and response.json()["embeddings"] == embeddings)

    def predict_grpc(
        self, inputs: Mapping[str, Any], signature: str, *, model: str = "default", timeout_s: float = PATIENCE_S
    ) -> dict[str, Any]:
        """Calls Predict and returns the float outputs."""
        return predict_grpc(self.channel, inputs, signature, model=model, timeout_s=timeout_s)


def write_models(folder: Path, models: Mapping[str, object], *, settings: str = "", more: str = "") -> Path:
    """Writes models.config, which lists models by name with their base paths, into a folder; returns the file.

    Args:
      settings: further fields of each entry. more: further entries.
    """
    form = 'config {{ name: "{}" base_path: "{}" model_platform: "tensorflow" {} }}'
    listed = " ".join(form.format(name, base, settings) for name, base in models.items())
    (folder / "models.config").write_text(f"model_config_list {{ {listed} {more} }}")
    return folder / "models.config"


@contextmanager
def server_of(
    models: Mapping[str, Path], folder: Path, *flags: str, more: str = "", **settings: object
) -> Iterator[ServerProcess]:
    """Starts a server of all versions of some models, and waits until each model answers.

    Args:
      models: model name -> base path. folder: gets the list of models. more: further entries of that list.
    """
    file = write_models(folder, models, settings="model_version_policy { all {} }", more=more)
    with ServerProcess(*flags, model_config_file=file, **settings) as server:
        server.answering()
        for name, base in models.items():
            for version in os.listdir(base):
                until(partial(_is_available, server, name, int(version)))
        yield server


def _is_available(server: ServerProcess, model: str, version: int) -> bool:
    return server.http.get(f"/v2/models/{model}/versions/{version}/ready").status_code == 200


def predict_grpc(
    channel: grpc.Channel,
    inputs: Mapping[str, Any],
    signature: str,
    *,
    model: str = "default",
    timeout_s: float = PATIENCE_S,
    metadata: Sequence[tuple[str, str]] = (),
) -> dict[str, Any]:
    """Calls Predict over a channel and returns the float outputs."""
    request = predict_request(model, inputs, signature)
    return predict_outputs(channel.unary_unary(PREDICT)(request, timeout=timeout_s, metadata=metadata))


def unused_ports(count: int) -> list[int]:
    """Returns free ports outside the range that the system assigns to connections and to port 0."""
    lowest_given = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    # The containers of .ci/containers, which run beside the tests, have ports below 18,000.
    lowest = 18_000 if lowest_given > 28_000 else 10_000
    ports: list[int] = []
    while len(ports) < count:
        port = random.randrange(lowest, lowest_given)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        if port not in ports:
            ports.append(port)
    return ports


def until(is_so: Any) -> None:
    """Waits until a callable returns true; fails after PATIENCE_S.

    The pauses grow with the wait: most looks are requests, which would take time from what is waited for.
    """
    start_s = time.monotonic()
    while not is_so():
        waited_s = time.monotonic() - start_s
        assert waited_s < PATIENCE_S, "it never came"
        time.sleep(min(max(waited_s / 10, 0.01), 0.1))
