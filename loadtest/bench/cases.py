"""Lists the cases of the benchmark, the servers that they measure, and the ratios that must hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from loadtest.bench import foreign_model
from loadtest.bench.messages import BINARY, GRPC, GRPC_KEYS, INFER, INFER_JSON, JSON, JSON_KEYS, REST, Wire
from loadtest.bench.processes import Baseline, Service
from loadtest.bench.workloads import MODEL, WORKLOADS

Server = Service | Baseline
Start = Callable[[Path, frozenset[int]], Server]


@dataclass(frozen=True, slots=True)
class Case:
    """One measurement of the benchmark, which fills one cell of the table.

    row: name of its row in the table; workload: its column.
    server: name of the server in SERVERS.
    path: path of the requests; default: the wire's.
    is_constant: whether the server returns a constant answer.
    is_free: whether server and generator may use all cores.
    is_foreign: whether requests go to the model of foreign_model.
    """

    row: str
    workload: str
    server: str
    wire: Wire
    path: str = ""
    is_constant: bool = False
    is_free: bool = False
    is_foreign: bool = False

    @property
    def name(self) -> str:
        """The name of the case, for the flag --only and for reports."""
        return f"{self.row}/{self.workload}"


@dataclass(frozen=True, slots=True)
class Ratio:
    """The ratio of two cases' requests per second, with the smallest value that is accepted."""

    of: str
    over: str
    at_least: float


@dataclass(frozen=True, slots=True)
class StartService:
    """A callable that starts this project's server on one of the benchmark's models."""

    model: str
    flags: tuple[str, ...]

    def __call__(self, folder: Path, cores: frozenset[int]) -> Server:
        where = (f"--model_name={MODEL}", f"--model_base_path={folder / 'models' / self.model}")
        return Service(cores, (*where, *self.flags))


def _service(model: str, *flags: str) -> StartService:
    return StartService(model, flags)


def _baseline(module: str, *more: str) -> Start:
    return lambda folder, cores: Baseline(cores, module, (folder / "answers", *more))


_LOOKUPS = "--graph_signatures=off"
# A request may wait 60 s in the server's queue. The requests of workload W3 are so slow that, with 32 connections, the
# default limit would make the server refuse some of them and falsify the figures.
_PATIENT = ("--max_queue_ms=60000",)
# The core is bound to one processor core, so it gets one thread for connections.
_CORE = ("--data_plane=core", "--threads=1")
SERVERS: Mapping[str, Start] = {
    "service": _service("model", _LOOKUPS, *_CORE, *_PATIENT),
    "service with TensorFlow": _service("model", *_CORE, *_PATIENT),
    "TensorFlow lookup": _service("graph_lookup"),
    "TensorFlow predict": _service("graph_predict"),
    "foreign, adopted": _service(foreign_model.ADOPTED, *_PATIENT),
    "foreign, whole": _service(foreign_model.WHOLE, *_PATIENT),
    "one thread": _service("model", _LOOKUPS, "--data_plane=core", "--threads=1"),
    "two threads": _service("model", _LOOKUPS, "--data_plane=core", "--threads=2"),
    "service, keys": _service("model_keys", _LOOKUPS, *_CORE, *_PATIENT),
    "grpcio constant": _baseline("grpcio_constant"),
    "hyper constant, gRPC": _baseline("hyper_constant", "grpc"),
    "hyper constant, JSON": _baseline("hyper_constant", "json"),
    "ASGI": _baseline("asgi_constant"),
    "FastAPI": _baseline("fastapi_constant"),
    "orjson": _baseline("asgi_constant", "W2"),
}
# Maps a server of the benchmark to the flag that it needs. If the measured commit's server lacks the flag, cases that
# need it are left out.
FLAGS_NEEDED = {
    "one thread": "--threads",
    "two threads": "--threads",
}
NEED_CARGO = ("hyper constant, gRPC", "hyper constant, JSON")
ENCODE_ALONE = "orjson alone"


def models_of(wanted: Iterable[Case]) -> set[str]:
    """Returns the names of the models that the service serves in some cases."""
    starts = (SERVERS[case.server] for case in wanted)
    return {start.model for start in starts if isinstance(start, StartService)}


