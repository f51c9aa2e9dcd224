"""Watches one model's folder, and loads and unloads versions as the model's policy says.

A folder holds one sub-folder per version, named by an integer. New versions are loaded before old versions are
unloaded, and a version that fails to load replaces nothing.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from service.artifact.completeness import Fingerprint, Identity, is_replaced
from service.errors import ArtifactError, DataLoss, NotReady, ServiceError
from service.types import State
from service.versions.loads import Failure, LoadRules, VersionLoads
from service.versions.model_config import Latest, ModelConfig, wanted_versions
from service.versions.model_folder import SHORTEST_WAIT_S, LoadedFiles, ModelFolder, Scan, Scanned, unanswered
from service.versions.registry import Registry

logger = logging.getLogger(__name__)

# Maximum number of unloaded versions that a model's status still lists, as TensorFlow Serving lists them too.
_MAX_ENDED = 32
_NOT_RELOADED = "they are not served; give them a new number, or start with --reload_replaced_versions"


class ModelWatcher:
    """The watcher of one model's folder: scan() reads the folder, act() then loads and unloads versions.

    Concurrency: act() by one caller at a time, and not beside a scan() whose result is used; the rest from any thread.

    Args:
      look_again: makes the poller scan the model's folder now, and not at the next interval.
    """

    def __init__(
        self,
        config: ModelConfig,
        registry: Registry,
        rules: LoadRules,
        look_again: Callable[[], None] = lambda: None,
    ) -> None:
        self.name = config.name
        self.look_again = look_again
        # The second one stays when the model is removed: a load may still fail then.
        self._config: ModelConfig | None = config
        self.last_config = config
        self._registry = registry
        self._rules = rules
        self._is_stopped = False
        # Lock without which configure() could set a config just after end_if_over() has decided to end the watcher.
        self._ending = threading.Lock()
        self._is_over = False
        self._loaded: dict[int, LoadedFiles] = {}
        self._folder = ModelFolder(config.name, rules, self.look_again)
        self._announced: set[int] = set()
        self._failures: dict[int, Failure] = {}
        # Versions whose folder has changed since they failed. So has that of a version which is just being removed.
        self._copied_again: set[int] = set()
        # Damaged version -> the fingerprint of its folder with the damage; the version is loaded again when its folder
        # has another one.
        self._damaged: dict[int, Fingerprint] = {}
        self._notes: Mapping[int, str] = {}
        # Replaced version that did not load again -> its files at that load, the error, and the count of failures.
        self._not_reloaded: dict[int, tuple[Identity, str, Failure]] = {}
        self._problem = ""
        # The last scan after whose act() nothing was left to do: an equal scan needs no act().
        self._settled: Scanned | None = None
        self._loads = VersionLoads(config.name, rules, self.look_again)

    def configure(self, config: ModelConfig | None) -> bool:
        """Sets the configuration; None: unloads all versions, and ends. False: the watcher has ended already."""
        with self._ending:
            if self._is_over:
                return False
            # If the config changes (other remote tables, for example), failures are forgotten: a version that failed
            # may load now.
            self._failures = self._failures if config == self._config else {}
            self._config, self.last_config = config, config or self.last_config
        self.look_again()
        return True

    def end_if_over(self) -> bool:
        with self._ending:
            self._is_over = self._config is None and not (self._loaded or self._announced or self._failures)
            return self._is_over

    def stop(self) -> None:
        self._is_stopped = True

    @property
    def base_path(self) -> str | None:
        """The base path that scan() reads; None if the model is removed, so that scan() reads nothing."""
        config = self._config
        return None if config is None else config.base_path

    @property
    def folders(self) -> Mapping[int, Path]:
        """Version -> folder, as the last scan found them. Concurrency: any thread."""
        return self._folder.folders

    @property
    def has_hanging_load(self) -> bool:
        return self._loads.has_hanging

    def scan(self) -> Scanned:
        """Reads the model's folder, and the state of the files of loaded versions; changes nothing, and may hang."""
        return self._folder.scan(self._config, tuple(self._loaded), self._registry.damages(self.name))

    def unanswered(self) -> Scanned:
        return unanswered(self._config)

    def is_quiet(self, scanned: Scanned) -> bool:
        """Says whether act() has nothing to load, unload or read after this scan, so that it takes no time."""
        return scanned == self._settled

    def act(self, scanned: Scanned) -> float | None:
        """Does what a scan asks for: loads wanted versions, and unloads others once a wanted version is loaded.

        Returns:
          The seconds until the next waiting version is due; None if no version waits.
        """
        config, scan, problem, damages = scanned
        if config is not None:
            versions = None if scan is None else scan.folders.keys() | self._loaded.keys()
            self._rules.on_look(self.name, versions)
        if self.is_quiet(scanned):
            return None
        self._settled = None
        self._take_out_damaged(damages)
        if self._is_outdated(config):
            # configure() has woken the poller, which scans the folder again.
            return None
        self._folder.note(scan)
        if scan is None:
            # Loaded versions stay if the folder can not be read: a failed mount is more likely than a wish to stop
            # serving.
            self._set_problem(problem)
            return None
        if config is not None and self._loaded and (left_s := self._folder.empty_left_s()):
            return left_s
        found = scan.folders
        for version, damaged in list(self._damaged.items()):
            # Perhaps somebody has mended the version, so it may be loaded again.
            if version in found and self._folder.is_mended(version, found[version], damaged):
                del self._damaged[version]
        whole = {version: path for version, path in found.items() if version not in self._damaged}
        wanted = wanted_versions(config.policy, whole) if config else []
        self._set_problem("" if config is None or wanted else self._folder.source.unserved(found))
        self._forget(found, wanted)
        self._announce(*(v for v in wanted if v not in self._loaded and v not in self._failures))
        instead = self._instead(config, whole, wanted)
        for version in wanted:
            self._try(config, version, found[version], instead)
            if self._is_outdated(config):
                return None
        # While an object store still fetches the wanted version, an older one is not fetched beside it.
        has_failed = bool(self._failures.keys() & set(wanted))
        for version in (v for v in instead if has_failed or self._folder.source.is_at_hand(v)):
            if self._loaded:
                break
            if self._try(config, version, found[version], instead) and not self._is_outdated(config):
                extra = {"model": self.name, "version": version, "instead_of": wanted[0]}
                logger.warning("an older version is served", extra=extra)
            if self._is_outdated(config):
                return None
        self._withdraw(self._announced & set(instead))
        self._note_versions(config, scan)
        # A damaged version that the policy wants replaces nothing, as one that fails to load.
        is_none_wanted = config is None or not wanted_versions(config.policy, found)
        if is_none_wanted or self._loaded.keys() & set(wanted):
            self._unload_all_but(wanted)
        self._folder.keep({*wanted, *self._loaded, *(() if self._loaded else instead)})
        is_settled = self._loaded and self._loaded.keys() == set(wanted) and not (self._failures or self._damaged)
        # An object store's folder is not settled: it fetches and removes files between two equal scans.
        if is_settled and self._folder.source.is_local and not (self._notes and self._rules.reloads_replaced):
            self._settled = scanned
        return self._due_s(wanted)

    def _instead(self, config: ModelConfig | None, whole: Mapping[int, Path], wanted: Sequence[int]) -> list[int]:
        if config is None or self._loaded or not isinstance(config.policy, Latest):
            return []
        return sorted(whole.keys() - set(wanted), reverse=True)

    def _try(self, config: ModelConfig | None, version: int, path: Path, instead: Sequence[int]) -> bool:
        """Loads a version if it is not loaded and may be tried now; returns whether this call has loaded it.

        Args:
          instead: versions of which the next one is to be loaded if this load fails.
        """
        if version in self._loaded or not self._may_try(version, path):
            return False
        with self._rules.slots:
            if self._is_outdated(config):
                return False
            self._try_load(version, path, next((v for v in instead if v != version and v not in self._failures), None))
        return version in self._loaded

    def _note_versions(self, config: ModelConfig | None, scan: Scan) -> None:
        """Reports versions whose files were replaced under the same number, and loads them again if the rules say so.

        Reports folders that have the same number, too.
        """
        notes = dict(scan.notes)
        for version, now in scan.identities.items():
            loaded = self._loaded.get(version)
            if loaded is None or not is_replaced(loaded.identity, now):
                continue
            path = scan.folders[version]
            if why := self._reload(config, version, path, now) if self._rules.reloads_replaced else _NOT_RELOADED:
                notes[version] = f"other files than the served ones lie in {path}: {why}"
        if notes != self._notes:
            before, self._notes = self._notes, notes
            self._registry.note_versions(self.name, notes)
            for version in notes.keys() - before.keys():
                logger.warning("version needs attention", extra=self._named(version, notes[version]))

    def _reload(self, config: ModelConfig | None, version: int, path: Path, now: Identity) -> str:
        """Loads a replaced version again; returns why it is not served yet, "" if it is.

        The version that is served stays until the new one is loaded.
        """
        before, reason, failure = self._not_reloaded.get(version, (now, "", Failure()))
        if before == now and not failure.is_due(self._rules.clock()):
            return reason
        try:
            if self._loads.is_hanging(version) or not self._folder.has_arrived(version, path):
                return "they are loaded when all of them are there"
            seen = self._folder.seen(version)
            with self._rules.slots:
                if self._is_outdated(config):
                    return ""
                loaded = self._loads.load(version, path)
        except TimeoutError:
            return "their file system does not answer"
        except Exception as error:
            reason = error.message if isinstance(error, ServiceError) else f"{type(error).__name__}: {error}"
            failure = failure if before == now else Failure()
            self._note_failure(failure, error, 0)
            self._not_reloaded[version] = now, reason, failure
            logger.error("reload of a replaced version failed", extra=self._named(version, reason))
            return reason
        self._folder.forget(version)
        self._not_reloaded.pop(version, None)
        self._loaded[version] = LoadedFiles(path, seen, loaded.identity)
        self._registry.exchange(loaded.servable)
        logger.info("loaded again", extra={"model": self.name, "version": version, "path": str(path)})
        return ""

    def _take_out_damaged(self, damages: Mapping[int, str]) -> None:
        """Unloads at once versions whose files have changed since their load, because their answers may be wrong."""
        for version, why in damages.items():
            logger.error("files are damaged", extra=self._named(version, why))
            self._damaged[version] = self._folder.damaged(self._loaded.pop(version))
            self._registry.unload(self.name, version, because=DataLoss(self.last_config.told(why)))

    def _named(self, version: int, reason: str) -> dict[str, Any]:
        return {"model": self.name, "version": version, "reason": reason}

    def _is_outdated(self, config: ModelConfig | None) -> bool:
        # True if a new configuration came, or the watcher is to stop, since the scan began. After a new configuration,
        # the poller scans the folder again.
        return self._config is not config or self._is_stopped

    def _set_problem(self, problem: str) -> None:
        if problem != self._problem:
            self._problem = problem
            self._registry.note_problem(self.name, problem and self.last_config.told(problem))
            if problem:
                what = "no new versions are seen" if self._loaded else "model has no versions"
                logger.warning(what, extra={"model": self.name, "reason": problem})

    def _forget(self, found: Mapping[int, Path], wanted: list[int]) -> None:
        # The status of a failed version is removed only when its folder is gone, even if the policy does not want the
        # version any more.
        self._withdraw(self._announced - set(wanted))
        gone = (self._failures.keys() | self._damaged.keys() | self._copied_again) - found.keys()
        for version in gone:
            self._failures.pop(version, None)
            self._damaged.pop(version, None)
        self._copied_again -= gone
        self._registry.forget(self.name, *gone)

    def _announce(self, *versions: int) -> None:
        self._registry.announce(self.name, *versions)
        self._announced.update(versions)

    def _withdraw(self, versions: Collection[int]) -> None:
        self._announced.difference_update(versions)
        self._registry.withdraw(self.name, *versions)

    def _may_try(self, version: int, path: Path) -> bool:
        if self._loads.is_hanging(version):
            # The version is not loaded again while an earlier load of it hangs: each attempt could leave one more
            # hanging thread.
            return False
        failure = self._failures.get(version)
        try:
            has_arrived = self._folder.has_arrived(version, path)
            seen = self._folder.seen(version)
            if not has_arrived:
                if failure is not None and seen != failure.seen:
                    # The version is being copied again, so that its old error does not tell of it any more.
                    del self._failures[version]
                    self._copied_again.add(version)
                    self._announce(version)
                return False
        except TimeoutError:
            return False
        except ServiceError as error:
            self._announced.discard(version)
            self._registry.start(self.name, version)
            self._failed(version, error)
            return False
        if failure is None:
            return True
        if seen != failure.seen:
            # The folder has changed since the failure (the copy was not complete, or somebody mended it): the version
            # is loaded at once, and may be retried as often as a new version.
            failure.attempts = 0
            return True
        return failure.is_due(self._rules.clock())

    def _try_load(self, version: int, path: Path, instead: int | None) -> None:
        rules = self._rules
        self._announced.discard(version)
        self._registry.start(self.name, version)
        started_s = rules.clock()
        seen = self._folder.seen(version)
        try:
            loaded = self._loads.load(version, path)
        except Exception as error:
            if instead is not None:
                # The version that is tried next is announced first, so that a reload of the list does not meet a
                # moment in which the model has failed and nothing else comes.
                self._announce(instead)
            if isinstance(error, DataLoss):
                # A damaged version is not retried, as a retry would read the same bytes: an older version is served
                # until the folder changes.
                self._damaged[version] = seen
                self._failures.pop(version, None)
                logger.error("files are damaged", extra=self._named(version, error.message))
                self._registry.fail(self.name, version, self.last_config.told_error(error))
            else:
                self._failed(version, error)
            return
        self._failures.pop(version, None)
        self._folder.forget(version)
        self._loaded[version] = LoadedFiles(path, seen, loaded.identity)
        self._registry.publish(loaded.servable)
        seconds = round(rules.clock() - started_s, 3)
        infos = {name: table.info for name, table in sorted(loaded.servable.tables.items())}
        tables = {name: [info.vocabulary_size, info.embedding_dim] for name, info in infos.items()}
        shown = ", ".join(f"{name} {rows:,} x {dim}" for name, (rows, dim) in tables.items())
        told = f"{self.name} version {version}, ready after {seconds:.1f} s; tables: {shown or 'none'}"
        extra = {"model": self.name, "version": version, "seconds": seconds, "path": str(path), "tables": tables}
        logger.info("loaded", extra=extra | {"told": told})

    def _failed(self, version: int, error: Exception) -> None:
        failure = self._failures.setdefault(version, Failure())
        retry_in_s = self._note_failure(failure, error, self._rules.max_retries)
        failure.seen = self._folder.seen(version)
        known = error if isinstance(error, ServiceError) else ArtifactError(f"{type(error).__name__}: {error}")
        logger.log(
            # A server that stops ends its loads by NotReady.
            logging.INFO if self._registry.is_draining and isinstance(error, NotReady) else logging.ERROR,
            "load failed",
            exc_info=None if isinstance(error, ServiceError) else error,
            extra=self._named(version, known.message) | {"attempt": failure.attempts, "retry_in_s": retry_in_s},
        )
        self._registry.fail(self.name, version, self.last_config.told_error(known))

    def _note_failure(self, failure: Failure, error: Exception, max_retries: int) -> float | None:
        return failure.note(error, self._rules.clock(), self._rules.retry_interval_s, max_retries)

    def _unload_all_but(self, wanted: list[int]) -> None:
        for version in sorted(self._loaded.keys() - set(wanted)):
            self._registry.unload(self.name, version)
            del self._loaded[version]
        ended = [s for s in self._registry.all_statuses(self.name) if s.state is State.END and s.code == "OK"]
        self._registry.forget(self.name, *(status.version for status in ended[_MAX_ENDED:]))

    def _due_s(self, wanted: list[int]) -> float | None:
        rules, waits = self._rules, list[float]()
        for version in (v for v in wanted if v not in self._loaded and not self._loads.is_hanging(v)):
            failure = self._failures.get(version)
            if failure is None:
                waits.append(rules.settle_s)
            elif failure.retry_at_s is not None:
                waits.append(failure.retry_at_s - rules.clock())
        return max(min(waits), SHORTEST_WAIT_S) if waits else None
