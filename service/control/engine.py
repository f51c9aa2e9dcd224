"""Gives HTTP and gRPC access to the models: leases servables, reads tables, shows versions, reloads lists of models."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

from service.control.request_context import Call, Finished, Observer, Subject, Tracing
from service.errors import (
    ConfigConflict,
    DeltaRefused,
    InvalidRequest,
    ModelNotFound,
    NotFound,
    NotReady,
    ServiceError,
    TableNotFound,
    Unimplemented,
)
from service.search.neighbor_indexes import Indexing
from service.search.searches import Searches
from service.types import (
    Array,
    ModelRef,
    SignatureSpec,
    TableInfo,
    VersionStatus,
)
from service.versions.counts import TableTraffic
from service.versions.deltas import RowOrigin, Upsert, UpsertReceipt
from service.versions.model_config import ModelConfig, Origin
from service.versions.neighbors import SIGNATURE, NeighborAnswer, NeighborLimits, NeighborQuery, SearchedTable
from service.versions.registry import Registry
from service.versions.servable import Servable, find_signature

# Types of the methods reload, set_label and pin of process.model_lists.ModelLists.
Reload = Callable[[Sequence[ModelConfig], float | None, Origin], None]
SetLabel = Callable[[str, str, int | None], None]
Pin = Callable[[str, int | None], None]
Change = TypeVar("Change")


class Comparisons(Protocol):
    """The interface of an object that compares two versions of a model, such as loading.version_diffs.

    Concurrency: any thread.
    """

    def of_request(self, model: str, old: int, new: int) -> Mapping[str, Any]: ...

    def rows_of_request(self, model: str, table: str, old: int, new: int, ids: Array) -> tuple[Array, bool]: ...


@dataclass(frozen=True, slots=True)
class ModelDescription:
    name: str
    version: int
    signatures: Mapping[str, SignatureSpec]

    def signature(self, name: str = "", fallback: str = "") -> SignatureSpec:
        return find_signature(self.signatures, name, fallback)


class TableRows(NamedTuple):
    """Rows of a table, [N, D] float32, and the model version that the table belongs to."""

    rows: Array
    version: int


class Engine:
    """The interface of HTTP and gRPC to all models of a registry. Concurrency: any thread.

    clock: of all deadlines; seconds, monotonic.
    """

    def __init__(
        self,
        registry: Registry,
        observer: Observer,
        clock: Callable[[], float] = time.monotonic,
        *,
        reload: Reload | None = None,
        set_label: SetLabel | None = None,
        pin: Pin | None = None,
        tracing: Tracing | None = None,
        on_damage: Callable[[str], None] = lambda model: None,
        compare: Comparisons | None = None,
        neighbor_limits: NeighborLimits | None = None,
        indexing: Indexing | None = None,
    ) -> None:
        self.searches = Searches(neighbor_limits or NeighborLimits(), clock, registry.lease, indexing)
        self._registry = registry
        self._reload = reload
        self._set_label, self._pin = set_label, pin
        self._compare = compare
        self._observer = observer
        self.clock = clock
        self.tracing = tracing
        self._on_damage = on_damage

    def reject(self, error: Exception, call: Call, *, model: str = "") -> None:
        """Counts a request that failed before its signature was bound; model: the request's, which may not exist."""
        self._finished(error, call, model)

    def answered(self, call: Call, *, model: str = "") -> None:
        self._finished(None, call, model)

    def _finished(self, error: Exception | None, call: Call, model: str) -> None:
        known = model if self._registry.is_configured(model) else ""
        subject = Subject(call.api, call.method, known, None, "")
        seconds = 0.0 if call.started_s is None else self.clock() - call.started_s
        self._observer.finished(Finished(subject, error, seconds, 0.0, 0, call.is_control))

    def describe(self, ref: ModelRef) -> ModelDescription:
        with self._registry.lease(ref) as servable:
            return ModelDescription(servable.name, servable.version, servable.signatures)

    def statuses(self, name: str, version: int | None = None) -> list[VersionStatus]:
        return self._registry.statuses(name, version)

    def reload(
        self, models: Sequence[ModelConfig], deadline_s: float | None = None, *, origin: Origin = "client"
    ) -> None:
        """Replaces the whole list of models, or changes nothing; blocks. Raises the errors of ModelLists.reload."""
        if self._reload is None:
            raise ConfigConflict("The models of this server are fixed.")
        self._reload(models, deadline_s, origin)

    def set_label(self, model: str, label: str, version: int | None) -> None:
        """Points a label of a model to a version, or removes the label for None; blocks.

        Raises:
          ModelNotFound: the server has no such model.
          LabelNotFound: the model has no such label to remove.
          ConfigConflict: the version is not AVAILABLE, or the list of models is fixed.
        """
        self._changing(model, self._set_label)(model, label, version)

    def pin(self, model: str, version: int | None) -> None:
        """Makes a model serve only one version, such as an older one; None serves the versions of its policy again.

        Blocks, but not for the load of the version and the unloads of the others.

        Raises:
          ModelNotFound, VersionNotFound: there is no such model, or no folder of the version.
          ConfigConflict: the model is not pinned, or the list of models is fixed.
        """
        self._changing(model, self._pin)(model, version)

    def _changing(self, model: str, change: Change | None) -> Change:
        if not self._registry.is_configured(model):
            raise ModelNotFound(f"Servable not found for request: Latest({model})")
        if change is None:
            raise ConfigConflict("The models of this server are fixed.")
        return change

    def models(self) -> list[str]:
        return self._registry.models()

    def all_statuses(self) -> dict[str, list[VersionStatus]]:
        result: dict[str, list[VersionStatus]] = {}
        for name in self.models():
            try:
                result[name] = self.statuses(name)
            except NotFound:
                result[name] = []
        return result

    def tables(self, ref: ModelRef) -> list[TableInfo]:
        with self._registry.lease(ref, may_load=True) as servable:
            return [servable.tables[name].info for name in sorted(servable.tables)]

    def table_rows(self, ref: ModelRef, table_name: str, ids: Array) -> TableRows:
        """Returns the rows of [N] int64 ids, and the version; raises TableNotFound, IdOutOfRange, DataLoss."""
        with self._registry.lease(ref, may_load=True) as servable:
            rows = _table(servable, table_name).rows(ids)
            self._check_damage(servable)
            return TableRows(rows, servable.version)

    def labels(self, ref: ModelRef, table_name: str, ids: Array) -> list[str | None]:
        """Returns the labels of [N] int64 ids, None for a row without one; [] if the table has no labels."""
        with self._registry.lease(ref, may_load=True) as servable:
            return servable.labels[table_name].of(ids.tolist()) if table_name in servable.labels else []

    def find_labels(self, ref: ModelRef, table_name: str, text: str, most: int) -> list[tuple[int, str]]:
        """Returns rows whose labels contain a text in either case, with their labels; those that begin with it first.

        Call it in a thread: in a table of millions of rows, it takes a second.

        Raises:
          TableNotFound: the version has no such table. InvalidRequest: the table has no labels.
        """
        with self._registry.lease(ref, may_load=True) as servable:
            _table(servable, table_name)
            if table_name not in servable.labels:
                raise InvalidRequest(
                    f'Table "{table_name}" has no labels: export the model with --labels {table_name}=FILE.'
                )
            labels = servable.labels[table_name]
            rows = labels.find(text, most)
            return [(row, label or "") for row, label in zip(rows, labels.of(rows), strict=True)]

    def row_origin(self, ref: ModelRef, table_name: str, row: int) -> RowOrigin | None:
        with self._registry.lease(ref) as servable:
            return None if servable.deltas is None else servable.deltas.origin(table_name, row)

    def traffic(self, ref: ModelRef, table_name: str, most: int) -> TableTraffic:
        """Returns the counts of lookups of a table, with the given number of its hottest rows.

        Raises TableNotFound, and Unimplemented if the table's ids are not sampled.
        """
        with self._registry.lease(ref) as servable:
            _table(servable, table_name)
            found = servable.traffic(table_name, most)
        if found is None:
            raise Unimplemented(
                f'The ids of table "{table_name}" are not sampled: that needs --hot_rows, the native core and a lookup '
                "that the core answers."
            )
        return found

    def neighbors(self, ref: ModelRef, table_name: str, query: NeighborQuery, call: Call) -> NeighborAnswer:
        """Returns the rows of a table that are nearest to a query's vectors, all of one version.

        Call it by searches.submit(): a search of a large table takes milliseconds or more.

        Raises:
          TableNotFound, InputMismatch, IdOutOfRange, IdsTooMany: the query does not fit the table.
          DeadlineExceeded, Unimplemented, DataLoss: the search could not be completed.
        """
        try:
            lease = self._registry.lease(ref, may_load=True)
        except ServiceError as error:
            self.reject(error, call, model=ref.name)
            raise
        # One lease is held for the whole search, so that the rows and their keys are read from the same version.
        with lease as servable:
            started_s = self.clock()
            rows, failure = 0, None
            try:
                found = self.searches.find(servable, _table(servable, table_name), query, call.deadline_s)
                self._check_damage(servable)
                rows = found.ids.shape[0]
                return found
            except Exception as error:
                failure = error
                raise
            finally:
                ended_s = self.clock()
                subject = Subject(call.api, call.method, servable.name, servable.version, SIGNATURE)
                seconds = ended_s - (started_s if call.started_s is None else call.started_s)
                self._observer.finished(Finished(subject, failure, seconds, ended_s - started_s, rows))

    def _check_damage(self, servable: Servable) -> None:
        if servable.files.is_damaged:
            self._on_damage(servable.name)
            raise servable.data_loss()

    def searches_by_signature(self, ref: ModelRef) -> bool:
        """Says whether a request for the signature "neighbors" is a search for nearest rows.

        It is not if the model's SavedModel has a signature of that name.
        """
        try:
            with self._registry.lease(ref, may_load=True) as servable:
                return SIGNATURE not in servable.signatures
        except ServiceError:
            # searches_by_signature() does not raise the lease's error: neighbors(), which is called next, leases the
            # model too, and raises the error to the client.
            return True

    def may_wait(self, ref: ModelRef, table_name: str) -> bool:
        """Says whether a table is remote, so that reading it waits for another machine; False for an unknown one."""
        try:
            with self._registry.lease(ref, may_load=True) as servable:
                return table_name in servable.remote_tables
        except ServiceError:
            # As in searches_by_signature(): table_rows(), which is called next, raises the error.
            return False

    def upsert(self, ref: ModelRef, table_name: str, upsert: Upsert) -> UpsertReceipt:
        """Changes rows of a table permanently; blocks until they are on disk or, for a remote table, in its cluster.

        Also raises as Deltas.upsert does.

        Raises:
          DeltaRefused: rows of this version can not be changed.
        """
        with self._registry.lease(ref) as servable:
            deltas = servable.deltas
        # The request's lease on the servable ends before the upsert: an upsert waits for a copy of the tables on which
        # no request has a lease.
        if deltas is None:
            raise DeltaRefused(f'Rows of version {servable.version} of model "{ref.name}" can not be changed.')
        return deltas.upsert(table_name, upsert)

    def diff(self, name: str, old: int, new: int) -> Mapping[str, Any]:
        """Compares two versions of a model, loaded or not; blocks for seconds. See docs/diff.md for the result.

        Raises:
          ModelNotFound, VersionNotFound: there is no such model, or no folder of a version.
          ArtifactError, DataLoss: a version's files can not be read.
          Unimplemented: this server can not compare versions.
        """
        return self._comparisons_of(name).of_request(name, old, new)

    def drift(self, name: str, table_name: str, old: int, new: int, ids: Array) -> tuple[Array, bool]:
        """Returns the cosine between each row of a table and the same row in an older version; blocks for seconds.

        The versions need not be loaded.

        Args:
          ids: [n] int64 ids of version `new`.

        Returns:
          [n] float64 cosines between the new and the old row; NaN for a row that the old version lacks, or that has no
          direction. And whether a rotation between the versions was undone before.

        Raises: as diff does, TableNotFound, and InvalidRequest if the versions differ in the numbers of a row.
        """
        return self._comparisons_of(name).rows_of_request(name, table_name, old, new, ids)

    def _comparisons_of(self, name: str) -> Comparisons:
        if not self._registry.is_configured(name):
            raise ModelNotFound(f"Could not find any versions of model {name}")
        if self._compare is None:
            raise Unimplemented("This server does not compare versions.")
        return self._compare

    @property
    def is_ready(self) -> bool:
        return self._registry.is_ready

    @property
    def is_draining(self) -> bool:
        return self._registry.is_draining

    @property
    def fault(self) -> str:
        return "the server is shutting down" if self.is_draining else self._registry.fault

    def require_ready(self, ref: ModelRef) -> str:
        """Returns a model's name if the model can answer requests; else raises the error that says why it can not.

        Raises:
          ModelNotFound, VersionNotFound, LabelNotFound: the server has no such model, version or label.
          NotReady: no version of the model can answer, or the server is shutting down.
        """
        name = self.describe(ref).name
        if self.is_draining:
            raise NotReady("The server is shutting down.")
        return name

    def problems(self) -> dict[str, str]:
        return {name: problem for name in self.models() if (problem := self._registry.problem(name))}


def _table(servable: Servable, name: str) -> SearchedTable:
    table = servable.tables.get(name)
    if table is None:
        known = ", ".join(sorted(servable.tables)) or "none"
        raise TableNotFound(f'Model "{servable.name}" has no table "{name}". Tables: {known}.')
    return table
