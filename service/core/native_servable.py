"""Compiles servables for the native core, and tells the core which of them requests can reach."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from service.control.request_context import Recorder
from service.core.description import Described, describe, left_out
from service.errors import (
    BackendFailure,
    DataLoss,
    DeadlineExceeded,
    GraphUnavailable,
    InvalidRequest,
    NotFound,
    PayloadTooLarge,
    ServiceError,
    TableUnreachable,
    Unimplemented,
)
from service.graph.native_form import NativeGraph, PythonOnly
from service.tables.backend import OpenedLookups
from service.tables.table import MappedTable
from service.types import INIT_SIGNATURE, Array, TableCounts, Tensors, runnable
from service.versions.counts import FeatureCounts, SampledRows, summed
from service.versions.registry import ModelRoutes
from service.versions.servable import NativeServable, Servable, sums_of_counts
from service.wire.predict_proto import decode_response, encode_request

if TYPE_CHECKING:
    from service import _native


logger = logging.getLogger(__name__)

# Code of a refusal by the core -> the error that stands for it in Python.
_ERRORS: Mapping[str, type[ServiceError]] = {
    "INVALID_ARGUMENT": InvalidRequest,
    "NOT_FOUND": NotFound,
    "FAILED_PRECONDITION": GraphUnavailable,
    "RESOURCE_EXHAUSTED": PayloadTooLarge,
    "UNAVAILABLE": TableUnreachable,
    "DEADLINE_EXCEEDED": DeadlineExceeded,
    "UNIMPLEMENTED": Unimplemented,
    "DATA_LOSS": DataLoss,
}
_NEEDS_TENSORFLOW = "it needs TensorFlow, which this server runs without"


@dataclass(frozen=True, slots=True)
class CompiledServable:
    """A servable in the form that the native core has compiled; implements versions.servable.NativeServable.

    compiled: the core's own object. It owns the description's arrays until its last request has ended, so they must not
      refer to this object: Python's garbage collector can not find a cycle through the core.
    earlier: the servable that answered lookups while the version was loading; its counts are added to this one's.
    """

    name: str
    compiled: _native.Servable
    described: Described
    earlier: NativeServable | None = None

    def answer(self, request: bytes, method: str = "Predict") -> bytes:
        from service import _native

        try:
            return self.compiled.answer(method, request)
        except _native.Unanswered as error:
            code, text = error.args
            raise _ERRORS.get(code, BackendFailure)(text) from error

    def run(self, signature: str, inputs: Tensors, outputs: tuple[str, ...] = ()) -> dict[str, Array]:
        return decode_response(self.answer(encode_request(self.name, signature, inputs, outputs)))

    @property
    def num_holders(self) -> int:
        return self.compiled.num_leases

    def forget_counts(self) -> None:
        self.compiled.forget_counts()

    def table_counts(self) -> Mapping[str, TableCounts]:
        counts = self.described.table_counts(self.compiled.counts(), self.compiled.unknown_keys())
        return counts if self.earlier is None else sums_of_counts(counts, self.earlier.table_counts())

    def feature_counts(self) -> FeatureCounts:
        counts = self.described.feature_counts(self.compiled.counts())
        return counts if self.earlier is None else summed(counts, self.earlier.feature_counts())

    def hot_rows(self, table: str, most: int) -> SampledRows | None:
        if table not in self.described.tables:
            return None
        found = self.compiled.hot_rows(self.described.tables.index(table), most)
        if found is None:
            return None
        samples, lookups, distinct, overcount, rows = found
        return SampledRows(samples, lookups, distinct, overcount, tuple(rows))

    def on_tables(self, tables: Mapping[str, MappedTable]) -> CompiledServable:
        return replace(self, compiled=self.compiled.on_tables(self.described.buffers_of(tables)))


def compile_native(
    servable: Servable,
    lookups: OpenedLookups | None,
    graphs: Mapping[str, NativeGraph | PythonOnly],
    clusters: _native.Clusters | None = None,
    pager: _native.Pager | None = None,
    batcher: _native.Batcher | None = None,
    *,
    has_hot_rows: bool = False,
    strict_shapes: bool = False,
) -> Servable:
    """Compiles a servable for the native core; returns it with the compiled form, and why it does not run signatures.

    A compiled form that the servable has already was for its early lookups; the new form adds its counts.
    """
    from service import _native

    names = {"model": servable.name, "version": servable.version}
    earlier, servable = servable.native, replace(servable, native=None)
    others = left_out(lookups, servable.signatures, graphs, servable.signature_faults, is_loading=servable.is_loading)
    native_graphs = {name: graph for name, graph in graphs.items() if isinstance(graph, NativeGraph)}
    described = describe(
        servable.name,
        servable.version,
        lookups,
        servable.signatures,
        native_graphs,
        others=others,
        labels=servable.labels,
        has_hot_rows=has_hot_rows,
        strict_shapes=strict_shapes,
    )
    not_run = {name: other.reason or _NEEDS_TENSORFLOW for name, other in others.items() if name != INIT_SIGNATURE}
    native: CompiledServable | None = None
    try:
        compiled = _native.Servable(*described.arguments, clusters, pager, batcher, described.openers)
        native = CompiledServable(servable.name, compiled, described, earlier)
        # The core may fail to open a graph that the description names.
        not_run |= compiled.closed_graphs()
    except (ValueError, OSError) as error:
        # A version that the native core can not compile is a fault of the server. It costs speed and no answers,
        # because the control servers answer for the version.
        not_run = dict.fromkeys(runnable(servable.signatures), f"it can not compile the version: {error}")
    servable = replace(servable, native=native, not_run=not_run)
    if not_run and not servable.is_loading:
        level = logging.WARNING if servable.can_not_run else logging.INFO
        logger.log(level, "the native core does not run signatures", extra=names | {"signatures": not_run})
    return servable


# A model's name, its versions, its labels, the fraction of its requests that are logged, and why no version answers.
Route = tuple[str, list[tuple[int, "_native.Servable | None"]], dict[str, int], float, str]


class TakesRoutes(Protocol):
    """The receiver of the routes of all models: the native core's server, or an object of a test."""

    def change_routes(self, models: Sequence[Route], removed: Sequence[str]) -> None: ...


