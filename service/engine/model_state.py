"""Declares the state of one model in the registry's snapshot, and says why a model can not answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from service.engine.servable import Holder
from service.types import State, VersionStatus


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
        """Whether requests may reach the model, or a version of it is not in state END."""
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
