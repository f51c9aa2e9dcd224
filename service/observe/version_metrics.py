"""Keeps each version's state and number of failed loads for metrics, as long as the status of its model shows the
version.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from service.engine.deltas import DeltaStatus
from service.engine.servable import LoadedServable
from service.observe.metric_text import Kind, family, labels, sample
from service.types import State, VersionStatus

READY = "embedding_server_ready"
MODEL_READY = "embedding_server_model_ready"
STATE = "embedding_server_version_state"
ERROR = "embedding_server_version_error"
LOAD_FAILURES = "embedding_server_version_load_failures"
NOT_RUN = "embedding_server_version_signatures_not_run"


class VersionStates:
    """The state and the number of failed loads of each version of each model, for metrics.

    Concurrency: changed() by one caller at a time for each model, lines() by any thread.
    """

    def __init__(self) -> None:
        self._statuses: dict[tuple[str, int], VersionStatus] = {}
        self._failures: dict[tuple[str, int], int] = {}

    def changed(self, model: str, status: VersionStatus) -> None:
        """Stores a version's new state. UNKNOWN, or END without an error, drops the version from the metrics."""
        key = (model, status.version)
        before = self._statuses.get(key)
        is_over = status.state is State.UNKNOWN or (status.state is State.END and status.code == "OK")
        if is_over or status.state is State.AVAILABLE:
            self._failures.pop(key, None)
        elif status.state is State.END and before is not None and before.state is State.LOADING:
            self._failures[key] = self._failures.get(key, 0) + 1
        if is_over:
            self._statuses.pop(key, None)
        else:
            # The metrics of a failed version stay, because the model's status still shows it.
            self._statuses[key] = status

    def forget(self, model: str) -> None:
        for counted in (self._statuses, self._failures):
            for key in [key for key in counted.copy() if key[0] == model]:
                counted.pop(key, None)

    def lines(self) -> list[str]:
        statuses = sorted(self._statuses.copy().items())
        about = "State of each model version: 10 START, 20 LOADING, 30 AVAILABLE, 40 UNLOADING, 50 END."
        lines = family(STATE, "gauge", about)
        lines += [sample(STATE, _named(*key), float(status.state)) for key, status in statuses]
        lines += family(
            ERROR,
            "gauge",
            "1 for a version that ended with an error, by canonical code; DATA_LOSS: its files are damaged.",
        )
        lines += [
            sample(ERROR, labels({"code": status.code, "model": model, "version": version}), 1.0)
            for (model, version), status in statuses
            if status.code != "OK"
        ]
        lines += family(
            LOAD_FAILURES,
            "gauge",
            "How often the version failed to load; gone once it has loaded, or its folder is gone.",
        )
        return lines + [
            sample(LOAD_FAILURES, _named(*key), float(count)) for key, count in sorted(self._failures.copy().items())
        ]


def readiness_lines(is_ready: bool, models: Mapping[str, bool]) -> list[str]:
    """Returns the lines of metrics on readiness, of the server and of each model.

    Args:
      is_ready: whether the server is ready; models: whether each configured model can answer.
    """
    lines = family(READY, "gauge", "Whether load balancers shall send requests to this server: 1, else 0.")
    lines.append(sample(READY, "", float(is_ready)))
    lines += family(MODEL_READY, "gauge", "Whether a version of a configured model answers: 1, else 0.")
    return lines + [sample(MODEL_READY, labels({"model": name}), float(models[name])) for name in sorted(models)]


def core_lines(loaded: Sequence[LoadedServable]) -> list[str]:
    """Returns the lines of metrics on signatures that the native core does not run."""
    about = "Signatures of the version that no request can run, although the server has their tables or graphs."
    return family(NOT_RUN, "gauge", about) + [
        sample(NOT_RUN, _named(one.servable.name, one.servable.version), float(len(one.servable.can_not_run)))
        for one in loaded
    ]


def _named(model: str, version: int) -> str:
    return labels({"model": model, "version": version})


_PREFIX = "embedding_server_delta_"
_FAMILIES: tuple[tuple[str, Kind, str, Callable[[DeltaStatus], float]], ...] = (
    ("last_sequence", "gauge", "Highest number of a delta that lookups use.", lambda status: status.last_sequence),
    ("rows", "gauge", "Rows that deltas have changed since the export.", lambda status: status.rows),
    ("pending", "gauge", "Deltas that were read and that lookups do not use yet.", lambda status: status.pending),
    (
        "lag_seconds",
        "gauge",
        "Seconds for which the oldest delta has waited, or could not be read.",
        lambda status: status.lag_s,
    ),
    ("missing", "gauge", "Deltas that are missing: numbers below the highest one.", lambda status: status.missing),
    ("applied_total", "counter", "Deltas that were applied.", lambda status: status.applied),
)
_BY_REASON: tuple[tuple[str, str, Callable[[DeltaStatus], Mapping[str, int]]], ...] = (
    ("refused_total", "Deltas that were refused, by reason.", lambda status: status.refused),
    (
        "journal_failures_total",
        "Upserts that the journal did not take, by reason: full, held, unwritable.",
        lambda status: status.journal_failures,
    ),
)


def delta_lines(loaded: Sequence[LoadedServable]) -> list[str]:
    """Returns the lines of metrics on deltas; none if no version has deltas."""
    found = [
        ({"model": one.servable.name, "version": one.servable.version}, one.servable.deltas.status())
        for one in loaded
        if one.servable.deltas is not None
    ]
    if not found:
        return []
    lines = []
    for part, kind, about, read in _FAMILIES:
        lines += family(_PREFIX + part, kind, about)
        lines += [sample(_PREFIX + part, labels(names), float(read(status))) for names, status in found]
    for part, about, counts in _BY_REASON:
        lines += family(_PREFIX + part, "counter", about)
        lines += [
            sample(_PREFIX + part, labels({**names, "reason": reason}), float(count))
            for names, status in found
            for reason, count in sorted(counts(status).items())
        ]
    return lines