class RoutePublisher:
    """The registry's callback that sends routes to the core. Concurrency: one caller at a time; attach by any thread.

    Args:
      recorders: the request recorders, by model; the core draws the requests to record.
    """

    def __init__(self, recorders: Mapping[str, Recorder]) -> None:
        self.recorders = recorders
        self._lock = threading.Lock()
        self._routes: dict[str, Route] = {}
        self._server: TakesRoutes | None = None

    def __call__(self, models: Sequence[ModelRoutes], removed: Collection[str]) -> None:
        """Publishes to the native core the versions of some models that requests can lease now; removes other models.

        Only changed models are sent: sending all of a thousand models after each load would take longer than the loads.
        """
        changed: list[Route] = [
            (
                model.model,
                [(one.version, _compiled(one.native)) for one in model.servables],
                dict(model.labels),
                self._log_rate(model.model),
                model.problem,
            )
            for model in models
        ]
        with self._lock:
            self._routes.update({route[0]: route for route in changed})
            gone = [name for name in removed if self._routes.pop(name, None) is not None]
            if self._server is not None and (changed or gone):
                self._server.change_routes(changed, gone)

    def _log_rate(self, model: str) -> float:
        recorder = self.recorders.get(model)
        return 0.0 if recorder is None else recorder.rate

    def attach(self, server: TakesRoutes) -> None:
        with self._lock:
            self._server = server
            server.change_routes(list(self._routes.values()), [])

    def detach(self) -> None:
        """Withdraws all routes from the native core's server; called after the server has answered its last request."""
        with self._lock:
            if self._server is not None:
                self._server.change_routes([], list(self._routes))
            self._server, self._routes = None, {}


def _compiled(native: object) -> _native.Servable | None:
    return native.compiled if isinstance(native, CompiledServable) else None
