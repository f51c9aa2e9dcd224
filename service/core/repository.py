"""Watches one model's folder and keeps its newest version loaded.

A folder holds one sub-folder per version, named by an integer. The new version is loaded before the old one is
unloaded, and one that fails to load replaces nothing.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from service.core.errors import ArtifactError, ServiceError
from service.core.registry import Registry
from service.core.servable import Servable
from service.core.types import State

logger = logging.getLogger(__name__)

Load = Callable[[str, int, Path], Servable]


def find_versions(base_path: Path) -> dict[int, Path]:
    """Returns the version folders of a model: integer names only, leading zeros allowed. Raises OSError.

    A number beyond int64 is no version: no wire could name it.
    """
    numbered = {int(p.name): p for p in base_path.iterdir() if p.name.isascii() and p.name.isdigit() and p.is_dir()}
    return {version: path for version, path in numbered.items() if version < 2**63}


@dataclass(slots=True)
class _Failure:
    attempts: int
    retry_at_s: float


class ModelWatcher:
    """Polls one model's folder from a thread of its own, so that no model waits for another.

    Args:
      load: reads a version folder into a servable; raises ServiceError. Runs on the watcher's thread.
      max_retries: how often a version that failed is tried again, retry_interval_s apart.
      clock: seconds, monotonic.
    """

    def __init__(
        self,
        *,
        name: str,
        base_path: Path,
        registry: Registry,
        load: Load,
        max_retries: int,
        retry_interval_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name = name
        self._base_path = base_path
        self._registry = registry
        self._load = load
        self._max_retries = max_retries
        self._retry_interval_s = retry_interval_s
        self._clock = clock
        self._loaded: set[int] = set()
        self._failures: dict[int, _Failure] = {}
        self._problem = ""
        registry.add_model(name)

    def run(self, stop: threading.Event, poll_interval_s: float) -> None:
        """Polls until stop is set; an interval of 0 or less polls once."""
        while True:
            try:
                self.poll_once()
            except Exception:
                # The watcher must outlive any surprise: without it no new version would ever be served.
                logger.exception("polling failed", extra={"model": self._name})
            if poll_interval_s <= 0 or stop.wait(poll_interval_s):
                return

    def poll_once(self) -> None:
        """Compares the folder with what is loaded, and loads and unloads the difference."""
        try:
            found = find_versions(self._base_path)
            problem = "" if found else f"no version folder (an integer name such as 1) in {self._base_path}"
        except OSError as error:
            found = {}
            problem = f"cannot read its folder {self._base_path}: {error.strerror}"
        if problem != self._problem:
            self._problem = problem
            self._registry.note_problem(self._name, problem)
            if problem:
                logger.warning("model has no versions", extra={"model": self._name, "reason": problem})
        if not found:
            # A folder that vanished is more likely a mount that failed than a wish to stop serving.
            return
        newest = max(found)
        for version in [v for v in self._failures if v not in found]:
            del self._failures[version]
            self._registry.forget(self._name, version)
        if newest not in self._loaded and self._may_try(newest):
            self._try_load(newest, found[newest])
        if newest in self._loaded:
            self._unload_all_but(newest)

    def _may_try(self, version: int) -> bool:
        failure = self._failures.get(version)
        if failure is None:
            return True
        return failure.attempts <= self._max_retries and self._clock() >= failure.retry_at_s

    def _try_load(self, version: int, path: Path) -> None:
        self._registry.start(self._name, version)
        started_s = self._clock()
        try:
            servable = self._load(self._name, version, path)
        except Exception as error:
            failure = self._failures.setdefault(version, _Failure(0, 0.0))
            failure.attempts += 1
            failure.retry_at_s = self._clock() + self._retry_interval_s
            known = error if isinstance(error, ServiceError) else ArtifactError(f"{type(error).__name__}: {error}")
            logger.error(
                "load failed",
                exc_info=None if isinstance(error, ServiceError) else error,
                extra={
                    "model": self._name,
                    "version": version,
                    "reason": known.message,
                    "attempt": failure.attempts,
                    "retry_in_s": self._retry_interval_s if failure.attempts <= self._max_retries else None,
                },
            )
            self._registry.fail(self._name, version, known)
            return
        self._failures.pop(version, None)
        self._loaded.add(version)
        self._registry.publish(servable)
        seconds = round(self._clock() - started_s, 3)
        logger.info("loaded", extra={"model": self._name, "version": version, "seconds": seconds, "path": str(path)})

    def _unload_all_but(self, kept: int) -> None:
        for version in sorted(self._loaded - {kept}):
            self._registry.unload(self._name, version)
            self._loaded.discard(version)
        # What ended without an error is of no more interest; a failure stays visible.
        for status in self._registry.statuses(self._name):
            if status.state is State.END and status.code == "OK":
                self._registry.forget(self._name, status.version)
