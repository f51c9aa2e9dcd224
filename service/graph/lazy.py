"""Opens a version's graph when the first request needs it, and not when the version is loaded."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from service.types import Backend

Opened = TypeVar("Opened", bound=Backend)


class LazyBackend(Generic[Opened]):
    """A backend that opens the real backend at the first call of opened().

    Concurrency: any thread; calls wait for the opening.
    """

    def __init__(self, open_backend: Callable[[], Opened]) -> None:
        self._open_backend = open_backend
        self._backend: Opened | None = None
        self._opening = threading.Lock()

    def opened(self) -> Opened:
        with self._opening:
            if self._backend is None:
                self._backend = self._open_backend()
            return self._backend

    def close(self) -> None:
        if self._backend is not None:
            self._backend.close()
