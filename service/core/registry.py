"""Which versions of which models exist, in what state, and who holds them.

Readers take an immutable snapshot and never wait; writers are the loader threads, one per model. States and their order
are TensorFlow Serving's.

Source: tensorflow_serving/apis/get_model_status.proto, tensorflow_serving/core/servable_state.h (9d981c5).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from service.core.errors import ModelNotFound, NotReady, ServiceError, VersionNotFound
from service.core.servable import Holder, Lease, Servable
from service.core.types import ModelRef, State, VersionStatus

_LEGAL: Mapping[State, frozenset[State]] = {
    State.UNKNOWN: frozenset({State.START}),
    State.START: frozenset({State.LOADING}),
    State.LOADING: frozenset({State.AVAILABLE, State.END}),
    State.AVAILABLE: frozenset({State.UNLOADING}),
    State.UNLOADING: frozenset({State.END}),
    # A version that ended, by failure or by removal, may be tried again.
    State.END: frozenset({State.START}),
}


@dataclass(frozen=True, slots=True)
class _Model:
    """One model in the snapshot; available is by version, latest first."""

    statuses: Mapping[int, VersionStatus]
    available: Mapping[int, Holder]
    problem: str = ""


class Registry:
    """All models and versions of this server.

    Concurrency: any thread; each model has one writer.

    Args:
      on_transition: called with (model, status) after each change of state.
    """

    def __init__(self, on_transition: Callable[[str, VersionStatus], None]) -> None:
        self._on_transition = on_transition
        self._snapshot: Mapping[str, _Model] = {}
        self._write = threading.Lock()
        self._is_draining = False

    def lease(self, ref: ModelRef) -> Lease:
        """Holds the servable that a reference means.

        Raises:
          ModelNotFound, VersionNotFound: not served here.
          NotReady: the model is configured but no version of it can answer.
        """
        while True:
            holder = self._find(ref)
            if holder.acquire():
                return Lease(holder)

    def _find(self, ref: ModelRef) -> Holder:
        model = self._snapshot.get(ref.name)
        if model is None:
            raise ModelNotFound(f"Servable not found for request: {_describe(ref)}")
        if ref.version is not None:
            holder = model.available.get(ref.version)
            if holder is None:
                raise VersionNotFound(f"Servable not found for request: {_describe(ref)}")
            return holder
        for holder in model.available.values():
            return holder
        raise NotReady(f'Model "{ref.name}" is not ready: {self.problem(ref.name)}')

    def models(self) -> list[str]:
        """Names of the configured models."""
        return sorted(self._snapshot)

    def statuses(self, name: str, version: int | None = None) -> list[VersionStatus]:
        """Returns the statuses of a model's versions, newest first; raises ModelNotFound or VersionNotFound."""
        model = self._snapshot.get(name)
        if model is None or (version is None and not model.statuses):
            raise ModelNotFound(f"Could not find any versions of model {name}")
        if version is None:
            return [model.statuses[v] for v in sorted(model.statuses, reverse=True)]
        if version not in model.statuses:
            raise VersionNotFound(f"Could not find version {version} of model {name}")
        return [model.statuses[version]]

    def problem(self, name: str) -> str:
        """Says in one line why a model has no version to answer with; "" when it has one."""
        model = self._snapshot[name]
        if model.available:
            return ""
        if model.statuses:
            newest = model.statuses[max(model.statuses)]
            return f"version {newest.version} is {newest.state.name}" + (
                f": {newest.message}" if newest.message else ""
            )
        return model.problem or "its folder has not been looked at yet"

    @property
    def is_ready(self) -> bool:
        """Whether every configured model has a version that answers, and the server is not draining."""
        snapshot = self._snapshot
        return bool(snapshot) and not self._is_draining and all(m.available for m in snapshot.values())

    def drain(self) -> None:
        """Makes readiness fail for good; requests are still answered, for the transports decide when to stop."""
        self._is_draining = True

    def add_model(self, name: str) -> None:
        """Announces a model; until a version is published requests for it get NotReady."""
        with self._write:
            self._snapshot = {**self._snapshot, name: _Model({}, {})}

    def note_problem(self, name: str, problem: str) -> None:
        """Keeps why a model has no versions at all, for readiness and errors."""
        with self._write:
            self._snapshot = {**self._snapshot, name: replace(self._snapshot[name], problem=problem)}

    def start(self, name: str, version: int) -> None:
        """A version was found and is about to load."""
        self._move(name, VersionStatus(version, State.START))
        self._move(name, VersionStatus(version, State.LOADING))

    def publish(self, servable: Servable) -> None:
        """Swaps a loaded servable in; AVAILABLE is reported after it can be leased."""
        self._move(servable.name, VersionStatus(servable.version, State.AVAILABLE), Holder(servable))

    def fail(self, name: str, version: int, error: ServiceError) -> None:
        """A load ended in an error, which status shows until the next attempt."""
        self._move(name, VersionStatus(version, State.END, error.code, error.message))

    def unload(self, name: str, version: int, *, poll_s: float = 0.005) -> None:
        """Takes a version out, waits until nobody holds it, and closes it. Blocks."""
        holder = self._snapshot[name].available[version]
        self._move(name, VersionStatus(version, State.UNLOADING))
        holder.retire()
        while holder.num_leases:
            time.sleep(poll_s)
        holder.servable.close()
        self._move(name, VersionStatus(version, State.END))

    def forget(self, name: str, version: int) -> None:
        """Drops the status of a version that ended, so that status does not grow for ever."""
        with self._write:
            model = self._snapshot[name]
            statuses = {v: s for v, s in model.statuses.items() if v != version or s.state is not State.END}
            self._snapshot = {**self._snapshot, name: replace(model, statuses=statuses)}

    def _move(self, name: str, status: VersionStatus, holder: Holder | None = None) -> None:
        with self._write:
            model = self._snapshot[name]
            old = model.statuses.get(status.version)
            before = old.state if old else State.UNKNOWN
            if status.state not in _LEGAL[before]:
                raise ValueError(f"{name} version {status.version}: {before.name} to {status.state.name}")
            available = {v: h for v, h in model.available.items() if v != status.version}
            if holder is not None:
                available = dict(sorted({**available, status.version: holder}.items(), reverse=True))
            statuses = {**model.statuses, status.version: status}
            self._snapshot = {**self._snapshot, name: replace(model, statuses=statuses, available=available)}
        self._on_transition(name, status)


def _describe(ref: ModelRef) -> str:
    return f"Latest({ref.name})" if ref.version is None else f"Specific({ref.name}, {ref.version})"
