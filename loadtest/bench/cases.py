"""Lists the cases of the benchmark, the servers that they measure, and the ratios that must hold."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from loadtest.bench import workloads as work
from loadtest.live_server import ROOT, LiveServer, server_flags, write_ssl_config


@contextmanager
def bound_to(cores: frozenset[int]) -> Iterator[None]:
    """Binds this thread, and the processes that the `with` block starts, to some processor cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


class Baseline:
    """Process of a baseline server (loadtest.bench.baselines), which sends constant answers from its only port."""

    def __init__(self, kind: str, answers: Path) -> None:
        command = [sys.executable, "-m", "loadtest.bench.baselines", kind, str(answers)]
        self._process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, bufsize=1)
        self.pid = self._process.pid

    def ready(self) -> Baseline:
        """Waits until the baseline server has written its port; raises RuntimeError if the server ends before that."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.strip().isdigit():
            raise RuntimeError(f"{self._process.args} ended at its start")
        self.ports = dict.fromkeys(("grpc_port", "http_port"), int(line))
        return self

    def stop(self) -> None:
        self._process.kill()
        self._process.communicate()


Server = LiveServer | Baseline


@dataclass(frozen=True, slots=True)
class Mode:
    """A setting of the server, or a habit of its clients, beside the plain service.

    flags: of the server; {files} stands for the folder that write_mode_files fills. gzips: whether requests are
    compressed. headers: of each request. is_tls: whether connections are encrypted.
    """

    flags: tuple[str, ...] = ()
    gzips: bool = False
    headers: tuple[tuple[str, str], ...] = ()
    is_tls: bool = False

    def encoded(self, encoded: work.Encoded, *, is_grpc: bool) -> work.Encoded:
        """Returns a request's body and headers as a client in this mode sends them."""
        body, headers = encoded
        name = "grpc-encoding" if is_grpc else "content-encoding"
        if self.gzips:
            body, headers = gzip.compress(body, 6), (*headers, (name, "gzip"))
        return body, (*headers, *self.headers)


PLAIN = Mode()
_TOKEN = "a-token-of-the-benchmark"
MODES = {
    "gzip in": Mode(gzips=True),
    "gzip out": Mode(headers=(("accept-encoding", "gzip"),)),
    "token": Mode(("--auth_config={files}/auth.toml",), headers=(("authorization", f"Bearer {_TOKEN}"),)),
    "TLS": Mode(tuple(server_flags(Path("{files}/ssl.conf"))), is_tls=True),
    "request log of 1 %": Mode(("--model_config_file={files}/models.pbtxt",)),
    "batching": Mode(("--enable_batching",)),
}


def write_mode_files(folder: Path) -> None:
    """Writes the files that flags of MODES name into folder / "modes"."""
    files = folder / "modes"
    files.mkdir(parents=True, exist_ok=True)
    write_ssl_config(files)
    (files / "token").write_text(_TOKEN)
    (files / "auth.toml").write_text(
        '[[caller]]\nname = "bench"\ntoken_file = ["token"]\n[[caller.allow]]\nmodels = ["*"]\nrights = ["predict"]\n'
    )
    model, log = (json.dumps(str(path)) for path in (folder / "models" / "model", files / "log" / "requests"))
    logging = f"log_collector_config {{ filename_prefix: {log} }} sampling_config {{ sampling_rate: 0.01 }}"
    config = f'name: "{work.MODEL}" base_path: {model} model_platform: "tensorflow" logging_config {{ {logging} }}'
    (files / "models.pbtxt").write_text(f"model_config_list {{ config {{ {config} }} }}")


@dataclass(frozen=True, slots=True)
class Case:
    """One measurement of the benchmark, which fills one cell of the table.

    row, workload: of the table. server: name of the server in SERVERS. path: default: the wire's.
    is_constant: whether the server returns a constant answer. is_free: whether server and generator may use all cores.
    mode: what is switched on, with flags of the server.
    """

    row: str
    workload: str
    server: str
    wire: work.Wire
    path: str = ""
    is_constant: bool = False
    is_free: bool = False
    mode: Mode = PLAIN

    @property
    def name(self) -> str:
        return f"{self.row}/{self.workload}"


@dataclass(frozen=True, slots=True)
class Ratio:
    """The ratio of two cases' requests per second, with the smallest value that is accepted."""

    of: str
    over: str
    at_least: float


