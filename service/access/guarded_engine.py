"""Wraps the engine with checks of rights: a caller without any right on a model is told that there is no such model.

All routes and methods get this object in place of the engine, so none of them has to check rights or can forget to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from service.access.callers import Grant, Right
from service.control.engine import Engine
from service.control.request_context import Call
from service.errors import PermissionDenied
from service.types import ModelRef, VersionStatus
from service.versions.model_config import ModelConfig, Origin

# The right on a model that a caller needs for each method of Engine whose first argument names the model. `diff` needs
# "admin", because it reads whole tables.
RIGHT_OF: Mapping[str, Right] = {
    "describe": "metadata",
    "require_ready": "metadata",
    "statuses": "metadata",
    "tables": "metadata",
    "traffic": "metadata",
    "drift": "predict",
    "find_labels": "predict",
    "labels": "predict",
    "neighbors": "predict",
    "row_origin": "predict",
    "table_rows": "predict",
    "diff": "admin",
    "pin": "admin",
    "set_label": "admin",
    "upsert": "admin",
}
# What needs no right, because it says nothing about a model. `may_wait` only chooses the thread for a read.
OPEN = ("clock", "fault", "is_draining", "is_ready", "may_wait", "searches", "tracing")


class GuardedEngine(Engine):
    """An Engine that checks the current caller's rights before it reads or changes a model. Concurrency: any thread.

    Requests for a model on which the caller has no right go to an engine without models: they get the same texts,
    counts and codes as requests for a model that does not exist. A caller with some right on the model, but not the one
    that a method needs, gets PermissionDenied.
    """

    # Engine.__init__ is not called on purpose: an Engine method that this class does not override then fails for lack
    # of attributes, and can not skip the check of rights.
    def __init__(self, engine: Engine, absent: Engine, grant: Callable[[], Grant]) -> None:
        self._engine = engine
        self._absent = absent
        self._grant = grant

    def _for(self, model: str, right: Right) -> Engine:
        grant = self._grant()
        rights = grant.rights(model)
        if right in rights:
            return self._engine
        if not rights:
            return self._absent
        raise PermissionDenied(f'Caller "{grant.name}" lacks the right "{right}" on model "{model}".')

    def reject(self, error: Exception, call: Call, *, model: str = "") -> None:
        """Counts a failed request; a model that the caller can not see counts as an unknown one."""
        (self._engine if self._grant().rights(model) else self._absent).reject(error, call, model=model)

    def answered(self, call: Call, *, model: str = "") -> None:
        (self._engine if self._grant().rights(model) else self._absent).answered(call, model=model)

    def searches_by_signature(self, ref: ModelRef) -> bool:
        """Says whether requests for a model's signature "neighbors" are searches; also says yes for a model that the
        caller may not see.
        """
        return not self._grant().rights(ref.name) or self._engine.searches_by_signature(ref)

    def reload(
        self, models: Sequence[ModelConfig], deadline_s: float | None = None, *, origin: Origin = "client"
    ) -> None:
        """Replaces the list of models; the caller needs the right "admin" on all models, and may name any folder."""
        self._grant().require_everywhere("admin")
        self._engine.reload(models, deadline_s, origin="admin" if origin == "client" else origin)

    def models(self) -> list[str]:
        grant = self._grant()
        return [name for name in self._engine.models() if "metadata" in grant.rights(name)]

    def all_statuses(self) -> dict[str, list[VersionStatus]]:
        seen = set(self.models())
        return {name: statuses for name, statuses in self._engine.all_statuses().items() if name in seen}

    def problems(self) -> dict[str, str]:
        seen = set(self.models())
        return {name: problem for name, problem in self._engine.problems().items() if name in seen}


def _checked(method: str, right: Right) -> Callable[..., Any]:
    def guarded(self: GuardedEngine, model: ModelRef | str, /, *args: Any, **options: Any) -> Any:
        name = model if isinstance(model, str) else model.name
        try:
            engine = self._for(name, right)
        except PermissionDenied as error:
            # Methods with a Call count their requests, so a refused one is counted here.
            for call in args:
                if isinstance(call, Call):
                    self._engine.reject(error, call, model=name)
            raise
        return getattr(engine, method)(model, *args, **options)

    return guarded


def _open(name: str) -> property:
    return property(lambda self: getattr(self._engine, name))


for _name, _right in RIGHT_OF.items():
    setattr(GuardedEngine, _name, _checked(_name, _right))
for _name in OPEN:
    setattr(GuardedEngine, _name, _open(_name))
