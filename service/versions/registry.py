"""Keeps the server's models, the state of each of their versions, and the leases of requests on them.

Readers take an immutable snapshot and never wait; writers are the threads that load and unload. States and their order
are TensorFlow Serving's.

Source: tensorflow_serving/apis/get_model_status.proto, tensorflow_serving/core/servable_state.h (9d981c5).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from service.errors import LabelNotFound, ModelNotFound, NotReady, ServiceError, VersionNotFound, did_you_mean, listed
from service.types import ModelRef, State, VersionStatus
from service.versions.servable import Holder, LoadedServable, Servable

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ModelState:
    """The state of one model in the registry's snapshot; available: version -> holder, latest first.

    early: the lookups that a version answers while it loads; None if no version does, or a version is available.
    spoilt: versions whose load failed while their lookups were answered.
    is_configured: requests may reach the model; a model that is being added or removed shows in status only.
    is_tried: a version was AVAILABLE once, or failed to load, or the model's folder had none to load.
    notes: version -> one line on what an operator should know of its folder.
    """

    statuses: Mapping[int, VersionStatus] = field(default_factory=dict)
    available: Mapping[int, Holder] = field(default_factory=dict)
    early: Holder | None = None
    spoilt: frozenset[int] = frozenset()
    problem: str = ""
    is_configured: bool = True
    is_tried: bool = False
    labels: Mapping[str, int] = field(default_factory=dict)
    notes: Mapping[int, str] = field(default_factory=dict)

    @property
    def is_in_use(self) -> bool:
        return self.is_configured or any(status.state is not State.END for status in self.statuses.values())

    def answering(self) -> list[Holder]:
        """Returns the holders of those servables of the model that requests can reach.

        These are the holders of AVAILABLE versions, latest first; if there are none, the holder of a version that
        answers lookups while it loads.
        """
        return list(self.available.values()) or ([self.early] if self.early is not None else [])

    def why_none(self) -> str:
        """Returns one line that says why the model has no AVAILABLE version; "" if it has one."""
        if self.available:
            return ""
        # Versions that were unloaded without an error are skipped: their status does not explain why the model can not
        # answer.
        told = [s for s in self.statuses.values() if (s.state, s.code) != (State.END, "OK")]
        if self.problem and not told:
            return self.problem
        newest = max(told or self.statuses.values(), key=lambda status: status.version, default=None)
        if newest is None:
            return "its folder has not been read yet"
        if self.early is not None:
            return f"version {self.early.servable.version} is LOADING, and only its lookups are answered"
        return f"version {newest.version} is {newest.state.name}" + (f": {newest.message}" if newest.message else "")


# The state of a model that the registry does not have.
_UNKNOWN = ModelState(is_configured=False)

_LEGAL: Mapping[State, frozenset[State]] = {
    State.UNKNOWN: frozenset({State.START}),
    # A version may go from START straight to END: it was withdrawn before its load began.
    State.START: frozenset({State.LOADING, State.END}),
    State.LOADING: frozenset({State.AVAILABLE, State.END}),
    State.AVAILABLE: frozenset({State.UNLOADING}),
    State.UNLOADING: frozenset({State.END}),
    # A version in state END, whether it failed or was removed, may be loaded again.
    State.END: frozenset({State.START}),
}


class ModelRoutes(NamedTuple):
    """The servables that requests for one configured model can reach, latest version first, and the model's labels.

    While no version is AVAILABLE, `servables` holds the lookups of the version that still loads, if there is one, and
    `problem` says why none is; else it is "".
    """

    model: str
    servables: Sequence[Servable]
    labels: Mapping[str, int]
    problem: str = ""


# Type of a function that changes the routes of some models at once, and removes those of others, which it gets by name;
# called in the order of changes, must not block.
Publish = Callable[[Sequence[ModelRoutes], Collection[str]], None]


class Registry:
    """The registry of all models and versions of this server.

    Concurrency: any thread; each model has one writer.

    Args:
      on_transition: called with (model, status) after each change of state; UNKNOWN: status does not show a failed
        version any more.
      publish: called with the changed routes after a change: before AVAILABLE is reported, and before an unload waits.
      on_problem: called after a model's problem was noted, which may change readiness without a change of state.
      is_strict: readiness needs every configured model, and not only one.
    """

    def __init__(
        self,
        on_transition: Callable[[str, VersionStatus], None],
        publish: Publish | None = None,
        *,
        on_problem: Callable[[], None] = lambda: None,
        is_strict: bool = False,
    ) -> None:
        self._on_transition = on_transition
        self._publish_routes = publish
        self._on_problem = on_problem
        self._is_strict = is_strict
        self._snapshot: Mapping[str, ModelState] = {}
        self._write = threading.Lock()
        self._is_draining = False
        # Function that returns why a model can not answer although a version is AVAILABLE (the cluster of a remote
        # table is down), else "".
        self.problem_beside: Callable[[str], str] = lambda model: ""
        # Why this server shall get no requests whatever its models can answer; "": nothing is wrong.
        self.fault = ""

    def lease(self, ref: ModelRef, *, may_load: bool = False) -> Holder:
        """Returns a lease on the servable that a model reference names: `with registry.lease(ref) as servable`.

        Args:
          may_load: a version that still loads, whose lookups are shown, is enough if no version is AVAILABLE.

        Raises:
          ModelNotFound, VersionNotFound, LabelNotFound: the server has no such model, version or label.
          NotReady: the model is configured but no version of it can answer.
        """
        while True:
            holder = self._find(ref, may_load)
            if holder.acquire():
                return holder

    def _find(self, ref: ModelRef, may_load: bool) -> Holder:
        model = self._model(ref.name)
        if ref.label is not None:
            # The label is checked before the model: TensorFlow Serving reports an unknown label even if the model is
            # unknown.
            version = model.labels.get(ref.label)
            if version is None:
                raise LabelNotFound(f"Unrecognized servable version label: {ref.label}{_near_labels(model, ref.label)}")
            ref = ModelRef(ref.name, version)
        if not model.is_configured:
            raise ModelNotFound(f"Servable not found for request: {_describe(ref)}")
        early = model.early
        if may_load and early is not None and ref.version in (None, early.servable.version):
            return early
        if ref.version is not None:
            holder = model.available.get(ref.version)
            if holder is None:
                raise VersionNotFound(f"Servable not found for request: {_describe(ref)}{_served(model)}")
            return holder
        for holder in model.available.values():
            return holder
        raise NotReady(f'Model "{ref.name}" is not ready: {self.problem(ref.name)}')

    def _model(self, name: str) -> ModelState:
        return self._snapshot.get(name, _UNKNOWN)

    def models(self) -> list[str]:
        return sorted(name for name, model in self._snapshot.items() if model.is_configured)

    def models_in_use(self) -> list[str]:
        return [name for name, model in self._snapshot.items() if model.is_in_use]

    def is_configured(self, name: str) -> bool:
        return self._model(name).is_configured

    def loaded(self) -> list[LoadedServable]:
        return [
            LoadedServable(holder.servable, holder.num_requests)
            for _, model in sorted(self._snapshot.items())
            for _, holder in sorted(model.available.items())
        ]

    def holders(self) -> list[Holder]:
        return [holder for model in self._snapshot.values() for holder in model.available.values()]

    def replace(self, holder: Holder, servable: Servable) -> Holder | None:
        """Publishes a servable of the same version with changed rows; new requests lease it in place of the old one.

        Returns:
          The new holder; None where the version is being unloaded, or has another holder already.
        """
        with self._write:
            if self._model(servable.name).available.get(servable.version) is not holder:
                return None
            new = Holder(servable, holder)
            self._swap(new)
        # The old holder is retired only after the new one is published: a request that can not lease the old one looks
        # again, and must find the new one.
        holder.retire()
        return new

    def labels(self, name: str) -> Mapping[str, int]:
        return self._model(name).labels

    def is_available(self, name: str, version: int | None = None) -> bool:
        """Says whether a version of a model (None: any version) is AVAILABLE, even before requests can reach it."""
        available = self._model(name).available
        return bool(available) if version is None else version in available

    def statuses(self, name: str, version: int | None = None) -> list[VersionStatus]:
        """Returns a model's statuses, newest first. Raises ModelNotFound, or VersionNotFound, whose text says why."""
        found = self.all_statuses(name)
        if version is None:
            if not found:
                if not self.is_configured(name):
                    raise ModelNotFound(f"Could not find any versions of model {name}")
                problem = self.noted_problem(name)
                raise VersionNotFound(f"Could not find any versions of model {name}" + (problem and f": {problem}"))
            return found
        found = [status for status in found if status.version == version]
        if not found:
            raise VersionNotFound(f"Could not find version {version} of model {name}")
        return found

    def all_statuses(self, name: str) -> list[VersionStatus]:
        return [status for _, status in sorted(self._model(name).statuses.items(), reverse=True)]

    def problem(self, name: str) -> str:
        model = self._snapshot[name]
        return self.problem_beside(name) if model.available else model.why_none()

    def noted_problem(self, name: str) -> str:
        return self._model(name).problem

    @property
    def is_ready(self) -> bool:
        """Says whether a load balancer shall send requests to this server.

        Every configured model must have been tried, and one of them must have an AVAILABLE version whose remote tables
        can be read. Under is_strict every configured model must have one. A server that drains, or that has a fault of
        its own, is not ready.
        """
        configured = {name: model for name, model in self._snapshot.items() if model.is_configured}
        if self._is_draining or self.fault or not configured:
            return False
        can_answer = [bool(model.available) and not self.problem_beside(name) for name, model in configured.items()]
        if self._is_strict:
            return all(can_answer)
        # The server is ready once each model has loaded a version, has failed to, or has none to load, and at least one
        # can answer: a rolling update would else replace servers that have loaded a model by servers that have not.
        return all(model.is_tried for model in configured.values()) and any(can_answer)

    @property
    def is_draining(self) -> bool:
        return self._is_draining

    def drain(self) -> None:
        """Makes Registry.is_ready False for good. Requests are still answered, until the HTTP and gRPC servers stop."""
        self._is_draining = True

    def add_model(self, name: str, *, is_configured: bool = True) -> None:
        """Adds a model to the registry; until a version is published, requests for the model get the error NotReady.

        Args:
          is_configured: False keeps the model from requests until configure() names the model.
        """
        with self._write:
            old = self._snapshot.get(name, ModelState())
            # Versions of a removed model with the same name that have not ended are kept in the new entry, because the
            # removed model's watcher is about to unload them.
            live = {v: s for v, s in old.statuses.items() if s.state is not State.END}
            is_tried = bool(old.available)
            new = ModelState(live, old.available, old.early, old.spoilt, is_configured=is_configured, is_tried=is_tried)
            self._snapshot = {**self._snapshot, name: new}
            self._tell_routes(name)
        self._told_no_more(name, (s for v, s in old.statuses.items() if v not in live))

    def configure(self, labels: Mapping[str, Mapping[str, int]]) -> None:
        """Sets which models requests can reach, and their labels, in one step for all requests.

        Requests can not reach other models any more, whose versions are still reported in status.
        """
        with self._write:
            self._snapshot = {
                name: replace(model, is_configured=name in labels, labels=labels.get(name, {}))
                for name, model in self._snapshot.items()
            }
            self._tell_routes(*self._snapshot)

    def drop(self, names: Iterable[str]) -> None:
        """Removes models from status, except models that are configured or have a version that is not in state END."""
        with self._write:
            dropped = {
                name: model
                for name in names
                if (model := self._snapshot.get(name))
                and not model.is_configured
                and all(status.state is State.END for status in model.statuses.values())
            }
            self._snapshot = {name: model for name, model in self._snapshot.items() if name not in dropped}
        for name, model in dropped.items():
            self._told_no_more(name, model.statuses.values())

    def note_problem(self, name: str, problem: str) -> None:
        with self._write:
            if model := self._snapshot.get(name):
                new = replace(model, problem=problem, is_tried=model.is_tried or bool(problem))
                self._snapshot = {**self._snapshot, name: new}
                if not model.available:
                    self._tell_routes(name)
        self._on_problem()

    def note_versions(self, name: str, notes: Mapping[int, str]) -> None:
        with self._write:
            if model := self._snapshot.get(name):
                self._snapshot = {**self._snapshot, name: replace(model, notes=dict(notes))}

    def notes(self, name: str) -> Mapping[int, str]:
        return self._model(name).notes

    def announce(self, name: str, *versions: int) -> None:
        """Sets the state START of found versions that wait for their loads, unless they are in START already."""
        known = self._model(name).statuses
        new = (version for version in versions if version not in known or known[version].state is not State.START)
        self._move(name, *(VersionStatus(version, State.START) for version in new))

    def withdraw(self, name: str, *versions: int) -> None:
        self._move(name, *(VersionStatus(version, State.END) for version in versions))

    def start(self, name: str, version: int) -> None:
        self.announce(name, version)
        self._move(name, VersionStatus(version, State.LOADING))

    def show_lookups(self, servable: Servable) -> bool:
        """Lets requests use the lookups of a LOADING version, if no version is AVAILABLE; returns whether they may.

        Returns:
          Whether the lookups are answered now. They are not if a version of the model is AVAILABLE, if this version is
          not LOADING any more, or if an earlier load of this version failed: lookups would come and go with each load.
        """
        name, version = servable.name, servable.version
        with self._write:
            model = self._model(name)
            status = model.statuses.get(version)
            if status is None or status.state is not State.LOADING:
                return False
            if model.available or version in model.spoilt:
                return False
            self._snapshot = {**self._snapshot, name: replace(model, early=Holder(servable))}
            self._tell_routes(name)
        return True

    def shows_lookups(self, name: str) -> bool:
        return self._model(name).early is not None

    def publish(self, servable: Servable) -> None:
        # `early`, the holder that answers lookups during the load, is read without a lock: after the load, only this
        # thread changes it.
        early = self._snapshot[servable.name].early
        self._move(servable.name, VersionStatus(servable.version, State.AVAILABLE), holder=Holder(servable, early))
        if early is not None:
            early.retire()

    def fail(self, name: str, version: int, error: ServiceError, *, poll_s: float = 0.005) -> None:
        """Sets the state END of a version whose load failed; status shows the error until the next attempt.

        Blocks until no request uses the lookups that the version answered during the load.
        """
        self._hide_lookups(name, version, poll_s)
        self._move(name, VersionStatus(version, State.END, error.code, error.message))

    def _hide_lookups(self, name: str, version: int, poll_s: float) -> None:
        with self._write:
            model = self._snapshot[name]
            early = model.early
            if early is None or early.servable.version != version:
                return
            spoilt = model.spoilt | {version}
            self._snapshot = {**self._snapshot, name: replace(model, early=None, spoilt=spoilt)}
            self._tell_routes(name)
        _drain(early, poll_s)

    def damages(self, name: str) -> dict[int, str]:
        found = {v: holder.servable.files.look() for v, holder in self._model(name).available.items()}
        return {version: why for version, why in found.items() if why}

    def unload(self, name: str, version: int, *, because: ServiceError | None = None, poll_s: float = 0.005) -> None:
        """Makes a version unreachable for new requests, waits until no request uses it, and closes its servable.

        Args:
          because: the error that status shows for the version until the next attempt.
        """
        holder = self._move(name, VersionStatus(version, State.UNLOADING))
        assert holder is not None  # each AVAILABLE version has a holder, which counts its leases
        self._close(holder, poll_s)
        error = () if because is None else (because.code, because.message)
        self._move(name, VersionStatus(version, State.END, *error))

    def exchange(self, servable: Servable, *, poll_s: float = 0.005) -> None:
        """Publishes a servable in place of the AVAILABLE one of the same version, which it then closes.

        New requests use the new servable at once. Blocks until no request uses the old one. The state of the version
        stays AVAILABLE.
        """
        with self._write:
            old = self._snapshot[servable.name].available[servable.version]
            self._swap(Holder(servable))
        self._close(old, poll_s)

    def _close(self, holder: Holder, poll_s: float) -> None:
        _drain(holder, poll_s)
        try:
            holder.servable.close()
        except Exception:
            # No request reaches the version any more. If its state stayed UNLOADING, the model could not change again.
            extra = {"model": holder.servable.name, "version": holder.servable.version}
            logger.exception("a version could not be closed", extra=extra)

    def _swap(self, new: Holder) -> None:
        name, version = new.servable.name, new.servable.version
        model = self._snapshot[name]
        # The order of the entries is the order of the versions.
        available = {v: new if v == version else h for v, h in model.available.items()}
        self._snapshot = {**self._snapshot, name: replace(model, available=available)}
        self._tell_routes(name)

    def forget(self, name: str, *versions: int) -> None:
        """Removes the statuses of versions in state END, so that the model's statuses do not grow for ever."""
        with self._write:
            model = self._model(name)
            over = {v: s for v in versions if (s := model.statuses.get(v)) is not None and s.state is State.END}
            if not over:
                return
            statuses = {v: s for v, s in model.statuses.items() if v not in over}
            spoilt = model.spoilt - over.keys()
            self._snapshot = {**self._snapshot, name: replace(model, statuses=statuses, spoilt=spoilt)}
            if not model.available:
                self._tell_routes(name)
        self._told_no_more(name, over.values())

    def _tell_routes(self, *names: str) -> None:
        if self._publish_routes is None:
            return
        known = {name: model for name in names if (model := self._snapshot.get(name)) and model.is_configured}
        changed = [
            ModelRoutes(name, [held.servable for held in model.answering()], model.labels, model.why_none())
            for name, model in known.items()
        ]
        self._publish_routes(changed, {*names} - known.keys())

    def _told_no_more(self, name: str, statuses: Iterable[VersionStatus]) -> None:
        for status in statuses:
            if status.code != "OK":
                self._on_transition(name, VersionStatus(status.version, State.UNKNOWN))

    def _move(self, name: str, *changes: VersionStatus, holder: Holder | None = None) -> Holder | None:
        """Changes the states of versions; returns the holder that one of them had before.

        All versions change in one step, because a step copies the states of all versions of the model.

        Args:
          holder: of the version that becomes AVAILABLE, which is the only one then.
        """
        if not changes:
            return None
        with self._write:
            model = self._snapshot[name]
            for status in changes:
                old = model.statuses.get(status.version)
                before = old.state if old else State.UNKNOWN
                if status.state not in _LEGAL[before]:
                    raise ValueError(f"{name} version {status.version}: {before.name} to {status.state.name}")
            changed = {status.version: status for status in changes}
            taken_out = next((held for v in changed if (held := model.available.get(v)) is not None), None)
            available = model.available
            if taken_out is not None:
                available = {v: h for v, h in available.items() if v not in changed}
            if holder is not None:
                available = dict(sorted({**available, holder.servable.version: holder}.items(), reverse=True))
            # In the same step in which a version becomes AVAILABLE, the early holder, by which lookups reach a version
            # that still loads, is removed.
            early = None if available else model.early
            is_tried = model.is_tried or any(s.state is State.AVAILABLE or s.code != "OK" for s in changes)
            statuses = {**model.statuses, **changed}
            self._snapshot = {
                **self._snapshot,
                name: replace(model, statuses=statuses, available=available, early=early, is_tried=is_tried),
            }
            # While no version is AVAILABLE, each change of state changes the text that tells clients why.
            if not available or available is not model.available:
                self._tell_routes(name)
        for status in changes:
            self._on_transition(name, status)
        return taken_out


def _drain(holder: Holder, poll_s: float) -> None:
    holder.retire()
    while holder.num_leases:
        time.sleep(poll_s)


def _served(model: ModelState) -> str:
    return f"; versions served: {listed([str(version) for version in model.available])}" if model.available else ""


def _near_labels(model: ModelState, label: str) -> str:
    if not model.is_configured:
        return ""
    if not model.labels:
        return f"; no version has a label{_served(model)}"
    return did_you_mean(label, model.labels) or f"; labels: {listed(sorted(model.labels))}"


def _describe(ref: ModelRef) -> str:
    return f"Latest({ref.name})" if ref.version is None else f"Specific({ref.name}, {ref.version})"