_LOOKUPS = "--graph_signatures=off"
NO_POLLS = "--file_system_poll_wait_seconds=0"
# A request may wait 60 s in the server's queue. The requests of workload W3 are so slow that, with 32 connections, the
# default limit would make the server refuse some of them and falsify the figures.
_PATIENT = "--max_queue_ms=60000"
# The core is bound to one processor core, so it gets one thread for connections.
_CORE = ("--data_plane=core", "--threads=1")
# Server -> (model, flags) of this project's server, or the kind of a baseline.
SERVERS: Mapping[str, tuple[str, tuple[str, ...]] | str] = {
    "service": ("model", (_LOOKUPS, *_CORE, _PATIENT)),
    "service with TensorFlow": ("model", (*_CORE, _PATIENT)),
    **{f"service, {name}": ("model", (*_CORE, _PATIENT, *mode.flags)) for name, mode in MODES.items()},
    "TensorFlow lookup": ("graph_lookup", ()),
    "TensorFlow predict": ("graph_predict", ()),
    "one thread": ("model", (_LOOKUPS, *_CORE)),
    "two threads": ("model", (_LOOKUPS, "--data_plane=core", "--threads=2")),
    "service, keys": ("model_keys", (_LOOKUPS, *_CORE, _PATIENT)),
    "grpcio constant": "grpcio",
    "hyper constant, gRPC": "grpc",
    "hyper constant, JSON": "json",
}
NEED_CARGO = ("hyper constant, gRPC", "hyper constant, JSON")


def start(server: str, folder: Path) -> Server:
    found = SERVERS[server]
    if isinstance(found, str):
        return Baseline(found, folder / "answers")
    model, flags = found
    flags = tuple(flag.replace("{files}", str(folder / "modes")) for flag in flags)
    if not any(flag.startswith("--model_config_file=") for flag in flags):
        flags = (f"--model_name={work.MODEL}", f"--model_base_path={folder / 'models' / model}", *flags)
    return LiveServer(NO_POLLS, *flags)


def models_of(wanted: Iterable[Case]) -> set[str]:
    return {found[0] for case in wanted if not isinstance(found := SERVERS[case.server], str)}


def cases() -> Iterator[Case]:
    """Yields all cases of the benchmark, in the order in which the report shows them."""
    for row, wire, workloads in (
        ("gRPC", work.GRPC, "W1 W2 W3 W4 W5"),
        ("JSON", work.JSON, "W1 W2"),
        ("binary", work.BINARY, "W1 W2 W3 W4 W5"),
        ("REST", work.REST, "W1 W2 W5"),
        ("Open Inference gRPC", work.INFER, "W1 W2 W3 W4 W5"),
        ("Open Inference JSON", work.INFER_JSON, "W1 W2 W5"),
    ):
        for workload in workloads.split():
            yield Case(row, workload, "service with TensorFlow" if workload == "W5" else "service", wire)
    yield Case("gRPC, keys", "W2", "service, keys", work.GRPC_KEYS)
    yield Case("JSON, keys", "W2", "service, keys", work.JSON_KEYS)
    yield Case("gRPC, TensorFlow signature", "W2", "TensorFlow lookup", work.GRPC)
    yield Case("gRPC, TensorFlow signature", "W5", "TensorFlow predict", work.GRPC)
    for threads in ("one thread", "two threads"):
        for row, wire in (("gRPC", work.GRPC), ("JSON", work.JSON)):
            yield Case(f"{row}, {threads}", "W2", threads, wire, is_free=True)
    for workload in ("W1", "W2", "W3"):
        path = f"/constant/{workload}"
        yield Case("gRPC, grpcio constant", workload, "grpcio constant", work.GRPC, path, is_constant=True)
        yield Case("gRPC, hyper constant", workload, "hyper constant, gRPC", work.GRPC, path, is_constant=True)
        if workload != "W3":
            yield Case("JSON, hyper constant", workload, "hyper constant, JSON", work.JSON, path, is_constant=True)
    for name, mode in MODES.items():
        for row, wire, workloads in (("gRPC", work.GRPC, "W1 W2 W5"), ("JSON", work.JSON, "W1 W2")):
            for workload in workloads.split():
                yield Case(f"{row}, {name}", workload, f"service, {name}", wire, mode=mode)


RATIOS = (
    *(
        Ratio(case.name, f"{case.row.partition(',')[0]}/{case.workload}", 0.5)
        for case in cases()
        # A compressed answer costs what it costs to compress it.
        if case.mode is not PLAIN and case.name != "JSON, gzip out/W2"
    ),
    Ratio("gRPC/W1", "gRPC, grpcio constant/W1", 2.2),
    Ratio("gRPC/W2", "gRPC, grpcio constant/W2", 1.3),
    Ratio("gRPC/W3", "gRPC, grpcio constant/W3", 0.7),
    Ratio("gRPC/W1", "gRPC, hyper constant/W1", 0.7),
    Ratio("gRPC/W2", "gRPC, hyper constant/W2", 0.6),
    Ratio("gRPC, keys/W2", "gRPC/W2", 0.5),
    # The baseline is this server too: it answers the same request by the whole graph, in TensorFlow.
    Ratio("gRPC/W2", "gRPC, TensorFlow signature/W2", 2),
    Ratio("gRPC/W5", "gRPC, TensorFlow signature/W5", 1.1),
    Ratio("JSON/W1", "JSON, hyper constant/W1", 0.7),
    Ratio("JSON, keys/W2", "JSON/W2", 0.5),
    # The ratio of two threads to one is measured over JSON, because server and generator share two cores, and the
    # generator needs more processor time for gRPC.
    Ratio("JSON, two threads/W2", "JSON, one thread/W2", 1.6),
)
