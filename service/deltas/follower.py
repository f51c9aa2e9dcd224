"""A thread that looks for new deltas of every version that is served, and shows them."""

from __future__ import annotations

import logging
import threading

from service.deltas.version_deltas import VersionDeltas
from service.engine.registry import Registry
from service.engine.servable import Holder

logger = logging.getLogger(__name__)

# Between looks at what could not be shown at once, because requests hold the tables.
_AGAIN_S = 0.005


class Follower:
    """Concurrency: wake and stop from any thread.

    Args:
      poll_s: seconds between looks for what others left; upserts of this process wake it.
    """

    def __init__(self, registry: Registry, poll_s: float) -> None:
        self._registry = registry
        self._poll_s = poll_s
        self._news = threading.Event()
        self._is_stopped = False

    def wake(self) -> None:
        """Has it look at once."""
        self._news.set()

    def stop(self) -> None:
        """Ends it after what it does now."""
        self._is_stopped = True
        self._news.set()

    def run(self) -> None:
        """Looks until it is stopped; blocks."""
        while not self._is_stopped:
            is_done = all([self._look(holder) for holder in self._registry.holders()])
            self._news.wait(self._poll_s if is_done else min(_AGAIN_S, self._poll_s))
            self._news.clear()

    def _look(self, holder: Holder) -> bool:
        deltas = holder.servable.deltas
        if not isinstance(deltas, VersionDeltas):
            return True
        try:
            return deltas.catch_up(holder, self._registry.replace)
        except Exception:
            # One version's fault is none of the others', and this thread is the only one.
            logger.exception("deltas can not be applied", extra={"model": holder.servable.name})
            return True
