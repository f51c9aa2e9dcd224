"""Applies new deltas to all served versions, in a loop that one thread runs."""

from __future__ import annotations

import logging
import threading

from service.deltas.version_deltas import VersionDeltas
from service.engine.registry import Registry
from service.engine.servable import Holder

logger = logging.getLogger(__name__)

# Seconds until the next attempt to apply deltas, if requests still read the copy of the tables to which the deltas must
# be written.
_AGAIN_S = 0.005


class Follower:
    """The loop that applies new deltas to all served versions. Concurrency: wake and stop from any thread.

    Args:
      poll_s: seconds between scans for deltas of other programs; an upsert of this process wakes the follower.
    """

    def __init__(self, registry: Registry, poll_s: float) -> None:
        self._registry = registry
        self._poll_s = poll_s
        self._news = threading.Event()
        self._is_stopped = False

    def wake(self) -> None:
        """Wakes the thread that applies deltas, so that it looks for new ones now and not at the next scan."""
        self._news.set()

    def stop(self) -> None:
        """Makes the thread that applies deltas end, once it has applied the deltas that it is working on."""
        self._is_stopped = True
        self._news.set()

    def run(self) -> None:
        """Scans for new deltas and applies them, again and again, until stop() is called; blocks."""
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
            # An error in one version's deltas must not end the loop: this one thread applies the deltas of all other
            # versions too.
            logger.exception("deltas can not be applied", extra={"model": holder.servable.name})
            return True
