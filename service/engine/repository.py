"""Watches one model's folder, and loads and unloads versions as the model's policy says.

A folder holds one sub-folder per version, named by an integer. New versions are loaded before old versions are
unloaded, and a version that fails to load replaces nothing.
"""

from __future__ import annotations

import errno
import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from service.artifact.completeness import Fingerprint, fingerprint
from service.engine.model_config import ModelConfig, is_in_store
from service.engine.patience import Attempt, TimeIsOver
from service.engine.registry import Registry
from service.engine.servable import Servable
from service.engine.version_policy import wanted_versions
from service.engine.version_source import Folder, OpenStore, VersionArrival, VersionSource
from service.errors import ArtifactError, DataLoss, DeadlineExceeded, ServiceError
from service.types import State

logger = logging.getLogger(__name__)

T = TypeVar("T")
Load = Callable[[str, int, Path], Servable]

# Maximum number of unloaded versions that a model's status still lists, as TensorFlow Serving lists them too.
_MAX_ENDED = 32


@dataclass(frozen=True, slots=True)
class LoadRules:
    """The rules for loading versions, which are the same for all models: loader, retries and timeouts.

    load: reads a version folder into a servable; raises ServiceError.
    max_retries: how often a version that failed is tried again, retry_interval_s apart.
    settle_s: how long a folder without a manifest must not have changed before the version is loaded.
    clock, wall_clock: seconds; clock is monotonic, wall_clock is the file system's.
    slots: a semaphore that is held during a load; it bounds the number of loads at a time.
    load_timeout_s: the time after which a load is given up; 0: never.
    look_timeout_s: the time after which a scan of a folder is given up.
    on_look: called after each scan of a folder with the versions of a model that have a folder or are loaded; None: the
      model's folder could not be read. Must not raise.
    open_store: opens the source of a base path in an object store; None: all base paths are folders.
    on_list: called with a list of models before the first load that follows it, and with the list before if a reload is
      refused. Must not raise.
    """

    load: Load
    max_retries: int
    retry_interval_s: float
    settle_s: float = 0.0
    clock: Callable[[], float] = time.monotonic
    wall_clock: Callable[[], float] = time.time
    slots: AbstractContextManager[Any] = field(default_factory=nullcontext)
    load_timeout_s: float = 0.0
    look_timeout_s: float = 60.0
    on_look: Callable[[str, Collection[int] | None], None] = lambda model, versions: None
    open_store: OpenStore | None = None
    on_list: Callable[[Sequence[ModelConfig]], None] = lambda configs: None


@dataclass(slots=True)
class _Failure:
    attempts: int
    retry_at_s: float
    seen: Fingerprint


