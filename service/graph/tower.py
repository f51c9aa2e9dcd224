"""Runs signatures as lookups on mapped tables, whose rows are fed to the rest of the graph (the tower) in TensorFlow.

TensorFlow loads no table: looked-up rows are fed to the session in place of the graph's own reads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from service.errors import InvalidRequest
from service.graph.graph_session import GraphError, GraphSession
from service.graph.joined_rows import JoinedRows
from service.graph.row_feed import RowFeed
from service.graph.savedmodel import translated
from service.graph.sparse import SparseNames, feed_with_sparse
from service.graph.table_rows import RowSource
from service.types import Array, SignatureSpec, Tensors

_TF_DTYPE_NAMES = {"object": "string", "float32": "float", "float64": "double", "float16": "half"}

Feed = Callable[[Tensors], list[Array]]


@dataclass(frozen=True, slots=True)
class CutSignature:
    """A signature that was cut into lookups and a tower (the rest of its graph).

    outputs: name -> tensor of the graph.
    sources: tensor of the graph -> the source of the rows that can be fed to it.
    fed: tensors that are fed in place of all sources -> the sources whose rows the tensor holds side by side.
    id_tensors: tensors of ids that the graph computes itself, in a first run before the lookups.
    carried: other tensors of the first run that the last run is fed with.
    id_inputs, inputs: tensors of the request's inputs that the first run and the last run need.
    inputs_apart: tensors of inputs that the last run needs if each source is fed by itself.
    effects: nodes that must run although nothing reads their outputs (a check that may refuse the request, a print).
    """

    spec: SignatureSpec
    outputs: Mapping[str, str]
    sources: Mapping[str, RowSource]
    fed: Mapping[str, JoinedRows]
    id_tensors: tuple[str, ...]
    carried: tuple[str, ...]
    id_inputs: frozenset[str]
    inputs: frozenset[str]
    inputs_apart: frozenset[str]
    effects: tuple[str, ...]


class TowerBackend:
    """The backend that runs signatures whose lookups were cut out of their graphs. Concurrency: any thread."""

    def __init__(
        self,
        session: GraphSession,
        cuts: Mapping[str, CutSignature],
        sparse: Mapping[str, Mapping[str, SparseNames]],
    ) -> None:
        self._session = session
        self._cuts = cuts
        self._sparse = sparse
        self._rows = {name: RowFeed(cut.sources, cut.fed) for name, cut in cuts.items()}
        self._callables: dict[tuple[str, tuple[str, ...]], _Calls] = {}
        # (Signature name, output names) -> a function that runs the signature with the rows of each lookup fed as an
        # array of their own. Such a function is made at the first request whose shapes do not allow to join the rows of
        # several lookups in one array.
        self._calls_apart: dict[tuple[str, tuple[str, ...]], _Call] = {}
        self._compile = threading.Lock()

    @property
    def cuts(self) -> Mapping[str, CutSignature]:
        """The signatures that were cut into lookups and a tower (the rest of the graph), by signature name."""
        return self._cuts

    @property
    def session_number(self) -> int | None:
        """The number by which the native core knows the session; None: the session is not in the core."""
        return self._session.number

    def sparse_inputs(self, signature_name: str) -> Mapping[str, SparseNames]:
        """Returns the name of each sparse input of a signature -> the graph's three tensors of this input."""
        return self._sparse.get(signature_name, {})

    def with_cuts(self, cuts: Mapping[str, CutSignature]) -> TowerBackend:
        """Returns a TowerBackend that feeds rows of other tables to this one's session; closing either one ends it."""
        made = TowerBackend(self._session, cuts, self._sparse)
        # The backend with other cuts shares this backend's functions that run parts of the graph, because these
        # functions do not depend on the tables.
        made._callables, made._calls_apart, made._compile = self._callables, self._calls_apart, self._compile
        return made

    def run(self, signature_name: str, inputs: Tensors, outputs: tuple[str, ...]) -> dict[str, Array]:
        """Looks up rows, runs the tower, and returns the named outputs; strings are object arrays of bytes.

        Raises:
          InvalidRequest: an id has no row, or the graph refused the input in its own words.
          BackendFailure: any other failure of the graph.
        """
        cut = self._cuts[signature_name]
        for name, tensor in cut.spec.inputs.items():
            if tensor.numpy_dtype is not None and inputs[name].dtype != tensor.numpy_dtype:
                raise _wrong_dtype(cut.spec, name, inputs[name])
        try:
            calls = self._callables.get((signature_name, outputs)) or self._make(cut, outputs)
            first: list[Array] = calls.ids(inputs) if calls.ids is not None else []
            computed = dict(zip(cut.id_tensors, first, strict=False))
            of_rows, call = self._rows[signature_name], calls.dense
            rows = of_rows.joined(inputs, computed)
            if rows is None:
                rows, call = of_rows.apart(inputs, computed), self._call_apart(cut, outputs)
            results = call(inputs, *rows, *first[len(cut.id_tensors) :])
        except GraphError as error:
            raise translated(error) from error
        return dict(zip(outputs, results, strict=True))

    def close(self) -> None:
        """Closes the TensorFlow session of the tower, which frees the tower's variables."""
        self._session.close()

    def _make(self, cut: CutSignature, outputs: tuple[str, ...]) -> _Calls:
        fetch = [cut.outputs[name] for name in outputs]
        fed = [*self._rows[cut.spec.name].tensors, *cut.carried]
        with self._compile:
            dense = self._call(cut.spec, fed, cut.inputs, fetch, cut.effects)
            ids = self._call(cut.spec, [], cut.id_inputs, [*cut.id_tensors, *cut.carried]) if cut.id_tensors else None
            made = self._callables[cut.spec.name, outputs] = _Calls(dense, ids)
        return made

    def _call_apart(self, cut: CutSignature, outputs: tuple[str, ...]) -> _Call:
        known = self._calls_apart.get((cut.spec.name, outputs))
        if known is not None:
            return known
        fetch = [cut.outputs[name] for name in outputs]
        with self._compile:
            made = self._call(cut.spec, [*cut.sources, *cut.carried], cut.inputs_apart, fetch, cut.effects)
            self._calls_apart[cut.spec.name, outputs] = made
        return made

    def _call(
        self,
        spec: SignatureSpec,
        fed: Sequence[str],
        inputs: frozenset[str],
        fetch: Sequence[str],
        effects: Sequence[str] = (),
    ) -> _Call:
        """Returns a function that runs a part of the graph on a request's inputs and arrays for the `fed` tensors."""
        feed, names = request_feed(spec, self.sparse_inputs(spec.name), inputs)
        call = self._session.call([*fed, *names], fetch, effects)
        return lambda request, *arrays: call(*arrays, *feed(request))


