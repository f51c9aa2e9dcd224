"""Starts a server process for load tests; gives its addresses, its resources and the errors that it logged, and TLS."""

from __future__ import annotations

import functools
import http.client
import json
import os
import signal
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadtest.network_hosts import LOOPBACK, Host
from tests.certificates import Authority, ssl_config

ROOT = Path(__file__).parents[1]
# Seconds to wait until the server is ready: enough for a slow machine to import TensorFlow.
_PATIENCE_S = 180
JSON_TYPE: Mapping[str, str] = {"content-type": "application/json"}
# Number of lines kept from the end of a traceback: the place in the code, and the exception.
_LAST_LINES = 3


@dataclass(frozen=True, slots=True)
class Held:
    """The resources of a process: its share of memory (PSS), its private memory, its processor time so far, and others.

    anonymous_mib: memory that is not mapped from files. PSS and private memory vary with other processes that map the
        same files (TensorFlow's libraries are hundreds of MiB), so growth is visible in this number.
    deleted_maps: mapped files that were deleted, such as those of versions that were not unloaded.
    """

    pss_mib: float
    private_mib: float
    anonymous_mib: float
    descriptors: int
    deleted_maps: int
    threads: int
    cpu_s: float

    def __str__(self) -> str:
        return f"{self.pss_mib:.1f} MiB PSS, {self.private_mib:.1f} MiB private, {self.descriptors} descriptors"


class LiveServer:
    """A process of `python -m service`, by default on free ports of this machine; the `with` block always stops it.

    Args:
      flags: flags of the server in addition to those for ports and log.
      root: the folder whose `service` is run; the installed package is, if it has none.
      python: the interpreter that runs the server.
      host: where it runs.

    records: the parsed lines of its log. faults: error that the server logged -> how often; of a text only the end is
    kept, which has the cause.
    """

    def __init__(self, *flags: str, root: Path = ROOT, python: str = sys.executable, host: Host = LOOPBACK) -> None:
        where = [f"--host={host.address}", "--port=auto", "--rest_api_port=auto", "--admin_port=auto"]
        self._host = host
        self._process = subprocess.Popen(
            [*host.prefix, python, "-m", "service", *where, "--log_format=json", *flags],
            cwd=root,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.records: list[dict[str, Any]] = []
        self.faults: Counter[str] = Counter()
        self._scheme = "https" if any(flag.startswith("--rest_api_ssl_config_file=") for flag in flags) else "http"
        self._ports: dict[str, int] = {}
        self._last_line = ""
        self._is_listening = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._last_line = line
            try:
                record = json.loads(line)
            except ValueError:
                # A line that is not JSON is no log record: TensorFlow wrote it, or it is part of a traceback that
                # Python printed.
                if "Error" in line:
                    self.faults[line.rstrip()] += 1
                continue
            self.records.append(record)
            if record["message"] == "listening":
                self._ports = record
                self._is_listening.set()
            elif record["level"] in ("error", "critical"):
                cause = " ".join([record.get("reason", ""), *record.get("traceback", "").split("\n")[-_LAST_LINES:]])
                self.faults[f"{record['message']} {cause}".strip()] += 1
        self._is_listening.set()

    def ready(self) -> LiveServer:
        """Waits until every model answers; raises RuntimeError if the server ends or takes too long."""
        url = f"{self.http}/readyz"
        end_s = time.monotonic() + _PATIENCE_S
        reason = ""
        while self.is_alive and time.monotonic() < end_s:
            try:
                with urllib.request.urlopen(url, timeout=5, context=client_context()):
                    return self
            except urllib.error.HTTPError as error:
                reason = error.read().decode()
            except OSError as error:
                reason = str(error)
            time.sleep(0.05)
        raise RuntimeError(f"the server is not ready: {reason or self._last_line}")

    @property
    def ports(self) -> dict[str, int]:
        """The numbers of http_port, grpc_port and admin_port, once the server listens; RuntimeError if it ends."""
        self._is_listening.wait(_PATIENCE_S)
        if not self._ports:
            raise RuntimeError(f"the server is not ready: {self._last_line}")
        return self._ports

    @property
    def http(self) -> str:
        """The server's HTTP address, the first part of a URL."""
        return f"{self._scheme}://{self._host.address}:{self.ports['http_port']}"

    @property
    def admin(self) -> str:
        return f"{self._host.address}:{self.ports['admin_port']}"

    @property
    def grpc(self) -> str:
        return f"{self._host.address}:{self.ports['grpc_port']}"

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    @property
    def exit_status(self) -> int | None:
        """The exit status of the server's process, negative for a signal; None while it runs."""
        return self._process.poll()

    @property
    def pid(self) -> int:
        return self._process.pid

    def held(self) -> Held:
        """Reads the resources that the server's process holds now (Linux)."""
        return held_by(self.pid)

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def __enter__(self) -> LiveServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stops the server by SIGTERM, as an orchestrator does, and waits until its process has ended."""
        self.signal(signal.SIGTERM)
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(30)
        assert self._process.stderr is not None
        self._process.stderr.close()


def held_by(pid: int) -> Held:
    """Reads the resources that a process holds now (Linux); raises OSError if the process has ended."""
    process = Path("/proc") / str(pid)
    lines = [line.split() for line in (process / "smaps_rollup").read_text().splitlines()[1:]]
    mib = {name: int(kib) / 1024 for name, kib, *_ in lines}
    return Held(
        pss_mib=mib["Pss:"],
        private_mib=mib["Private_Clean:"] + mib["Private_Dirty:"],
        anonymous_mib=mib["Anonymous:"],
        descriptors=len(os.listdir(process / "fd")),
        deleted_maps=(process / "maps").read_text().count(" (deleted)\n"),
        threads=int(_stat(pid)[17]),
        cpu_s=cpu_s(pid),
    )


def cpu_s(pid: int) -> float:
    """Returns the processor time that a process has used so far, in seconds."""
    fields = _stat(pid)
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _stat(pid: int) -> list[str]:
    # In /proc/PID/stat, the process's name in parentheses may hold any characters; these are the fields behind it.
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def say(text: str) -> None:
    """Writes a line to standard output at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def row(*cells: object) -> str:
    """Returns a row of a Markdown table."""
    return f"| {' | '.join(map(str, cells))} |"


def header(*names: str) -> str:
    return f"{row(*names)}\n{'|---' * len(names)}|"


def exchange(address: str, path: str, body: bytes | None = None, *, timeout_s: float = 60) -> tuple[int, bytes]:
    """Sends a GET, or a POST of a JSON body, on a connection of its own; returns status and body; raises OSError.

    Args:
      address: host:port, or a URL without a path.
    """
    connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=timeout_s)
    try:
        connection.request("GET" if body is None else "POST", path, body, dict(JSON_TYPE))
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


