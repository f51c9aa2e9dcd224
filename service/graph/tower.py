"""Runs a signature as lookups on mapped tables and, in TensorFlow, only what the graph makes of them.

No table is loaded by TensorFlow: its rows are fed to the session where the graph would have read or combined them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from service.core.errors import InvalidRequest
from service.core.types import Array, SignatureSpec, Tensors
from service.graph.savedmodel import first_line, translated
from service.graph.sparse import SparseNames, feed_with_sparse
from service.graph.table_rows import RowSource

_TF_DTYPE_NAMES = {"object": "string", "float32": "float", "float64": "double", "float16": "half"}

Feed = Callable[[Tensors], list[Array]]


@dataclass(frozen=True, slots=True)
class CutSignature:
    """How a signature is run.

    outputs: name -> tensor of the graph.
    sources: tensor of the graph -> what gives the rows that are fed to it.
    joined: tensor of the graph -> the sources whose rows it has side by side, in place of which it may be fed.
    id_tensors: ids that the graph works out itself, in a run of their own before the lookups.
    carried: what else of that run the last one goes on with.
    id_inputs, inputs: tensors of the request's inputs that this run and the last one need.
    effects: nodes that run besides (a check that may refuse the request, a print).
    is_rowwise: each row of the outputs depends on the same row of the inputs and of the sources, and on nothing else.
    """

    spec: SignatureSpec
    outputs: Mapping[str, str]
    sources: Mapping[str, RowSource]
    joined: Mapping[str, tuple[str, ...]]
    id_tensors: tuple[str, ...]
    carried: tuple[str, ...]
    id_inputs: frozenset[str]
    inputs: frozenset[str]
    effects: tuple[str, ...]
    is_rowwise: bool

    @property
    def fed_together(self) -> dict[str, tuple[str, ...]]:
        """The tensors that are fed where all sources are: each, and the sources whose rows it has side by side."""
        joined = {source: tensor for tensor, sources in self.joined.items() for source in sources}
        return {
            joined.get(source, source): self.joined.get(joined.get(source, source), (source,))
            for source in self.sources
        }


class DensePart(NamedTuple):
    """What is left of a signature behind its sources.

    sources: those whose rows each array has that is fed, side by side.
    run: those arrays, [B, all D] float32 or, of a source by itself, as it gives them, to outputs by name; raises
      ServiceError.
    """

    sources: tuple[tuple[str, ...], ...]
    run: Callable[[Sequence[Array]], dict[str, Array]]


class TowerBackend:
    """Runs cut signatures. Concurrency: any thread."""

    def __init__(
        self,
        session: Any,
        cuts: Mapping[str, CutSignature],
        sparse: Mapping[str, Mapping[str, SparseNames]],
        *,
        new_options: Callable[..., Any],
        error_type: type[Exception],
    ) -> None:
        self._session = session
        self._cuts = cuts
        self._sparse = sparse
        self._new_options = new_options
        self._error_type = error_type
        self._callables: dict[tuple[str, tuple[str, ...]], _Calls] = {}
        # By signature.
        self._dense_parts: dict[str, Callable[..., list[Any]]] = {}
        self._compile = threading.Lock()

    @property
    def cuts(self) -> Mapping[str, CutSignature]:
        """The signatures that it runs."""
        return self._cuts

    def with_cuts(self, cuts: Mapping[str, CutSignature]) -> TowerBackend:
        """Returns one that shares this one's session and takes its rows from elsewhere; closing one closes both."""
        made = TowerBackend(
            self._session, cuts, self._sparse, new_options=self._new_options, error_type=self._error_type
        )
        # What runs parts of the graph knows nothing of where rows come from.
        made._callables, made._dense_parts, made._compile = self._callables, self._dense_parts, self._compile
        return made

    def run(self, signature_name: str, inputs: Tensors, outputs: tuple[str, ...]) -> dict[str, Array]:
        """Returns the named outputs; strings come as object arrays of bytes.

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
            first: list[Array] = calls.ids(*calls.feed_ids(inputs)) if calls.ids is not None else []
            computed = dict(zip(cut.id_tensors, first, strict=False))
            rows = [source(inputs, computed) for source in cut.sources.values()]
            results = calls.dense(*rows, *first[len(cut.id_tensors) :], *calls.feed(inputs))
        except self._error_type as error:
            raise translated(error) from error
        except UnicodeDecodeError as error:
            raise InvalidRequest(first_line(error.object.decode(errors="replace"))) from error
        return dict(zip(outputs, results, strict=True))

    def dense_part(self, signature_name: str) -> DensePart | None:
        """Returns what runs a cut signature on its sources' rows; None where it reads anything else."""
        cut = self._cuts[signature_name]
        if cut.id_tensors or cut.carried or cut.inputs:
            return None
        outputs = tuple(cut.spec.outputs)
        fed = cut.fed_together

        def run(rows: Sequence[Array]) -> dict[str, Array]:
            dense = self._dense_parts.get(signature_name) or self._make_dense_part(cut, outputs)
            try:
                return dict(zip(outputs, dense(*rows), strict=True))
            except self._error_type as error:
                raise translated(error) from error

        return DensePart(tuple(fed.values()), run)

    def close(self) -> None:
        """Frees the variables of the dense part."""
        self._session.close()

    def _make(self, cut: CutSignature, outputs: tuple[str, ...]) -> _Calls:
        spec = cut.spec
        with self._compile:
            feed, names = request_feed(spec, self._sparse.get(spec.name, {}), cut.inputs)
            fetch = [cut.outputs[name] for name in outputs]
            dense = self._callable([*cut.sources, *cut.carried, *names], fetch, cut.effects)
            ids, feed_ids = None, feed
            if cut.id_tensors:
                feed_ids, names = request_feed(spec, self._sparse.get(spec.name, {}), cut.id_inputs)
                ids = self._callable(names, [*cut.id_tensors, *cut.carried], ())
            made = _Calls(feed, dense, feed_ids, ids)
            self._callables[spec.name, outputs] = made
        return made

    def _make_dense_part(self, cut: CutSignature, outputs: tuple[str, ...]) -> Callable[..., list[Any]]:
        with self._compile:
            dense = self._callable([*cut.fed_together], [cut.outputs[name] for name in outputs], cut.effects)
            self._dense_parts[cut.spec.name] = dense
        return dense

    def _callable(self, feed: Sequence[str], fetch: Sequence[str], target: Sequence[str]) -> Callable[..., list[Any]]:
        made: Callable[..., list[Any]] = self._session._make_callable_from_options(
            self._new_options(feed=feed, fetch=fetch, target=target)
        )
        return made


@dataclass(frozen=True, slots=True)
class _Calls:
    feed: Feed
    dense: Callable[..., list[Any]]
    feed_ids: Feed
    ids: Callable[..., list[Any]] | None


def request_feed(
    spec: SignatureSpec, sparse: Mapping[str, SparseNames], wanted: frozenset[str] | None = None
) -> tuple[Feed, list[str]]:
    """Returns what turns a request into tensors of the graph, and their names; wanted: only these."""
    fed = tuple(sorted(spec.inputs))
    names, convert = feed_with_sparse(fed, sparse, {name: spec.inputs[name].tensor_name for name in fed})
    places = [i for i, name in enumerate(names) if wanted is None or name in wanted]
    kept = [names[i] for i in places]
    if not sparse:
        # The names are in the order of the inputs then.
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
