"""Wraps the engine with checks of rights: a caller without any right on a model is told that there is no such model.

All routes and methods get this object in place of the engine, so none of them has to check rights or can forget to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from service.access.callers import Grant, Right
from service.engine.admission import Admission
from service.engine.call import Call
from service.engine.deltas import RowOrigin, Upsert, UpsertReceipt
from service.engine.engine import Engine, ModelDescription, TableRows
from service.engine.hot_rows import TableTraffic
from service.engine.model_config import ModelConfig, Origin
from service.engine.neighbors import NeighborAnswer, NeighborQuery
from service.engine.searches import Searches
from service.engine.tracing import Tracing
from service.errors import PermissionDenied, ServiceError
from service.types import Array, ModelRef, TableInfo, VersionStatus


class GuardedEngine(Engine):
    """An Engine that checks the current caller's rights before it reads or changes a model. Concurrency: any thread.

    Requests for a model on which the caller has no right go to an engine without models: they get the same texts,
    counts and codes as requests for a model that does not exist. A caller with some right on the model, but not the one
    that a method needs, gets PermissionDenied.

    Args:
      engine: the engine with the models.
      absent: an engine without models.
      grant: returns the grant of the current caller.
    """

    # Engine.__init__ is not called on purpose: an Engine method that this class does not override then fails for lack
    # of attributes, and can not skip the check of rights.
    def __init__(self, engine: Engine, absent: Engine, grant: Callable[[], Grant]) -> None:
        self._engine = engine
        self._absent = absent
        self._grant = grant

    def of(self, grant: Grant) -> GuardedEngine:
        """Returns an engine that checks the rights of the given caller, not those of the current request's caller."""
        return GuardedEngine(self._engine, self._absent, lambda: grant)

    def _for(self, model: str, right: Right) -> Engine:
        grant = self._grant()
        rights = grant.rights(model)
        if right in rights:
            return self._engine
        if not rights:
            return self._absent
        raise PermissionDenied(f'Caller "{grant.name}" lacks the right "{right}" on model "{model}".')

    @property
    def clock(self) -> Callable[[], float]:
        """Returns the clock that all deadlines refer to: seconds, monotonic."""
        return self._engine.clock

    @property
    def is_ready(self) -> bool:
        """Says whether the server is ready, without a check of rights: load balancers probe without credentials."""
        return self._engine.is_ready

    @property
    def is_draining(self) -> bool:
        """Says whether the server is shutting down, without a check of rights."""
        return self._engine.is_draining

    @property
    def fault(self) -> str:
        """Why this server shall get no requests, without a check of rights."""
        return self._engine.fault

    @property
    def admission(self) -> Admission:  # type: ignore[override]
        """The admission control of the whole server, which limits the requests in flight."""
        return self._engine.admission

    @property
    def tracing(self) -> Tracing | None:
        """The object that makes trace spans for the whole server's requests; None: requests are not traced."""
        return self._engine.tracing

    def is_model(self, name: str) -> bool:
        """Says whether a model of this name is configured and the caller has a right on it."""
        return bool(self._grant().rights(name)) and self._engine.is_model(name)

    def share_of(self, name: str) -> str:
        """Returns the model name under which a request's bytes are counted: "" if the caller can not see the model."""
        return self._engine.share_of(name) if self._grant().rights(name) else ""

    def reject(self, error: ServiceError, call: Call, *, model: str = "") -> None:
        """Calls the wrapped engine's reject, which counts a request that failed before its signature was found.

        If the caller can not see the model, the request is counted as one for an unknown model.
        """
        (self._engine if self._grant().rights(model) else self._absent).reject(error, call, model=model)

    def describe(self, ref: ModelRef) -> ModelDescription:
        """Returns a servable's signatures; the caller needs the right "metadata" on the model."""
        return self._for(ref.name, "metadata").describe(ref)

    def require_ready(self, ref: ModelRef) -> str:
        """Returns a model's name if it can answer; the caller needs the right "metadata" on the model."""
        return self._for(ref.name, "metadata").require_ready(ref)

    def statuses(self, name: str, version: int | None = None) -> list[VersionStatus]:
        """Returns the states of a model's versions; the caller needs the right "metadata" on the model."""
        return self._for(name, "metadata").statuses(name, version)

    def tables(self, ref: ModelRef) -> list[TableInfo]:
        """Returns the descriptions of a servable's tables; the caller needs the right "metadata" on the model."""
        return self._for(ref.name, "metadata").tables(ref)

    def table_rows(self, ref: ModelRef, table_name: str, ids: Array) -> TableRows:
        """Returns rows of a table by their ids; the caller needs the right "predict" on the model."""
        return self._for(ref.name, "predict").table_rows(ref, table_name, ids)

    def labels(self, ref: ModelRef, table_name: str, ids: Array) -> list[str | None]:
        """Returns the labels of rows of a table; the caller needs the right "predict" on the model."""
        return self._for(ref.name, "predict").labels(ref, table_name, ids)

    def find_labels(self, ref: ModelRef, table_name: str, text: str, most: int) -> list[tuple[int, str]]:
        """Returns rows whose labels contain a text; the caller needs the right "predict" on the model."""
        return self._for(ref.name, "predict").find_labels(ref, table_name, text, most)

    def row_origin(self, ref: ModelRef, table_name: str, row: int) -> RowOrigin | None:
        """Returns the delta that wrote a row last, None if no delta did; for callers with the right "predict" on the
        model.
        """
        return self._for(ref.name, "predict").row_origin(ref, table_name, row)

    def traffic(self, ref: ModelRef, table_name: str, most: int) -> TableTraffic:
        """Returns a table's counts of lookups and hottest rows; the caller needs the right "metadata" on the model."""
        return self._for(ref.name, "metadata").traffic(ref, table_name, most)

    def neighbors(self, ref: ModelRef, table_name: str, query: NeighborQuery, call: Call) -> NeighborAnswer:
        """Searches a table for nearest rows; the caller needs the right "predict" on the model, because a search reads
        rows.
        """
        try:
            engine = self._for(ref.name, "predict")
        except PermissionDenied as error:
            self._engine.reject(error, call, model=ref.name)
            raise
        return engine.neighbors(ref, table_name, query, call)

    def searches_by_signature(self, ref: ModelRef) -> bool:
        """Says whether requests for a model's signature "neighbors" are searches; also says yes for a model that the
        caller may not see.
        """
        return not self._grant().rights(ref.name) or self._engine.searches_by_signature(ref)

    @property
    def searches(self) -> Searches:  # type: ignore[override]
        """The object that runs all of the server's searches for nearest rows."""
        return self._engine.searches

    def may_wait(self, ref: ModelRef, table_name: str) -> bool:
        """Says whether reads of a table wait for other machines.

        No right is checked: the result only chooses the thread for a read.
        """
        return self._engine.may_wait(ref, table_name)

    def reload(
        self, models: Sequence[ModelConfig], deadline_s: float | None = None, *, origin: Origin = "client"
    ) -> None:
        """Replaces the list of models; the caller needs the right "admin" on all models, and may name any folder."""
        self._grant().require_everywhere("admin")
        self._engine.reload(models, deadline_s, origin="admin" if origin == "client" else origin)

    def set_label(self, model: str, label: str, version: int | None) -> None:
        """Points a label of a model to a version, or removes it, for callers with the right "admin" on the model."""
        self._for(model, "admin").set_label(model, label, version)

    def pin(self, model: str, version: int | None) -> None:
        """Makes a model serve one version only, or (None) the listed versions again, for callers with the right "admin"
        on the model.
        """
        self._for(model, "admin").pin(model, version)

    def models(self) -> list[str]:
        """Returns the names of the configured models on which the caller has the right "metadata", sorted."""
        grant = self._grant()
        return [name for name in self._engine.models() if "metadata" in grant.rights(name)]

    def all_statuses(self) -> dict[str, list[VersionStatus]]:
        """Returns model -> the states of its versions; only models on which the caller has the right "metadata"."""
        seen = set(self.models())
        return {name: statuses for name, statuses in self._engine.all_statuses().items() if name in seen}

    def problems(self) -> dict[str, str]:
        """Returns model -> why the model can not answer; only models on which the caller has the right "metadata"."""
        seen = set(self.models())
        return {name: problem for name, problem in self._engine.problems().items() if name in seen}

    def diff(self, name: str, old: int, new: int) -> Mapping[str, Any]:
        """Compares two versions of a model, for callers with the right "admin": the comparison reads whole tables."""
        return self._for(name, "admin").diff(name, old, new)

    def drift(self, name: str, table_name: str, old: int, new: int, ids: Array) -> tuple[Array, bool]:
        """Returns each row's cosine to the same row of an older version; the caller needs the right "predict"."""
        return self._for(name, "predict").drift(name, table_name, old, new, ids)

    def upsert(self, ref: ModelRef, table_name: str, upsert: Upsert) -> UpsertReceipt:
        """Changes rows of a table, and returns the receipt; the caller needs the right "admin" on the model."""
        return self._for(ref.name, "admin").upsert(ref, table_name, upsert)