@contextmanager
def served_model(base_path: Path | None, name: str, flags: Sequence[str]) -> Iterator[tuple[LiveServer, Path]]:
    """Yields a ready server and its model folder: base_path, or a tiny model that is exported at once."""
    with tempfile.TemporaryDirectory() as scratch:
        base_path = base_path or export_demo(Path(scratch) / name)
        with LiveServer(f"--model_name={name}", f"--model_base_path={base_path}", *flags) as server:
            yield server.ready(), base_path


def export_demo(out: Path) -> Path:
    """Trains and exports a tiny model of random ratings; returns its folder."""
    command: list[Any] = [sys.executable, "-m", "model_export", "demo", "--dataset=synthetic", "--epochs=1"]
    done = subprocess.run([*command, f"--out={out}"], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"model-export demo failed:\n{done.stdout}{done.stderr}")
    return out


def write_ssl_config(folder: Path) -> Path:
    """Writes an SSLConfig with a new certificate, and this as cert.pem, into a folder; returns the SSLConfig's path."""
    issued, config = Authority("localhost").own, folder / "ssl.conf"
    config.write_text(ssl_config(issued))
    config.with_name("cert.pem").write_text(issued.cert)
    return config


def server_flags(config: Path) -> list[str]:
    return [f"--ssl_config_file={config}", f"--rest_api_ssl_config_file={config}"]


@functools.cache
def client_context(*protocols: str) -> ssl.SSLContext:
    """Returns a client's TLS context that accepts any certificate and offers these protocols by ALPN."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if protocols:
        context.set_alpn_protocols(list(protocols))
    return context
