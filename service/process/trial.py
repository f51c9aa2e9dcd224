"""Opens a version twice, with whole graphs and with lookups taken out of them, and measures requests to both in turns.

Both are opened as the native core serves them, and requests run from bytes to bytes. It measures processor time, not
elapsed time: what else the machine does then decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from time import process_time
from typing import TypeVar

from service.artifact.manifest import LookupFeature, Manifest
from service.artifact.signature_def import read_signatures
from service.configuration.settings import Settings
from service.core.choice import has_core
from service.core.native_servable import compile_native
from service.errors import ArtifactError, ServiceError
from service.graph.savedmodel import open_savedmodel
from service.graph.tower import TowerBackend
from service.loading.feature_lookups import SingleFeature, core_lookups
from service.loading.graph_opening import native_graphs, open_towers
from service.reference.graphs import Graph
from service.reference.lookups import look_up
from service.reference.models import Model, open_model
from service.reference.rows import Table
from service.tables.backend import LookupBackend, OpenedLookups, open_lookups
from service.tables.guarded_files import GuardedFiles
from service.tables.table import MappedTable
from service.types import Array, Backend, GraphThreads, SignatureSpec, Tensors, TensorSpec
from service.versions.servable import Servable
from service.wire.predict_proto import decode_inputs, decode_request, decode_response, encode_request, encode_response

# Seconds of processor time of one measurement of a function: many times 5 ms, after which Python's interpreter switches
# threads.
_TURN_S = 0.06

Name = TypeVar("Name", bound=Hashable)
Request = TypeVar("Request")


@dataclass(frozen=True, slots=True)
class Rates:
    """Median requests per second of processor time of both forms of a signature.

    cut: looked-up rows are fed to the rest of the graph. whole: TensorFlow runs the whole graph.
    """

    cut: float
    whole: float

    @property
    def ratio(self) -> float:
        return self.cut / self.whole


def compare_runs(
    cut: Callable[[Request], object],
    whole: Callable[[Request], object],
    requests: Mapping[Name, Request],
    *,
    threads: int = 8,
    turns: int = 9,
) -> dict[Name, Rates]:
    """Measures how many requests cut() and whole() answer in a second of processor time, in alternating turns.

    Args:
      cut, whole: functions that answer a request, either from bytes to bytes as a server does, or by a backend alone.
      requests: key of the caller's choice, such as the number of rows -> request.
      threads: number of concurrent callers. A server has several, and they wait for the interpreter's lock, which one
        caller does not: with 8 small tables, cut took one caller 0.6 of whole's time, and 8 callers more than whole.
      turns: number of turns of each function; a turn has as many runs as take about 60 ms.

    Raises:
      ServiceError: a request is refused.
    """
    found: dict[Name, Rates] = {}
    with ThreadPoolExecutor(threads, "comparison") as pool:
        for name, request in requests.items():
            callers = [_Callers(pool, threads, answer, request) for answer in (cut, whole)]
            rates = [[caller.rate() for caller in callers] for _ in range(turns)]
            found[name] = Rates(*(median(column) for column in zip(*rates, strict=True)))
    return found


class _Callers:
    # _Callers runs one function in several threads; each thread calls it with the same request again and again.

    def __init__(
        self, pool: ThreadPoolExecutor, threads: int, answer: Callable[[Request], object], request: Request
    ) -> None:
        self._pool = pool
        self._threads = threads
        self._answer = partial(answer, request)
        # The duration of the first of the measured runs is not used, because this run fills caches for later ones.
        self._seconds(1)
        self._runs = max(1, int(3 * _TURN_S / self._seconds(3)))

    def rate(self) -> float:
        return self._threads * self._runs / self._seconds(self._runs)

    def _seconds(self, runs: int) -> float:
        started_s = process_time()
        for done in [self._pool.submit(self._run, runs) for _ in range(self._threads)]:
            done.result()
        # A clock of processor time may tick in steps that a quick run does not fill.
        return max(process_time() - started_s, 1e-6)

    def _run(self, runs: int) -> None:
        for _ in range(runs):
            self._answer()


_MODEL = "trial"

# The outputs of a run by name, or the error that it ended with.
Outputs = dict[str, Array] | ServiceError
# Type of a function that answers a serialized PredictRequest with a serialized PredictResponse; raises ServiceError.
Answer = Callable[[bytes], bytes]


def missing_core() -> str:
    return "" if has_core() else "the native core, which runs graphs without their lookups, is not installed"


class Trial:
    """A version that is opened twice: with lookups taken out of its graphs as the manifest says ("cut"), and with
    whole graphs ("whole"). It needs the native core.

    signatures: the specs of the named signatures, as the manifest describes them.
    """

    def __init__(self, artifact: Path, manifest: Manifest, names: Collection[str], tags: frozenset[str]) -> None:
        specs = read_signatures(artifact / "saved_model.pb", tags)
        lookups = open_lookups(artifact, manifest, specs)
        self.signatures: Mapping[str, SignatureSpec] = {
            name: spec for name, spec in lookups.signatures.items() if name in names
        }
        predicts = {name: spec for name, spec in self.signatures.items() if name not in lookups.lookup_names}
        self._in_python = Graph(artifact, tags, GraphThreads(1))
        whole: dict[str, Backend] = {}
        try:
            whole = dict.fromkeys(specs, open_savedmodel(artifact, tags, GraphThreads(1)))
        except ArtifactError:
            # The core lacks the ops of Python packages. A graph that Python can not open either has another fault.
            self._in_python.open()
        self._cut = cut_servable(artifact, manifest, lookups, predicts, tags)
        self._whole = _compiled(Servable(_MODEL, 1, specs, whole), None)

    def __enter__(self) -> Trial:
        return self

    def __exit__(self, *_: object) -> None:
        for opened in (self._cut, self._whole, self._in_python):
            opened.close()

    def can_cut(self, name: str) -> bool:
        return name in self._cut.backends and not self.not_run(name)

    def not_run(self, name: str) -> str:
        """Returns why the native core does not run a signature without its lookups; "" if it does, or if lookups could
        not be taken out of the signature's graph.
        """
        return self._cut.not_run.get(name, "") if name in self._cut.backends else ""

    def rates(self, name: str, requests: Mapping[int, Mapping[str, Array]], *, turns: int) -> dict[int, Rates]:
        """Measures and returns, for each of the given requests, the request rates of a signature's cut and whole graph.

        Raises ServiceError if the signature refuses a request.
        """
        encoded = {key: encode_request(_MODEL, name, inputs) for key, inputs in requests.items()}
        return compare_runs(self._answer(self._cut, name), self._answer(self._whole, name), encoded, turns=turns)

    def outputs(self, name: str, request: Mapping[str, Array]) -> tuple[Outputs, Outputs]:
        encoded = encode_request(_MODEL, name, request)
        return _outputs(self._answer(self._cut, name), encoded), _outputs(self._answer(self._whole, name), encoded)

    def _answer(self, servable: Servable, name: str) -> Answer:
        if servable.native is None or name in servable.not_run:
            return partial(self._run_whole, name)
        return servable.native.answer

    def _run_whole(self, name: str, request: bytes) -> bytes:
        """Runs a whole graph in Python that the core can not open, such as one with an op of a Python package."""
        spec = self.signatures[name]
        found = self._in_python.run(spec, decode_inputs(decode_request(request)), tuple(spec.outputs))
        return encode_response(found, model=_MODEL, version=1, signature_name=name, as_content=True)


def cut_servable(
    artifact: Path,
    manifest: Manifest,
    lookups: OpenedLookups,
    predicts: Mapping[str, SignatureSpec],
    tags: frozenset[str],
) -> Servable:
    """Returns a version's lookups, and the graphs of `predicts` without their lookups, as the native core serves them.

    Servable.not_run has the signatures that the core does not run, and why.
    """
    towers = (
        open_towers(artifact, manifest, lookups, predicts, tags, compile_native, GraphThreads(1)) if predicts else None
    )
    cuts: dict[str, TowerBackend] = {} if towers is None else dict.fromkeys(towers.cuts, towers)
    backends: dict[str, Backend] = {**dict.fromkeys(lookups.lookup_names, lookups.backend), **cuts}
    return _compiled(Servable(_MODEL, 1, lookups.signatures, backends, lookups.tables), lookups)


def _compiled(servable: Servable, lookups: OpenedLookups | None) -> Servable:
    return compile_native(servable, lookups, native_graphs(servable))


def reference_of(artifact: Path, manifest: Manifest) -> Model:
    """Opens the lookups of a manifest in the reference, which answers requests where no native core is installed."""
    return open_model(Settings(graph_signatures="off"), _MODEL, 1, artifact, manifest)


def lookup_of(
    feature: LookupFeature, table: MappedTable, inputs: Mapping[str, TensorSpec]
) -> Callable[[Tensors], Array]:
    """Returns the function that looks up one feature's ids in a table as the server does; it raises InvalidRequest."""
    if not has_core():
        scales = table.scales[:, None] if table.scales.size else None
        return partial(look_up, feature, Table(table.info, table.weights, scales))
    lookups = OpenedLookups({table.info.name: table}, {}, LookupBackend({}, {}), GuardedFiles(), {})
    return partial(core_lookups([SingleFeature("it", feature, table, inputs)], lookups, compile_native), "it")


def _outputs(answer: Answer, request: bytes) -> Outputs:
    try:
        return decode_response(answer(request))
    except ServiceError as error:
        return error
