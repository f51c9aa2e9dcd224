"""Updates the servers' health checks after changes of models, and bounds the time that this takes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

# Times its own duration that an update is followed by a pause. An update reads the state of all models, and a thousand
# loading models change their state some thousand times.
_PAUSES = 9


class HealthUpdates:
    """Runs an update at once, or within the pause after the update before. Concurrency: any thread.

    Args:
      update: reads the readiness of the server and its models, and sets the health checks to it.
      clock: seconds, monotonic.
    """

    def __init__(self, update: Callable[[], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._update = update
        self._clock = clock
        # Lock that is held from reading readiness until the health checks are set, so that no older state replaces a
        # newer one.
        self._updating = threading.Lock()
        self._is_wanted = threading.Event()
        self._next_s = 0.0
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None

    def update(self) -> None:
        with self._updating:
            self._update_and_pause()

    def note(self) -> None:
        """Updates the health checks now, or later in another thread if the last update is not long ago."""
        if self._clock() >= self._next_s and self._updating.acquire(blocking=False):
            try:
                self._update_and_pause()
            finally:
                self._updating.release()
            return
        self._is_wanted.set()
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="health", daemon=True)
                self._thread.start()

    def _update_and_pause(self) -> None:
        begun_s = self._clock()
        self._update()
        now_s = self._clock()
        self._next_s = now_s + _PAUSES * (now_s - begun_s)

    def _run(self) -> None:
        while True:
            self._is_wanted.wait()
            time.sleep(max(self._next_s - self._clock(), 0))
            self._is_wanted.clear()
            self.update()
