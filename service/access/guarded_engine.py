"""The engine as a caller sees it: what it may not see is not there.

Every route and method is given this in the engine's place, so none has to know of rights, and none can forget them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from service.access.callers import Grant, Right
from service.engine.admission import Admission
from service.engine.bound import Bound
from service.engine.call import Call
from service.engine.deltas import Upsert, UpsertReceipt
from service.engine.engine import Engine, ModelDescription, TableRows
from service.engine.model_config import ModelConfig
from service.engine.tracing import Tracing
from service.errors import PermissionDenied, ServiceError
from service.types import Array, ModelRef, TableInfo, VersionStatus


class GuardedEngine(Engine):
    """An engine for one caller at a time; see Engine for the methods. Concurrency: any thread.

    A model on which the caller has no right is answered by an engine that has no models: with the same words, counts
    and codes as one that does not exist. One that it sees but may not use so gives PermissionDenied.

    Args:
      engine: does the work.
      absent: the same without any model.
      grant: of the caller that asks now.
    """

    # Not Engine's own __init__: what is not overridden here must not work by chance.
    def __init__(self, engine: Engine, absent: Engine, grant: Callable[[], Grant]) -> None:
        self._engine = engine
        self._absent = absent
        self._grant = grant

    def of(self, grant: Grant) -> GuardedEngine:
        """Returns this engine for one caller for good."""
        return GuardedEngine(self._engine, self._absent, lambda: grant)

    def _for(self, model: str, right: Right) -> Engine:
        grant = self._grant()
        rights = grant.rights(model)
        if right in rights:
            return self._engine
        if not rights:
            return self._absent
        raise PermissionDenied(f'Caller "{grant.name}" has not the right "{right}" on model "{model}".')

    @property
    def clock(self) -> Callable[[], float]:
        """See Engine."""
        return self._engine.clock

    @property
    def is_ready(self) -> bool:
        """See Engine; of the whole server, for those who probe it are often nobody."""
        return self._engine.is_ready

    @property
    def admission(self) -> Admission:  # type: ignore[override]
        """See Engine; of the whole server."""
        return self._engine.admission

    @property
    def tracing(self) -> Tracing | None:
        """See Engine."""
        return self._engine.tracing

    def is_model(self, name: str) -> bool:
        """See Engine."""
        return bool(self._grant().rights(name)) and self._engine.is_model(name)

    def share_of(self, name: str) -> str:
        """See Engine."""
        return self._engine.share_of(name) if self._grant().rights(name) else ""

    def bind(self, ref: ModelRef, signature_name: str, call: Call, **options: Any) -> Bound:
        """See Engine: right "predict"."""
        try:
            engine = self._for(ref.name, "predict")
        except PermissionDenied as error:
            self._engine.reject(error, call, model=ref.name)
            raise
        return engine.bind(ref, signature_name, call, **options)

    def reject(self, error: ServiceError, call: Call, *, model: str = "") -> None:
        """See Engine."""
        (self._engine if self._grant().rights(model) else self._absent).reject(error, call, model=model)

    def describe(self, ref: ModelRef) -> ModelDescription:
        """See Engine: right "metadata"."""
        return self._for(ref.name, "metadata").describe(ref)

    def statuses(self, name: str, version: int | None = None) -> list[VersionStatus]:
        """See Engine: right "metadata"."""
        return self._for(name, "metadata").statuses(name, version)

    def tables(self, ref: ModelRef) -> list[TableInfo]:
        """See Engine: right "metadata"."""
        return self._for(ref.name, "metadata").tables(ref)

    def table_rows(self, ref: ModelRef, table_name: str, ids: Array) -> TableRows:
        """See Engine: right "predict"."""
        return self._for(ref.name, "predict").table_rows(ref, table_name, ids)

    def may_wait(self, ref: ModelRef, table_name: str) -> bool:
        """See Engine: needs no right, for it only chooses a thread; table_rows judges rights."""
        return self._engine.may_wait(ref, table_name)

    def reload(self, models: Sequence[ModelConfig], deadline_s: float | None = None) -> None:
        """See Engine: right "admin" on all models."""
        self._grant().require_everywhere("admin")
        self._engine.reload(models, deadline_s)

    def models(self) -> list[str]:
        """See Engine: those on which the caller has the right "metadata"."""
        grant = self._grant()
        return [name for name in self._engine.models() if "metadata" in grant.rights(name)]

    def all_statuses(self) -> dict[str, list[VersionStatus]]:
        """See Engine: of the same models."""
        seen = set(self.models())
        return {name: statuses for name, statuses in self._engine.all_statuses().items() if name in seen}

    def problems(self) -> dict[str, str]:
        """See Engine: of the same models."""
        seen = set(self.models())
        return {name: problem for name, problem in self._engine.problems().items() if name in seen}

    def upsert(self, ref: ModelRef, table_name: str, upsert: Upsert) -> UpsertReceipt:
        """See Engine: right "admin"."""
        return self._for(ref.name, "admin").upsert(ref, table_name, upsert)
