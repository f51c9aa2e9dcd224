"""Keeps when the versions of each model changed their states, for the console's time line."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from service.types import VersionStatus

# Number of newest state changes that are kept of each model. If a model loads a version each minute, these are the
# changes of the last half hour.
MAX_CHANGES = 200
# Number of models whose state changes are kept. If there are more, the model whose last change is oldest is dropped.
MAX_MODELS = 1000


class VersionHistory:
    """The last changes of state of every model's versions. Concurrency: any thread."""

    def __init__(self, wall_clock: Callable[[], float] = time.time) -> None:
        self._wall_clock = wall_clock
        self._lock = threading.Lock()
        self._changes: dict[str, deque[dict[str, Any]]] = {}

    def note(self, model: str, status: VersionStatus) -> None:
        change = {
            "at_s": round(self._wall_clock(), 3),
            "version": status.version,
            "state": status.state.name,
            "message": status.message,
        }
        with self._lock:
            changes = self._changes.pop(model, None) or deque(maxlen=MAX_CHANGES)
            changes.append(change)
            self._changes[model] = changes
            while len(self._changes) > MAX_MODELS:
                del self._changes[next(iter(self._changes))]

    def read(self, model: str) -> list[dict[str, Any]]:
        with self._lock:
            return list(self._changes.get(model, ()))
