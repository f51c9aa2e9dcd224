"""What all workers counted, those that ended included: no counter ever goes back.

A worker's newest exposition stands for it. What it can not tell any more, because it ended or because a model version
is gone from it, is added to what is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from service.workers.exposition import Exposition, Family, Number, labels

VERSION_STATE = "embedding_server_version_state"
_AVAILABLE, _ENDED = 30, 50
# Series with a version, or a path, that no worker tells of any more go after so long.
_KEEP_S = 60.0


def _state(values: Sequence[Number]) -> Number:
    # A failure anywhere must be seen; else the one that is least far, so that 30 means that all of them answer.
    return _ENDED if _ENDED in values else min(values)


_GAUGES: Mapping[str, Callable[[Sequence[Number]], Number]] = {
    "embedding_server_requests_in_flight": sum,
    "embedding_server_in_flight_bytes": sum,
    "embedding_server_in_flight_rows": sum,
    "embedding_server_in_flight_limit_bytes": sum,
    "embedding_server_in_flight_limit_rows": sum,
    "embedding_server_request_log_disabled": max,
    VERSION_STATE: _state,
    "embedding_server_auth_config_is_current": min,
    "embedding_server_tls_certificate_end_timestamp_seconds": min,
    "embedding_server_delta_last_sequence": min,
    "embedding_server_delta_rows": max,
    "embedding_server_delta_pending": max,
    "embedding_server_delta_lag_seconds": max,
    "embedding_server_delta_missing": max,
    "process_resident_memory_bytes": sum,
    "process_virtual_memory_bytes": sum,
    "process_open_fds": sum,
    "process_max_fds": min,
    "embedding_server_tables_verified": min,
    "process_start_time_seconds": min,
}


class Sums:
    """Adds up expositions. Concurrency: one caller at a time.

    Args:
      clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._live: dict[int, Exposition] = {}
        self._kept: Exposition = {}
        self._seen_s: dict[tuple[str, str], float] = {}
        self._shown: dict[str, Number] = {}

    def update(self, worker: int, told: Exposition) -> None:
        """Takes the newest exposition of a worker; each start of one has a number of its own."""
        self._keep_lost(self._live.get(worker, {}), told)
        self._live[worker] = told

    def ended(self, worker: int) -> None:
        """A worker is gone; what it told last is kept."""
        self._keep_lost(self._live.pop(worker, {}), {})

    def read(self) -> list[Family]:
        """Returns the families of all workers together."""
        self._forget_the_unknown()
        result: Exposition = {}
        values: dict[str, dict[str, list[Number]]] = {}
        for told in (*(self._live[worker] for worker in sorted(self._live)), self._kept):
            for name, family in told.items():
                result.setdefault(name, Family(name, family.kind, family.about))
                of_family = values.setdefault(name, {})
                for series, value in family.samples.items():
                    of_family.setdefault(series, []).append(value)
        shown: dict[str, Number] = {}
        for name, family in result.items():
            rule = sum if family.is_cumulative else _GAUGES.get(name, max)
            family.samples = {series: rule(parts) for series, parts in values[name].items()}
            if family.is_cumulative:
                # Sums of floats depend on their order in the last bit, and a reader takes any step back for a restart.
                for series, value in family.samples.items():
                    family.samples[series] = shown[series] = max(value, self._shown.get(series, 0))
        self._shown = shown
        return list(result.values())

    def _keep_lost(self, before: Exposition, now: Exposition) -> None:
        for name, family in before.items():
            if not family.is_cumulative:
                continue
            still = now[name].samples if name in now else {}
            lost = {series: value for series, value in family.samples.items() if series not in still}
            if lost:
                kept = self._kept.setdefault(name, Family(name, family.kind, family.about)).samples
                for series, value in lost.items():
                    kept[series] = kept.get(series, 0) + value

    def _forget_the_unknown(self) -> None:
        """Lets series go whose version no worker has had for a while."""
        told: set[tuple[str, str]] = set()
        is_anything_available = False
        for exposition in self._live.values():
            states = exposition.get(VERSION_STATE)
            for series, state in states.samples.items() if states else ():
                named = labels(series)
                told.add((named.get("model", ""), named.get("version", "")))
                is_anything_available |= state == _AVAILABLE
            for family in exposition.values():
                told.update(subject for series in family.samples if (subject := _path(series)))
        now_s = self._clock()
        for subject in told:
            self._seen_s[subject] = now_s
        # While no worker has loaded anything, each may be about to tell of what it does not know yet.
        if not is_anything_available:
            return
        for family in self._kept.values():
            for series in list(family.samples):
                subject = _subject(series)
                if subject and now_s - self._seen_s.setdefault(subject, now_s) >= _KEEP_S:
                    del family.samples[series]
        self._seen_s = {s: seen_s for s, seen_s in self._seen_s.items() if now_s - seen_s < 2 * _KEEP_S}


def _subject(series: str) -> tuple[str, str] | None:
    """Returns the model and version that a series ends with, or the path; None where it never ends."""
    if 'version="' in series:
        named = labels(series)
        return (named.get("model", ""), named["version"]) if named.get("version") else None
    return _path(series)


def _path(series: str) -> tuple[str, str] | None:
    return ("", labels(series)["model_path"]) if 'model_path="' in series else None
