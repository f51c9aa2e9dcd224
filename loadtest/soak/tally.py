"""Counts requests and failures by kind since the last sample, and keeps the times of small lookups."""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import dataclass, field

# Of failures that are alike, one line is enough; of a server that is gone there are many.
_MAX_LENGTH = 300


@dataclass
class Window:
    """One stretch of time.

    seconds: of each small lookup, from its call to its answer.
    behind_s: how late a request was sent at most, by its schedule: the clients' fault or the server's.
    """

    requests: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    behind_s: float = 0.0


class Tally:
    """Counts; every method may be called by many threads at once.

    problems: what went wrong, in words, with how often and when first (seconds since the epoch).
    """

    def __init__(self, interrupted: threading.Event) -> None:
        self._lock = threading.Lock()
        self._interrupted = interrupted
        self._window = Window()
        self.problems: dict[str, tuple[int, float]] = {}

    def done(self, kind: str, outcome: str, seconds: float | None, behind_s: float) -> None:
        """Counts a request that went as it should.

        Args:
          seconds: None where its time is of no interest.
        """
        with self._lock:
            self._window.requests[kind] += 1
            self._window.outcomes[f"{kind}: {outcome}"] += 1
            self._window.behind_s = max(self._window.behind_s, behind_s)
            if seconds is not None:
                self._window.seconds.append(seconds)

    def failed(self, kind: str, why: str) -> None:
        """Counts a failure, unless the run is being interrupted: Ctrl-C reaches the server too."""
        if self._interrupted.wait(0.3):
            return
        why = " ".join(f"{kind}: {why}".split())[:_MAX_LENGTH]
        with self._lock:
            self._window.requests[kind] += 1
            self._window.failures[kind] += 1
            count, first = self.problems.get(why, (0, time.time()))
            self.problems[why] = (count + 1, first)

    def take(self) -> Window:
        """Returns what was counted since the last call."""
        with self._lock:
            window, self._window = self._window, Window()
        return window
