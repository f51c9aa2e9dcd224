"""Counts requests that were refused before they ran, and the time that requests waited for a thread."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from threading import get_ident

from service.engine.admission_limits import Limits
from service.observe.buckets import QUEUE, SECONDS, Times
from service.observe.metric_text import family, histogram, labels, sample

logger = logging.getLogger(__name__)

# Least seconds between two log lines on refused requests, because thousands may be refused in a second.
_LOG_S = 1.0
_SECONDS = tuple(map(repr, SECONDS))
_PREFIX = "embedding_server_"


class AdmissionCounter:
    """The counter of refused requests, waiting times and dropped connections, for metrics. Concurrency: any thread.

    Args:
      clock: seconds, monotonic; refusals are logged once a second.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._log_again_s = 0.0
        # Refusals and waits are counted for each thread, keyed by get_ident(), so that no thread waits for another's
        # lock.
        self._refused: dict[tuple[int, str, str], list[int]] = {}
        self._waits: dict[tuple[int, str], Times] = {}
        self._dropped: dict[str, int] = {}
        self._held_by_core: Mapping[str, int] = {}

    def refused(self, model: str, reason: str, count: int = 1) -> None:
        """Counts refused requests. count: number of requests, because the native core reports several at once."""
        self._refused.setdefault((get_ident(), model, reason), [0])[0] += count
        now_s = self._clock()
        if now_s >= self._log_again_s:
            self._log_again_s = now_s + _LOG_S
            logger.warning("requests are refused", extra={"model": model, "refused_for": reason})

    def waited(self, model: str, seconds: float) -> None:
        key = (get_ident(), model)
        cell = self._waits.get(key)
        if cell is None:
            cell = self._waits[key] = Times(QUEUE)
        cell.add(seconds)

    def waits_counted(self, model: str, times: Times) -> None:
        self._waits.setdefault((get_ident(), model), Times(QUEUE)).merge(times)

    def forget(self, model: str) -> None:
        for refused in [key for key in self._refused.copy() if key[1] == model]:
            self._refused.pop(refused, None)
        for waits in [key for key in self._waits.copy() if key[1] == model]:
            self._waits.pop(waits, None)

    def connection_dropped(self, reason: str) -> None:
        self._dropped[reason] = self._dropped.get(reason, 0) + 1

    def held_by_core(self, held: Mapping[str, int]) -> None:
        self._held_by_core = held

    def in_flight(self, held: Mapping[str, int]) -> Mapping[str, int]:
        """Returns model -> bytes in flight, in Python and in the native core together."""
        found = dict(held)
        for model, size in self._held_by_core.items():
            found[model] = found.get(model, 0) + size
        return found

    def dropped(self) -> dict[str, int]:
        return self._dropped.copy()

    def refusals(self) -> dict[tuple[str, str], int]:
        totals: dict[tuple[str, str], int] = {}
        for (_, model, reason), count in self._refused.copy().items():
            totals[model, reason] = totals.get((model, reason), 0) + count[0]
        return totals

    def waits(self) -> dict[str, Times]:
        found: dict[str, Times] = {}
        for (_, model), cell in self._waits.copy().items():
            found.setdefault(model, Times(QUEUE)).merge(cell)
        return found

    def lines(self, held: Mapping[str, int], limits: Limits | None) -> list[str]:
        """Returns the lines of the admission metrics. held: bytes in flight in Python, by model; limits: on these."""
        name = _PREFIX + "in_flight_bytes"
        about = "Bytes of requests and answers in flight; model is empty for requests of no known model."
        lines = family(name, "gauge", about)
        lines += [sample(name, labels({"model": model}), size) for model, size in sorted(self.in_flight(held).items())]
        name = _PREFIX + "in_flight_limit_bytes"
        lines += family(name, "gauge", "How many bytes may be in flight, of all models together.")
        lines += [sample(name, "", float(limits.bytes))] if limits else []
        name = _PREFIX + "refused_total"
        lines += family(
            name, "counter", "Requests refused before they ran, by reason: overload, or limits on one client."
        )
        lines += [
            sample(name, labels({"model": model, "reason": reason}), count)
            for (model, reason), count in sorted(self.refusals().items())
        ]
        name = _PREFIX + "connections_dropped_total"
        lines += family(
            name, "counter", "Connections that the server refused or cut; docs/security.md has the reasons."
        )
        lines += [sample(name, labels({"reason": r}), count) for r, count in sorted(self.dropped().items())]
        return lines + self._wait_lines()

    def _wait_lines(self) -> list[str]:
        name = _PREFIX + "thread_wait_seconds"
        lines = family(name, "histogram", "Seconds that requests which ran had waited for a thread.")
        for model, times in sorted(self.waits().items()):
            places, labelled = times.limits.seconds, labels({"model": model})
            lines += histogram(name, labelled, limits=_SECONDS, counts=times.counts, total=times.seconds, places=places)
        return lines