def cases() -> Iterator[Case]:
    """Yields all cases of the benchmark, in the order in which the report shows them."""
    for workload in WORKLOADS:
        yield Case("gRPC", workload, "service with TensorFlow" if workload == "W5" else "service", GRPC)
    yield Case("gRPC, TensorFlow signature", "W2", "TensorFlow lookup", GRPC)
    yield Case("gRPC, TensorFlow signature", "W5", "TensorFlow predict", GRPC)
    for workload in ("W1", "W2", "W3"):
        yield Case(
            "gRPC, grpcio constant", workload, "grpcio constant", GRPC, f"/constant/{workload}", is_constant=True
        )
    for threads in ("one thread", "two threads"):
        for row, wire in (("gRPC", GRPC), ("JSON", JSON)):
            yield Case(f"{row}, {threads}", "W2", threads, wire, is_free=True)
    for workload in ("W1", "W2"):
        yield Case("JSON", workload, "service", JSON)
    for row, server, path in (
        ("JSON, ASGI constant", "ASGI", "constant"),
        ("JSON, ASGI around orjson", "ASGI", "orjson"),
        ("JSON, FastAPI constant", "FastAPI", "constant"),
    ):
        for workload in ("W1", "W2"):
            yield Case(row, workload, server, JSON, f"/{path}/{workload}", is_constant=True)
    yield Case(ENCODE_ALONE, "W2", "orjson", JSON, is_constant=True)
    for workload in ("W1", "W2", "W3", "W4"):
        yield Case("binary", workload, "service", BINARY)
    yield from _other_wires()
    for workload in ("W1", "W2", "W3"):
        path = f"/constant/{workload}"
        yield Case("gRPC, hyper constant", workload, "hyper constant, gRPC", GRPC, path, is_constant=True)
        if workload != "W3":
            yield Case("JSON, hyper constant", workload, "hyper constant, JSON", JSON, path, is_constant=True)
    yield from _foreign()


def _other_wires() -> Iterator[Case]:
    for row, wire in (("REST", REST), ("Open Inference gRPC", INFER), ("Open Inference JSON", INFER_JSON)):
        for workload in WORKLOADS if wire.is_grpc else ("W1", "W2", "W5"):
            server = "service with TensorFlow" if workload == "W5" else "service"
            yield Case(row, workload, server, wire)
    yield Case("binary", "W5", "service with TensorFlow", BINARY)
    for row, wire in (("gRPC, keys", GRPC_KEYS), ("JSON, keys", JSON_KEYS)):
        yield Case(row, "W2", "service, keys", wire)


def _foreign() -> Iterator[Case]:
    # Yields the cases of a foreign model that was adopted without a spec, each followed by the same case of the
    # original model.
    for row, wire, workloads in (
        ("gRPC", foreign_model.GRPC, WORKLOADS),
        ("JSON", foreign_model.JSON, ("W1", "W2")),
    ):
        for workload in workloads:
            for server in ("foreign, adopted", "foreign, whole"):
                yield Case(f"{row}, {server}", workload, server, wire, is_foreign=True)


RATIOS = (
    Ratio("gRPC/W1", "gRPC, grpcio constant/W1", 2.2),
    Ratio("gRPC/W2", "gRPC, grpcio constant/W2", 1.3),
    Ratio("gRPC/W3", "gRPC, grpcio constant/W3", 0.7),
    Ratio("gRPC/W1", "gRPC, hyper constant/W1", 0.7),
    Ratio("gRPC/W2", "gRPC, hyper constant/W2", 0.6),
    Ratio("gRPC, keys/W2", "gRPC/W2", 0.5),
    Ratio("gRPC/W2", "gRPC, TensorFlow signature/W2", 8),
    Ratio("gRPC/W5", "gRPC, TensorFlow signature/W5", 3),
    Ratio("JSON/W1", "JSON, ASGI constant/W1", 0.7),
    Ratio("JSON/W1", "JSON, hyper constant/W1", 0.7),
    Ratio("JSON/W2", f"{ENCODE_ALONE}/W2", 0.8),
    Ratio("JSON, keys/W2", "JSON/W2", 0.5),
    # The ratio of two threads to one is measured over JSON, because server and generator share two cores, and the
    # generator needs more processor time for gRPC.
    Ratio("JSON, two threads/W2", "JSON, one thread/W2", 1.6),
    *(
        Ratio(case.name, f"{case.row.replace('adopted', 'whole')}/{case.workload}", 1.5)
        for case in _foreign()
        if case.server == "foreign, adopted"
    ),
)
