"""Keeps the models and versions of the server, the state of each version, and its leases.

Readers take an immutable snapshot and never wait; writers are the loader threads, one per model. States and their order
are TensorFlow Serving's.

Source: tensorflow_serving/apis/get_model_status.proto, tensorflow_serving/core/servable_state.h (9d981c5).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from service.engine.servable import Holder, Lease, LoadedServable, Servable
from service.errors import LabelNotFound, ModelNotFound, NotReady, ServiceError, VersionNotFound
from service.types import ModelRef, State, VersionStatus

_LEGAL: Mapping[State, frozenset[State]] = {
    State.UNKNOWN: frozenset({State.START}),
    # START may go straight to END: the version was withdrawn before its load began.
    State.START: frozenset({State.LOADING, State.END}),
    State.LOADING: frozenset({State.AVAILABLE, State.END}),
    State.AVAILABLE: frozenset({State.UNLOADING}),
    State.UNLOADING: frozenset({State.END}),
    # A version that ended, by failure or by removal, may be tried again.
    State.END: frozenset({State.START}),
}


class ModelRoutes(NamedTuple):
    """The routes of one configured model: its AVAILABLE versions, latest first, and its labels.

    While no version is AVAILABLE, `servables` holds the lookups of the version that still loads, if there is one.
    """

    model: str
    servables: Sequence[Servable]
    labels: Mapping[str, int]


# Says whether a request needs only the lookups of a version that still loads.
IsEnough = Callable[[Servable], bool]


def _is_never_enough(servable: Servable) -> bool:
    return False


# Replaces the routes of all models at one moment; called in the order of changes, must not wait.
Publish = Callable[[Sequence[ModelRoutes]], None]


@dataclass(frozen=True, slots=True)
class _Model:
    """One model in the snapshot; available is by version, latest first.

    early: the lookups that a version answers while it loads; None if no version does, or a version is available.
    spoilt: versions whose load failed while their lookups were answered.
    is_configured: requests may reach the model; a model that is being added or removed shows in status only.
    is_tried: a version was AVAILABLE once, or failed to load, or the model's folder had none to load.
    """

    statuses: Mapping[int, VersionStatus] = field(default_factory=dict)
    available: Mapping[int, Holder] = field(default_factory=dict)
    early: Holder | None = None
    spoilt: frozenset[int] = frozenset()
    problem: str = ""
    is_configured: bool = True
    is_tried: bool = False
    labels: Mapping[str, int] = field(default_factory=dict)


class Registry:
    """All models and versions of this server.

    Concurrency: any thread; each model has one writer.

    Args:
      on_transition: called with (model, status) after each change of state; UNKNOWN: status does not show a failed
        version any more.
      publish: called with the new routes after each change: before AVAILABLE is reported, and before an unload waits.
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
        self._snapshot: Mapping[str, _Model] = {}
        self._write = threading.Lock()
        self._is_draining = False
        # Tells why a model can not answer although a version of it is AVAILABLE: another machine is away.
        self.problem_beside: Callable[[str], str] = lambda model: ""

    def lease(self, ref: ModelRef, is_enough: IsEnough = _is_never_enough) -> Lease:
        """Returns a lease on the servable that a model reference names.

        Args:
          is_enough: says whether the lookups of a version that still loads can answer the request, if no version is
            AVAILABLE.

        Raises:
          ModelNotFound, VersionNotFound, LabelNotFound: the server has no such model, version or label.
          NotReady: the model is configured but no version of it can answer.
        """
        return Lease(self.hold(ref, is_enough))

    def hold(self, ref: ModelRef, is_enough: IsEnough = _is_never_enough) -> Holder:
        """Takes a lease on the servable that a model reference names; Holder.release gives it back.

        Raises as lease() does.
        """
        while True:
            holder = self._find(ref, is_enough)
            if holder.acquire():
                return holder

    def _find(self, ref: ModelRef, is_enough: IsEnough) -> Holder:
        model = self._snapshot.get(ref.name)
        if ref.label is not None:
            # The label is checked first: for an unknown model TensorFlow Serving reports an unknown label.
            version = model.labels.get(ref.label) if model else None
            if version is None:
                raise LabelNotFound(f"Unrecognized servable version label: {ref.label}")
            ref = ModelRef(ref.name, version)
        if model is None or not model.is_configured:
            raise ModelNotFound(f"Servable not found for request: {_describe(ref)}")
        if (early := model.early) is not None and ref.version in (None, early.servable.version):
            if is_enough(early.servable):
                return early
        if ref.version is not None:
            holder = model.available.get(ref.version)
            if holder is None:
                raise VersionNotFound(f"Servable not found for request: {_describe(ref)}")
            return holder
        for holder in model.available.values():
            return holder
        raise NotReady(f'Model "{ref.name}" is not ready: {self.problem(ref.name)}')

    def models(self) -> list[str]:
        """Returns the names of all models that requests may reach, sorted."""
        return sorted(name for name, model in self._snapshot.items() if model.is_configured)

    def is_configured(self, name: str) -> bool:
        """Says whether requests may ask for a model of this name."""
        model = self._snapshot.get(name)
        return model is not None and model.is_configured

    def loaded(self) -> list[LoadedServable]:
        """Returns all available servables with the number of requests on each, by model and version."""
        return [
            LoadedServable(holder.servable, holder.num_requests)
            for _, model in sorted(self._snapshot.items())
            for _, holder in sorted(model.available.items())
        ]

    def holders(self) -> list[Holder]:
        """Returns the holders of all available versions."""
        return [holder for model in self._snapshot.values() for holder in model.available.values()]

    def replace(self, holder: Holder, servable: Servable) -> Holder | None:
        """Replaces a holder by one for the same version with other rows, for all requests from now on.

        Returns:
          The new holder; None where the version is being unloaded, or has another holder already.
        """
        with self._write:
            name, version = servable.name, servable.version
            model = self._snapshot.get(name)
            if model is None or model.available.get(version) is not holder:
                return None
            new = Holder(servable, holder)
            # The new holder takes the old holder's place in the dict: the dict's order is the order of versions.
            available = {v: new if v == version else h for v, h in model.available.items()}
            self._snapshot = {**self._snapshot, name: replace(model, available=available)}
            self._tell_routes()
        # The holder is retired after the new one is published: a request that can not acquire the old holder must find
        # the new.
        holder.retire()
        return new

    def labels(self, name: str) -> Mapping[str, int]:
        """Returns a model's labels, each with its version; empty where there is no such model."""
        model = self._snapshot.get(name)
        return model.labels if model else {}

    def is_available(self, name: str, version: int | None = None) -> bool:
        """Says whether a version of a model (None: any version) is AVAILABLE, even before the model is configured."""
        model = self._snapshot.get(name)
        return model is not None and (bool(model.available) if version is None else version in model.available)

    def statuses(self, name: str, version: int | None = None) -> list[VersionStatus]:
        """Returns the statuses of a model's versions, newest first.

        Raises:
          ModelNotFound: the model has no versions; for a configured model the text says why.
          VersionNotFound: the model has no such version.
        """
        found = self.all_statuses(name)
        if version is None:
            if not found:
                problem = self.noted_problem(name) if self.is_configured(name) else ""
                raise ModelNotFound(f"Could not find any versions of model {name}" + (problem and f": {problem}"))
            return found
        found = [status for status in found if status.version == version]
        if not found:
            raise VersionNotFound(f"Could not find version {version} of model {name}")
        return found

    def all_statuses(self, name: str) -> list[VersionStatus]:
        """Returns the statuses of a model's versions, newest first; an empty list where there are none."""
        model = self._snapshot.get(name)
        return [model.statuses[v] for v in sorted(model.statuses, reverse=True)] if model else []

    def problem(self, name: str) -> str:
        """Returns why a model has no version to answer with, in one line; "" if it has one."""
        model = self._snapshot[name]
        if model.available:
            return self.problem_beside(name)
        # An unloaded version explains nothing, unless the model has no other versions.
        told = [s for s in model.statuses.values() if (s.state, s.code) != (State.END, "OK")]
        if model.problem and not told:
            return model.problem
        newest = max(told or model.statuses.values(), key=lambda status: status.version, default=None)
        if newest is None:
            return "its folder has not been read yet"
        if model.early is not None:
            return f"version {model.early.servable.version} is LOADING, and only its lookups are answered"
        return f"version {newest.version} is {newest.state.name}" + (f": {newest.message}" if newest.message else "")

    def noted_problem(self, name: str) -> str:
        """Returns why a model's folder has no versions; "" if it has some, or was not read yet."""
        model = self._snapshot.get(name)
        return model.problem if model else ""

    @property
    def is_ready(self) -> bool:
        """Says whether a load balancer shall send requests to this server.

        Every configured model must have been tried, and one of them must have an AVAILABLE version whose remote tables
        can be read. Under is_strict every configured model must have one. A server that drains is not ready.
        """
        configured = {name: model for name, model in self._snapshot.items() if model.is_configured}
        if self._is_draining or not configured:
            return False
        can_answer = [bool(model.available) and not self.problem_beside(name) for name, model in configured.items()]
        if self._is_strict:
            return all(can_answer)
        # An untried model still loads: without this wait, a rolling update would replace servers that have the model.
        return all(model.is_tried for model in configured.values()) and any(can_answer)

    @property
    def is_draining(self) -> bool:
        """Says whether the server is shutting down."""
        return self._is_draining

    def drain(self) -> None:
        """Makes is_ready False for good; requests are still answered, because the transports decide when to stop."""
        self._is_draining = True

    def add_model(self, name: str, *, is_configured: bool = True) -> None:
        """Adds a model; until a version is published, requests for the model get NotReady.

        Args:
          is_configured: False keeps the model from requests until configure() names the model.
        """
        with self._write:
            old = self._snapshot.get(name, _Model())
            # The loaded versions of an earlier model with this name stay: that model's thread is about to unload them.
            live = {v: s for v, s in old.statuses.items() if s.state is not State.END}
            is_tried = bool(old.available)
            new = _Model(live, old.available, old.early, old.spoilt, is_configured=is_configured, is_tried=is_tried)
            self._snapshot = {**self._snapshot, name: new}
            self._tell_routes()
        self._told_no_more(name, (s for v, s in old.statuses.items() if v not in live))

    def configure(self, labels: Mapping[str, Mapping[str, int]]) -> None:
        """Replaces the served models and their labels, for all requests at the same moment.

        Other models can not be leased any more; their versions stay in status.
        """
        with self._write:
            self._snapshot = {
                name: replace(model, is_configured=name in labels, labels=labels.get(name, {}))
                for name, model in self._snapshot.items()
            }
            self._tell_routes()

    def drop(self, names: Iterable[str]) -> None:
        """Takes models out of status, unless they are configured or still have a version that has not ended."""
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
        """Stores why a model has no versions at all, for readiness and errors."""
        with self._write:
            if model := self._snapshot.get(name):
                new = replace(model, problem=problem, is_tried=model.is_tried or bool(problem))
                self._snapshot = {**self._snapshot, name: new}
        self._on_problem()

    def announce(self, name: str, version: int) -> None:
        """Moves a found version to START, where it waits for its load; does nothing if the version is there already."""
        old = self._snapshot[name].statuses.get(version)
        if old is None or old.state is not State.START:
            self._move(name, VersionStatus(version, State.START))

    def withdraw(self, name: str, version: int) -> None:
        """Moves an announced version to END without a load."""
        self._move(name, VersionStatus(version, State.END))

    def start(self, name: str, version: int) -> None:
        """Moves a version to LOADING."""
        self.announce(name, version)
        self._move(name, VersionStatus(version, State.LOADING))

    def show_lookups(self, servable: Servable) -> bool:
        """Answers the lookups of a version that is LOADING, until it is published or fails.

        Returns:
          Whether the lookups are answered now. They are not if a version of the model is AVAILABLE, if this version is
          not LOADING any more, or if an earlier load of this version failed: lookups would come and go with each load.
        """
        name, version = servable.name, servable.version
        with self._write:
            model = self._snapshot.get(name)
            status = model.statuses.get(version) if model else None
            if model is None or status is None or status.state is not State.LOADING:
                return False
            if model.available or version in model.spoilt:
                return False
            self._snapshot = {**self._snapshot, name: replace(model, early=Holder(servable))}
            self._tell_routes()
        return True

    def shows_lookups(self, name: str) -> bool:
        """Says whether a version that still loads answers a model's lookups."""
        model = self._snapshot.get(name)
        return model is not None and model.early is not None

    def publish(self, servable: Servable) -> None:
        """Makes a loaded servable available to requests, and then reports the version as AVAILABLE."""
        # No lock is needed: the load has ended, so only this thread changes the model's early lookups.
        early = self._snapshot[servable.name].early
        self._move(servable.name, VersionStatus(servable.version, State.AVAILABLE), Holder(servable, early))
        if early is not None:
            early.retire()

    def fail(self, name: str, version: int, error: ServiceError, *, poll_s: float = 0.005) -> None:
        """Moves a version whose load failed to END; status shows the error until the next attempt.

        Blocks until no request holds the version's early lookups.
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
            self._tell_routes()
        early.retire()
        while early.num_leases:
            time.sleep(poll_s)

    def damages(self, name: str) -> dict[int, str]:
        """Looks at the files of a model's available versions; returns the damage of each damaged version."""
        model = self._snapshot.get(name)
        found = {v: holder.servable.files.look() for v, holder in model.available.items()} if model else {}
        return {version: why for version, why in found.items() if why}

    def unload(self, name: str, version: int, *, because: ServiceError | None = None, poll_s: float = 0.005) -> None:
        """Takes a version out of the routes, waits until no request holds its servable, and closes the servable.

        Args:
          because: the error that status shows for the version until the next attempt.
        """
        holder = self._move(name, VersionStatus(version, State.UNLOADING))
        assert holder is not None  # an AVAILABLE version always has a holder
        holder.retire()
        while holder.num_leases:
            time.sleep(poll_s)
        holder.servable.close()
        status = VersionStatus(version, State.END)
        if because is not None:
            status = VersionStatus(version, State.END, because.code, because.message)
        self._move(name, status)

    def forget(self, name: str, version: int) -> None:
        """Drops the status of an ended version, so that the model's statuses do not grow for ever."""
        with self._write:
            model = self._snapshot.get(name)
            status = model.statuses.get(version) if model else None
            if model is None or status is None or status.state is not State.END:
                return
            statuses = {v: s for v, s in model.statuses.items() if v != version}
            spoilt = model.spoilt - {version}
            self._snapshot = {**self._snapshot, name: replace(model, statuses=statuses, spoilt=spoilt)}
        self._told_no_more(name, [status])

    def _tell_routes(self) -> None:
        if self._publish_routes is not None:
            self._publish_routes(
                [
                    ModelRoutes(name, [holder.servable for holder in _answering(model)], model.labels)
                    for name, model in self._snapshot.items()
                    if model.is_configured
                ]
            )

    def _told_no_more(self, name: str, statuses: Iterable[VersionStatus]) -> None:
        for status in statuses:
            if status.code != "OK":
                self._on_transition(name, VersionStatus(status.version, State.UNKNOWN))

    def _move(self, name: str, status: VersionStatus, holder: Holder | None = None) -> Holder | None:
        """Changes a version's state; returns the holder that the version had until now."""
        with self._write:
            model = self._snapshot[name]
            old = model.statuses.get(status.version)
            before = old.state if old else State.UNKNOWN
            if status.state not in _LEGAL[before]:
                raise ValueError(f"{name} version {status.version}: {before.name} to {status.state.name}")
            taken_out = model.available.get(status.version)
            available = {v: h for v, h in model.available.items() if v != status.version}
            if holder is not None:
                available = dict(sorted({**available, status.version: holder}.items(), reverse=True))
            statuses = {**model.statuses, status.version: status}
            # An AVAILABLE version replaces its early lookups, for all requests at the same moment.
            early = None if available else model.early
            is_tried = model.is_tried or status.state is State.AVAILABLE or status.code != "OK"
            self._snapshot = {
                **self._snapshot,
                name: replace(model, statuses=statuses, available=available, early=early, is_tried=is_tried),
            }
            if available.keys() != model.available.keys():
                self._tell_routes()
        self._on_transition(name, status)
        return taken_out


def _answering(model: _Model) -> list[Holder]:
    """Returns the holders that requests may find: of available versions, latest first, else of the early lookups."""
    return list(model.available.values()) or ([model.early] if model.early is not None else [])


def _describe(ref: ModelRef) -> str:
    return f"Latest({ref.name})" if ref.version is None else f"Specific({ref.name}, {ref.version})"
