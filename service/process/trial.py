"""Opens a version twice, with whole graphs and with lookups taken out of them, and measures both request rates.

Both are opened as the native core serves them, and requests run from bytes to bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from types import TracebackType

from service.artifact.manifest import LookupFeature, Manifest
from service.artifact.signature_def import read_signatures
from service.configuration.settings import Settings
from service.engine.servable import Servable
from service.errors import ServiceError
from service.graph.run_comparison import Rates, compare_runs
from service.graph.savedmodel import open_savedmodel
from service.graph.tower import TowerBackend
from service.loading.feature_lookups import SingleFeature, core_lookups
from service.loading.native_graphs import native_graphs
from service.loading.towers import open_towers
from service.native.choice import has_core
from service.native.native_servable import compile_native
from service.reference.graphs import Graph
from service.reference.lookups import look_up
from service.reference.model import Model, open_model
from service.reference.rows import Table
from service.tables.backend import LookupBackend, OpenedLookups, open_lookups
from service.tables.guarded_files import GuardedFiles
from service.tables.table import MappedTable
from service.types import Array, Backend, SignatureSpec, Tensors, TensorSpec
from service.wire.predict_proto import decode_inputs, decode_request, decode_response, encode_request, encode_response

_MODEL = "trial"

# The outputs of a run by name, or the error that it ended with.
Outputs = dict[str, Array] | ServiceError
# Type of a function that answers a serialized PredictRequest with a serialized PredictResponse; raises ServiceError.
Answer = Callable[[bytes], bytes]


def missing_core() -> str:
    """Returns one sentence if no native core is installed in which a Trial could run graphs, and "" if one is."""
    return "" if has_core() else "the native core, which runs graphs without their lookups, is not installed"


class Trial:
    """A version that is opened twice: with lookups taken out of its graphs as the manifest says ("cut"), and with
    whole graphs ("whole"). It needs the native core.

    Args:
      names: the signatures to open.

    signatures: the specs of the named signatures, as the manifest describes them.
    """

    def __init__(self, artifact: Path, manifest: Manifest, names: Collection[str], tags: frozenset[str]) -> None:
        specs = read_signatures(artifact / "saved_model.pb", tags)
        lookups = open_lookups(artifact, manifest, specs)
        self.signatures: Mapping[str, SignatureSpec] = {
            name: spec for name, spec in lookups.signatures.items() if name in names
        }
        predicts = {name: spec for name, spec in self.signatures.items() if name not in lookups.lookup_names}
        graphs = open_savedmodel(artifact, tags, threads=1)
        self._cut = cut_servable(artifact, manifest, lookups, predicts, tags)
        self._whole = _compiled(Servable(_MODEL, 1, specs, dict.fromkeys(specs, graphs)), None)
        self._in_python = Graph(artifact, tags, (1, 1))

    def __enter__(self) -> Trial:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for opened in (self._cut, self._whole, self._in_python):
            opened.close()

    def can_cut(self, name: str) -> bool:
        """Says whether lookups could be taken out of a signature's graph, and the native core runs what is left."""
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
        """Runs a request with lookups taken out of its graph, and with the whole graph; returns what each answered."""
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
    towers = open_towers(artifact, manifest, lookups, predicts, tags, compile_native, threads=1) if predicts else None
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
    """Returns the function that looks up one feature's ids in a table as the server does: in the native core, or where
    no core is installed in the reference.

    Args:
      inputs: the specs of the inputs that the feature reads.

    Returns:
      A function of a request; it returns the vectors, and raises InvalidRequest.
    """
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