# Type of a function that runs a part of a graph: takes a request's inputs and the arrays for other fed tensors, such as
# looked-up rows; returns the fetched arrays.
_Call = Callable[..., list[Array]]


@dataclass(frozen=True, slots=True)
class _Calls:
    dense: _Call
    ids: _Call | None


def request_feed(
    spec: SignatureSpec, sparse: Mapping[str, SparseNames], wanted: frozenset[str] | None = None
) -> tuple[Feed, list[str]]:
    """Returns a function that converts a request's inputs to arrays for the graph's tensors, and the tensors' names.

    Args:
      wanted: only these tensors; None: all.
    """
    fed = tuple(sorted(spec.inputs))
    names, convert = feed_with_sparse(fed, sparse, {name: spec.inputs[name].tensor_name for name in fed})
    places = [i for i, name in enumerate(names) if wanted is None or name in wanted]
    kept = [names[i] for i in places]
    if not sparse:
        # Without sparse inputs no conversion is needed: `names` has one tensor for each input, in the order of `fed`.
        chosen = [fed[i] for i in places]
        return lambda inputs: [inputs[name] for name in chosen], kept

    def feed(inputs: Tensors) -> list[Array]:
        arrays = convert([inputs[name] for name in fed])
        return [arrays[i] for i in places]

    return feed, kept


def _wrong_dtype(spec: SignatureSpec, name: str, sent: Array) -> InvalidRequest:
    order = sorted(tensor.tensor_name for tensor in spec.inputs.values())
    wanted = np.dtype(spec.inputs[name].numpy_dtype).name
    place = order.index(spec.inputs[name].tensor_name)
    return InvalidRequest(
        f"Expects arg[{place}] to be {_TF_DTYPE_NAMES.get(wanted, wanted)} but "
        f"{_TF_DTYPE_NAMES.get(sent.dtype.name, sent.dtype.name)} is provided"
    )