class ModelWatcher:
    """The watcher of one model's folder; each model has its own thread, so that no model waits for another.

    Concurrency: run() in one thread; configure() and stop() from any.

    Args:
      wake: the event that ends the thread's wait between two scans of the folder.
    """

    def __init__(
        self, config: ModelConfig, registry: Registry, rules: LoadRules, wake: threading.Event | None = None
    ) -> None:
        self._name = config.name
        # The second one stays when the model is removed: a load may still fail then.
        self._config: ModelConfig | None = config
        self.last_config = config
        self._registry = registry
        self._rules = rules
        self._wake = wake or threading.Event()
        self._is_stopped = False
        # Lock without which configure() could set a config just after run() has decided to end the watcher's thread.
        self._ending = threading.Lock()
        self._is_over = False
        self._loaded: set[int] = set()
        self._paths: dict[int, Path] = {}
        # Version -> folder, as the last scan of the model's folder found them; other threads read this mapping.
        self.folders: Mapping[int, Path] = {}
        self._announced: set[int] = set()
        self._source: tuple[str, VersionSource] | None = None
        self._arrivals: dict[int, VersionArrival] = {}
        self._failures: dict[int, _Failure] = {}
        # Damaged version -> the fingerprint of its folder when the damage was found; the version is loaded again when
        # the folder's fingerprint changes.
        self._damaged: dict[int, Fingerprint] = {}
        self._problem = ""
        # Loads (by version) and folder scans (by path) that were given up after their timeout and may still hang.
        self._late_loads: dict[int, Attempt[Servable]] = {}
        self._late_looks: dict[Path, Attempt[Any]] = {}

    def configure(self, config: ModelConfig | None) -> bool:
        """Sets the model's configuration; None makes the watcher unload all versions and end its thread.

        Returns:
          False: the thread has ended already, and the configuration is not set.
        """
        with self._ending:
            if self._is_over:
                return False
            # If the config changes (other remote tables, for example), failures are forgotten: a version that failed
            # may load now.
            self._failures = self._failures if config == self._config else {}
            self._config, self.last_config = config, config or self.last_config
        self._wake.set()
        return True

    def look_again(self) -> None:
        """Wakes the watcher's thread, so that it scans the model's folder now and not at the next interval."""
        self._wake.set()

    def stop(self) -> None:
        """Makes the watcher's thread end after its current scan or load; loaded versions stay loaded."""
        self._is_stopped = True
        self._wake.set()

    @property
    def has_hanging_load(self) -> bool:
        """Whether a load of one of the model's versions still hangs after it was given up at its timeout."""
        return any(not attempt.is_over for attempt in tuple(self._late_loads.values()))

    def run(self, poll_interval_s: float) -> None:
        """Scans the model's folder until stop(): at each interval (0: never), when woken, and when a version is due."""
        while not self._is_stopped:
            self._wake.clear()
            due_s: float | None = None
            try:
                due_s = self.poll_once()
            except Exception:
                # An error must not end this thread: without the thread, no new version of the model would ever be
                # served.
                logger.exception("polling failed", extra={"model": self._name})
            with self._ending:
                if self._config is None and not (self._loaded or self._announced or self._failures):
                    self._is_over = True
                    return
            self._wake.wait(min((s for s in (poll_interval_s, due_s) if s is not None and s > 0), default=None))

    def poll_once(self) -> float | None:
        """Scans the model's folder, loads wanted versions, and unloads others once a wanted version is loaded.

        Returns:
          The seconds until the next waiting version is due; None if no version waits.
        """
        config = self._config
        self._take_out_damaged()
        found = {} if config is None else self._look(config.base_path)
        if found is None:
            # Loaded versions stay if the folder can not be read: a failed mount is more likely than a wish to stop
            # serving.
            return None
        whole = {version: path for version, path in found.items() if not self._is_damaged(version, path)}
        wanted = wanted_versions(config.policy, whole) if config else []
        self._note_problem(config, found, wanted)
        self._forget(found, wanted)
        for version in wanted:
            if version not in self._loaded and version not in self._failures:
                self._registry.announce(self._name, version)
                self._announced.add(version)
        for version in wanted:
            if version not in self._loaded and self._may_try(version, found[version]):
                with self._rules.slots:
                    if self._is_outdated(config):
                        return None
                    self._try_load(version, found[version])
            if self._is_outdated(config):
                return None
        if not wanted or self._loaded & set(wanted):
            self._unload_all_but(wanted)
        if self._source is not None:
            self._source[1].keep({*wanted, *self._loaded})
        return self._due_s(wanted)

    def _take_out_damaged(self) -> None:
        """Unloads at once versions whose files have changed since their load, because their answers may be wrong."""
        for version, why in self._registry.damages(self._name).items():
            logger.error("files are damaged", extra=self._named(version, why))
            self._damaged[version] = fingerprint(self._paths[version])
            self._registry.unload(self._name, version, because=DataLoss(self.last_config.told(why)))
            self._loaded.discard(version)

    def _named(self, version: int, reason: str) -> dict[str, Any]:
        return {"model": self._name, "version": version, "reason": reason}

    def _is_damaged(self, version: int, path: Path) -> bool:
        """Says whether a version was found damaged and its folder has not changed since then."""
        seen = self._damaged.get(version)
        if seen is None or fingerprint(path) == seen:
            return seen is not None
        # The folder of the damaged version has changed, perhaps because it was mended: the version may be loaded again.
        del self._damaged[version]
        return False

    def _is_outdated(self, config: ModelConfig | None) -> bool:
        # True if a new configuration came, or the watcher is to stop, while a version was loading or waited for its
        # turn to load. After a new configuration, run() scans the folder again.
        return self._config is not config or self._is_stopped

    def _source_of(self, base_path: str) -> VersionSource:
        if self._source is None or self._source[0] != base_path:
            rules = self._rules
            source: VersionSource = Folder(base_path, rules.settle_s, rules.clock, rules.wall_clock)
            if rules.open_store is not None and is_in_store(base_path):
                source = rules.open_store(self._name, base_path, self.look_again)
            self._source = base_path, source
            # Objects that watch version folders of the former base path are dropped: versions in the new base path get
            # new ones.
            self._arrivals.clear()
        return self._source[1]

    def _look(self, base_path: str) -> Mapping[int, Path] | None:
        try:
            source = self._source_of(base_path)
        except ServiceError as error:
            self._set_problem(error.message)
            return None
        found = None
        try:
            found = self.folders = self._within_time(Path(base_path), source.find)
        except TimeoutError as error:
            # The message is made here and not by source.unreadable(), which would read the same folder again and hang
            # as well.
            self._set_problem(f"cannot read its folder {base_path}: {error.strerror}")
        except OSError as error:
            self._set_problem(source.unreadable(error))
        self._rules.on_look(self._name, None if found is None else found.keys() | self._loaded)
        return found

    def _note_problem(self, config: ModelConfig | None, found: Mapping[int, Path], wanted: list[int]) -> None:
        if config is None or wanted:
            self._set_problem("")
        else:
            self._set_problem(self._source_of(config.base_path).unserved(found))

    def _set_problem(self, problem: str) -> None:
        if problem != self._problem:
            self._problem = problem
            self._registry.note_problem(self._name, problem and self.last_config.told(problem))
            if problem:
                logger.warning("model has no versions", extra={"model": self._name, "reason": problem})

    def _forget(self, found: Mapping[int, Path], wanted: list[int]) -> None:
        # The status of a failed version is removed only when its folder is gone, even if the policy does not want the
        # version any more.
        for version in self._failures.keys() - found.keys():
            del self._failures[version]
            self._registry.forget(self._name, version)
        for version in self._damaged.keys() - found.keys():
            del self._damaged[version]
            self._registry.forget(self._name, version)
        for version in self._announced - set(wanted):
            self._announced.discard(version)
            self._registry.withdraw(self._name, version)
        for version in self._arrivals.keys() - set(wanted):
            del self._arrivals[version]

    def _may_try(self, version: int, path: Path) -> bool:
        if self._is_loading_late(version):
            # The version is not loaded again while an earlier load of it hangs: each attempt could leave one more
            # hanging thread.
            return False
        self._late_loads.pop(version, None)
        arrival = self._arrivals.get(version)
        try:
            if arrival is None or arrival.folder != path:
                assert self._source is not None  # the scan that found the version has set it
                new = partial(self._source[1].arrival, version, path)
                arrival = self._arrivals[version] = self._within_time(path, new)
            if not self._within_time(path, arrival.is_complete):
                return False
        except TimeoutError:
            return False
        except ServiceError as error:
            self._announced.discard(version)
            self._registry.start(self._name, version)
            self._failed(version, error)
            return False
        failure = self._failures.get(version)
        if failure is None:
            return True
        if arrival.seen != failure.seen:
            # The folder has changed since the failure (the copy was not complete, or somebody mended it): the version
            # is loaded at once, and may be retried as often as a new version.
            failure.attempts = 0
            return True
        return failure.attempts <= self._rules.max_retries and self._rules.clock() >= failure.retry_at_s

    def _try_load(self, version: int, path: Path) -> None:
        rules = self._rules
        self._announced.discard(version)
        self._registry.start(self._name, version)
        started_s = rules.clock()
        try:
            servable = self._load(version, path)
        except Exception as error:
            if isinstance(error, DataLoss):
                # A damaged version is not retried, as a retry would read the same bytes: an older version is served
                # until the folder changes.
                self._damaged[version] = fingerprint(path)
                self._failures.pop(version, None)
                logger.error("files are damaged", extra=self._named(version, error.message))
                self._registry.fail(self._name, version, self.last_config.told_error(error))
            else:
                self._failed(version, error)
            return
        self._failures.pop(version, None)
        self._arrivals.pop(version, None)
        self._loaded.add(version)
        self._paths[version] = path
        self._registry.publish(servable)
        seconds = round(rules.clock() - started_s, 3)
        logger.info("loaded", extra={"model": self._name, "version": version, "seconds": seconds, "path": str(path)})

    def _load(self, version: int, path: Path) -> Servable:
        rules = self._rules
        attempt = Attempt(f"load-{self._name}-{version}", partial(rules.load, self._name, version, path), self._late)
        try:
            return attempt.result(rules.load_timeout_s)
        except TimeIsOver:
            self._late_loads[version] = attempt
            raise DeadlineExceeded(
                f"{path} did not load within {rules.load_timeout_s:g} s (--load_timeout_s), so it was given up: check "
                "that its files can be read and its graph does not wait. It is tried again when that load has ended"
            ) from None

    def _late(self, servable: Servable | None) -> None:
        """Closes the servable of a load that ended after its timeout; wakes the watcher, which tries the load again."""
        if servable is not None:
            servable.close()
        self._wake.set()

    def _is_loading_late(self, version: int) -> bool:
        return version in self._late_loads and not self._late_loads[version].is_over

    def _within_time(self, folder: Path, look: Callable[[], T]) -> T:
        """Runs a function that reads a folder, with a timeout.

        Raises TimeoutError after the timeout, and at once while an earlier read of the folder still hangs.
        """
        earlier = self._late_looks.get(folder)
        if earlier is None or earlier.is_over:
            attempt = Attempt(f"look-{self._name}", look)
            try:
                return attempt.result(self._rules.look_timeout_s)
            except TimeIsOver:
                self._late_looks[folder] = attempt
                logger.warning("a folder does not answer", extra={"model": self._name, "path": str(folder)})
        raise TimeoutError(errno.ETIMEDOUT, "its file system does not answer")

    def _failed(self, version: int, error: Exception) -> None:
        rules = self._rules
        seen = self._arrivals[version].seen
        failure = self._failures.setdefault(version, _Failure(0, 0.0, seen))
        failure.attempts += 1
        failure.retry_at_s = rules.clock() + rules.retry_interval_s
        failure.seen = seen
        known = error if isinstance(error, ServiceError) else ArtifactError(f"{type(error).__name__}: {error}")
        logger.error(
            "load failed",
            exc_info=None if isinstance(error, ServiceError) else error,
            extra={
                "model": self._name,
                "version": version,
                "reason": known.message,
                "attempt": failure.attempts,
                "retry_in_s": rules.retry_interval_s if failure.attempts <= rules.max_retries else None,
            },
        )
        self._registry.fail(self._name, version, self.last_config.told_error(known))

    def _unload_all_but(self, wanted: list[int]) -> None:
        for version in sorted(self._loaded - set(wanted)):
            self._registry.unload(self._name, version)
            self._loaded.discard(version)
        ended = [s for s in self._registry.all_statuses(self._name) if s.state is State.END and s.code == "OK"]
        for status in ended[_MAX_ENDED:]:
            self._registry.forget(self._name, status.version)

    def _due_s(self, wanted: list[int]) -> float | None:
        rules, waits = self._rules, list[float]()
        for version in wanted:
            failure = self._failures.get(version)
            if version in self._loaded or self._is_loading_late(version):
                continue
            if failure is None:
                waits.append(rules.settle_s)
            elif failure.attempts <= rules.max_retries:
                waits.append(failure.retry_at_s - rules.clock())
        # The returned wait is at least 0.01 s, because the watcher's run() ignores a wait of 0.
        return max(min(waits), 0.01) if waits else None
