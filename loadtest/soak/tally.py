"""Counts requests and failures by kind since the last sample, and keeps the response times of small lookups."""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import dataclass, field

# Texts of failures are cut to this length. Failures after the server has ended differ only beyond it, so they count as
# one kind of failure.
_MAX_LENGTH = 300


@dataclass
class Window:
    """Counts of requests and failures since the previous sample.

    seconds: response time of each small lookup.
    behind_s: the longest delay of a request behind its schedule, caused by the clients or the server.
    """

    requests: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    behind_s: float = 0.0


class Tally:
    """Counter of requests and failures by kind. Concurrency: any thread.

    problems: text of a failure -> (how often, when first in seconds since the epoch).
    """

    def __init__(self, interrupted: threading.Event) -> None:
        self._lock = threading.Lock()
        self._interrupted = interrupted
        self._window = Window()
        self.problems: dict[str, tuple[int, float]] = {}

    def done(self, kind: str, outcome: str, seconds: float | None, behind_s: float) -> None:
        """Counts a request that had the expected outcome.

        Args:
          seconds: the response time; None if it shall not be recorded.
        """
        with self._lock:
            self._window.requests[kind] += 1
            self._window.outcomes[f"{kind}: {outcome}"] += 1
            self._window.behind_s = max(self._window.behind_s, behind_s)
            if seconds is not None:
                self._window.seconds.append(seconds)

    def failed(self, kind: str, why: str) -> None:
        """Counts a failed request, except after Ctrl-C, which interrupts the server too."""
        if self._interrupted.wait(0.3):
            return
        why = " ".join(f"{kind}: {why}".split())[:_MAX_LENGTH]
        with self._lock:
            self._window.requests[kind] += 1
            self._window.failures[kind] += 1
            count, first = self.problems.get(why, (0, time.time()))
            self.problems[why] = (count + 1, first)

    def next_window(self) -> Window:
        """Returns the counts of requests since the previous call, and starts new counts at 0."""
        with self._lock:
            window, self._window = self._window, Window()
        return window
