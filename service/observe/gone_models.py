"""Decides when the counters of a removed model leave the metrics."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection

# Number of scrapes that still show a removed model's counters, so that a few Prometheus servers get its last counts.
SHOWN_SCRAPES = 10
# Largest number of removed models whose counters are shown; the one that was removed first is forgotten first. Without
# this limit, a server that nobody scrapes would keep all of them.
MOST_SHOWN = 1000


class GoneModels:
    """The removed models whose counters are still shown. Concurrency: any thread.

    Args:
      forget: drops all counters of a model.
    """

    def __init__(self, forget: Callable[[str], None]) -> None:
        self._forget = forget
        self._lock = threading.Lock()
        self._present: frozenset[str] = frozenset()
        # Removed model -> number of the last scrape that has shown its counters, from 0; -1: none has. In the order of
        # the removals.
        self._scrapes: dict[str, int] = {}

    def note(self, models: Collection[str], scrapes: int = 0) -> None:
        """Forgets models that were removed some scrapes ago.

        Args:
          models: the models that are served now, or whose versions are not unloaded yet.
          scrapes: number of scrapes since the last call.
        """
        with self._lock:
            for name in self._present.difference(models):
                # The next scrape, or this one, is scrape number 0 of the model.
                self._scrapes[name] = -1
            self._present = frozenset(models)
            shown = {name: last + scrapes for name, last in self._scrapes.items() if name not in self._present}
            newest = list(shown)[-MOST_SHOWN:]
            self._scrapes = {name: shown[name] for name in newest if shown[name] < SHOWN_SCRAPES}
            forgotten = shown.keys() - self._scrapes.keys()
        for name in forgotten:
            self._forget(name)
