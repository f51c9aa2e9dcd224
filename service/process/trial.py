"""Opens a version twice, with whole graphs and with lookups taken out of them, and measures both request rates."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from service.artifact.manifest import Manifest
from service.artifact.protos import message_class
from service.artifact.signature_def import read_signatures
from service.artifact.tensor_proto import encode_tensor
from service.engine.call import Finished
from service.engine.engine import Engine
from service.engine.registry import Registry
from service.engine.servable import Servable
from service.errors import ServiceError
from service.graph.run_comparison import Rates, compare_runs
from service.graph.savedmodel import open_savedmodel
from service.graph.tower import TowerBackend
from service.grpc.methods import service_methods
from service.loading.native_graphs import native_graphs
from service.loading.towers import open_towers
from service.native.choice import has_core
from service.native.native_servable import CompiledServable, compile_native
from service.tables.backend import OpenedLookups, open_lookups
from service.types import Array, Backend, SignatureSpec
from service.wire.grpc_api import PREDICT

_MODEL = "trial"

# The outputs of a run by name, or the error that it ended with.
Outputs = dict[str, Array] | ServiceError
# Type of a function that answers a serialized PredictRequest with a serialized PredictResponse; raises ServiceError.
Answer = Callable[[bytes], bytes]


class Trial:
    """A version that is opened twice: with lookups taken out of its graphs as the manifest says ("cut"), and with
    whole graphs ("whole").

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
        self._graphs = open_savedmodel(artifact, specs, tags, threads=1)
        self._towers = open_towers(artifact, manifest, lookups, predicts, tags, threads=1) if predicts else None
        self._cut = _described(lookups, self._towers)
        whole = Servable(_MODEL, 1, specs, dict.fromkeys(specs, self._graphs))
        self._answers = _answering(self._cut, lookups), _answering(whole, None)

    def __enter__(self) -> Trial:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._graphs.close()
        if self._towers is not None:
            self._towers.close()

    def can_cut(self, name: str) -> bool:
        """Says whether lookups could be taken out of a signature's graph, so that it runs without its whole graph."""
        return name in self._cut.backends

    def rates(self, name: str, requests: Mapping[int, Mapping[str, Array]], *, turns: int) -> dict[int, Rates]:
        """Measures and returns, for each of the given requests, the request rates of a signature's cut and whole graph.

        Raises ServiceError if the signature refuses a request.
        """
        encoded = {key: _predict_request(self._cut, name, inputs) for key, inputs in requests.items()}
        return compare_runs(*self._answers, encoded, turns=turns)

    def outputs(self, name: str, request: Mapping[str, Array]) -> tuple[Outputs, Outputs]:
        """Runs a request with lookups taken out of its graph, and with the whole graph; returns what each answered."""
        return _run(self._cut.backends[name], self.signatures[name], request), _run(
            self._graphs, self.signatures[name], request
        )


def _described(lookups: OpenedLookups, towers: TowerBackend | None) -> Servable:
    cuts: dict[str, TowerBackend] = {} if towers is None else dict.fromkeys(towers.cuts, towers)
    backends: dict[str, Backend] = {**dict.fromkeys(lookups.lookup_names, lookups.backend), **cuts}
    return Servable(_MODEL, 1, lookups.signatures, backends, lookups.tables)


def _run(backend: Backend, spec: SignatureSpec, request: Mapping[str, Array]) -> Outputs:
    try:
        return {output: np.asarray(a) for output, a in backend.run(spec.name, request, tuple(spec.outputs)).items()}
    except ServiceError as error:
        return error


class _Unobserved:
    def finished(self, request: Finished) -> None:
        """Counts no requests."""


def _answering(servable: Servable, lookups: OpenedLookups | None) -> Answer:
    """Returns a function that answers Predict requests for a version as a server does, in the native core or in Python.

    Args:
      lookups: lookups of the version's manifest, if it has one.
    """
    reference, forms = _reference(servable), _native_forms(servable, lookups)
    if forms is None:
        return reference

    def answer(request: bytes) -> bytes:
        try:
            answered: bytes = forms.grpc(PREDICT, request)
        except ValueError:
            # ValueError means that the native core would forward this request, so Python answers it.
            return reference(request)
        return answered

    return answer


def _native_forms(servable: Servable, lookups: OpenedLookups | None) -> Any:
    """Returns the native core's object that answers requests for a version.

    Returns None if the core is not built or can not serve the version.
    """
    if not has_core():
        return None
    from service import _native

    native = compile_native(servable, lookups, native_graphs(servable)).native
    if not isinstance(native, CompiledServable):
        return None
    return _native.Forms([(servable.name, [(servable.version, native.compiled)], {}, 0.0, "")])


def _reference(servable: Servable) -> Answer:
    registry = Registry(lambda model, status: None)
    registry.add_model(servable.name)
    registry.start(servable.name, servable.version)
    registry.publish(servable)
    engine = Engine(registry, _Unobserved())
    predict = service_methods(engine)[PREDICT]
    return lambda request: predict(request, None)


def _predict_request(servable: Servable, signature_name: str, inputs: Mapping[str, Array]) -> bytes:
    """Serializes a PredictRequest for a signature with the given inputs."""
    request = message_class("tensorflow.serving.PredictRequest")()
    request.model_spec.name, request.model_spec.signature_name = servable.name, signature_name
    for name, array in inputs.items():
        request.inputs[name].ParseFromString(b"".join(encode_tensor(name, array)))
    data: bytes = request.SerializeToString()
    return data
