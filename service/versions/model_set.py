"""Serves the models of a list; a reload replaces the list as a whole or not at all.

A reload first loads its new models beside the served ones, out of the reach of requests. Then names, labels and
policies change at one moment, and models that are no longer listed are unloaded.

Source: tensorflow_serving/model_servers/server_core.cc ReloadConfig, UpdateModelVersionLabelMap (9d981c5).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from service.errors import (
    ConfigConflict,
    DeadlineExceeded,
    ModelNotFound,
    NotReady,
    Overloaded,
    ReloadFailed,
    ServiceError,
    VersionNotFound,
)
from service.types import State
from service.versions.loads import LoadRules
from service.versions.model_config import ModelConfig, Origin, check_list, check_platforms_kept, check_platforms_known
from service.versions.poller import Poller
from service.versions.registry import Registry
from service.versions.repository import ModelWatcher

logger = logging.getLogger(__name__)

# Maximum number of removed models whose status is still reported; TensorFlow Serving reports all of them.
_MAX_REMOVED = 100
_LOOK_AGAIN_S = 0.02
# Maximum time, in seconds, that a refused reload waits until its new models are unloaded; a load that is running goes
# on after that time.
_TAKE_BACK_S = 1.0


class ModelSet:
    """The list of served models, with a watcher of each model's folder. Concurrency: any thread.

    Args:
      poll_interval_s: seconds between two scans of a model's folder; 0: one scan for each config.
      reload_timeout_s: seconds that a reload may wait for its models and for the reload before it.
      allow_labels_for_unavailable: a new label may point to a version that is not AVAILABLE.
      on_commit: called with each accepted list, before requests can reach its new models.
    """

    def __init__(
        self,
        registry: Registry,
        rules: LoadRules,
        *,
        poll_interval_s: float,
        reload_timeout_s: float,
        allow_labels_for_unavailable: bool = False,
        on_change: Callable[[], None] = lambda: None,
        on_commit: Callable[[Sequence[ModelConfig]], None] = lambda configs: None,
    ) -> None:
        self._registry = registry
        self._rules = rules
        self._reload_timeout_s = reload_timeout_s
        self._allow_labels_for_unavailable = allow_labels_for_unavailable
        self._on_change = on_change
        self._on_commit = on_commit
        self._changing = threading.Lock()
        # Allows one running and one waiting reload of the list of models: each blocks a thread that other requests need
        # as well.
        self._reloads = threading.BoundedSemaphore(2)
        # Lock under which a model of a refused reload is removed from the registry: without it, a model of the same
        # name that the next reload has added could be removed.
        self._dropping = threading.Lock()
        self._configs: Mapping[str, ModelConfig] = {}
        self._poller = Poller(poll_interval_s, rules.look_timeout_s)
        self._watchers: dict[str, ModelWatcher] = {}
        self._removed: list[str] = []
        self._refused: set[str] = set()
        self._is_stopped = False

    @property
    def configs(self) -> tuple[ModelConfig, ...]:
        return tuple(self._configs.values())

    def check(self, configs: Sequence[ModelConfig]) -> None:
        """Checks a new list of models, also against the models that are served now.

        Raises:
          InvalidRequest: versions.model_config refuses the list.
          ConfigConflict: a label points to a version that is not AVAILABLE.
        """
        check_list(configs, has_stores=self._rules.open_store is not None)
        check_platforms_kept(self._configs, configs)
        for config in configs:
            for label, version in config.labels.items():
                self._check_label(config.name, label, version)
        check_platforms_known(configs)

    def start(self, configs: Sequence[ModelConfig]) -> None:
        """Starts to serve the first list of models, without waiting until they are loaded; raises as check() does."""
        with self._changing:
            self.check(configs)
            self._rules.on_list(configs)
            self._commit(configs)

    def reload(
        self,
        configs: Sequence[ModelConfig],
        deadline_s: float | None = None,
        agree: Callable[[], None] = lambda: None,
    ) -> None:
        """Replaces the list of models; blocks until all new models have an AVAILABLE version. An error changes nothing.

        Args:
          deadline_s: on the clock of the load rules; the reload timeout applies too.
          agree: called when the new models are AVAILABLE; if it raises a ServiceError, they are unloaded again.

        Raises:
          InvalidRequest, ConfigConflict: as check does.
          ReloadFailed: a new model has no version that loads.
          DeadlineExceeded: the new models were not AVAILABLE in time.
          Overloaded: another reload waits already.
          NotReady: the server is shutting down.
        """
        if not self._reloads.acquire(blocking=False):
            raise Overloaded("A reload is going on and another one waits for it; nothing was changed.")
        try:
            self._reload(configs, deadline_s, agree)
        finally:
            self._reloads.release()

    def _reload(self, configs: Sequence[ModelConfig], deadline_s: float | None, agree: Callable[[], None]) -> None:
        latest_s = self._rules.clock() + self._reload_timeout_s
        until_s = latest_s if deadline_s is None else min(latest_s, deadline_s)
        if not self._changing.acquire(timeout=max(until_s - self._rules.clock(), 0)):
            raise DeadlineExceeded("Another reload was still going on when the time for this one was over.")
        try:
            self._refuse_if_stopped()
            self.check(configs)
            self._rules.on_list(configs)
            new = [config for config in configs if config.name not in self._configs]
            try:
                for config in new:
                    self._watch(config)
                self._wait_until_available([config.name for config in new], until_s)
                agree()
            except ServiceError as error:
                self._take_back([config.name for config in new])
                self._rules.on_list(list(self._configs.values()))
                # A ConfigConflict is no fault of the server: the list of models changed during this reload.
                level = logging.INFO if isinstance(error, ConfigConflict) else logging.ERROR
                logger.log(level, "reload refused", extra={"reason": error.message})
                raise
            self._commit(configs)
        finally:
            self._changing.release()

    def look_again(self, name: str) -> None:
        self._poller.wake(name)

    def folders(self, name: str) -> Mapping[int, Path]:
        watcher = self._watchers.get(name)
        return {} if watcher is None or name not in self._configs else watcher.folders

    def folder(self, name: str, version: int) -> Path:
        """Returns the local folder of a version of a model, loaded or not; raises ModelNotFound, VersionNotFound."""
        if name not in self._watchers or name not in self._configs:
            raise ModelNotFound(f"Could not find any versions of model {name}")
        found = self.folders(name)
        if version not in found:
            known = ", ".join(map(str, sorted(found))) or "none"
            raise VersionNotFound(f"Model {name} has no folder of version {version}. Versions: {known}.")
        return found[version]

    def base_path(self, name: str) -> str:
        config = self._configs.get(name)
        return "" if config is None else config.base_path

    def origin(self, name: str) -> Origin:
        return self._watchers[name].last_config.origin

    def is_settled(self, name: str) -> bool:
        """Says whether a model answers requests (lookups at least), or has failed to load."""
        registry = self._registry
        return registry.is_available(name) or registry.shows_lookups(name) or bool(self._failure(name))

    def drain(self) -> None:
        """Makes running and waiting reloads of the list of models end, so that they do not delay a shutdown."""
        self._is_stopped = True

    def stop(self, timeout_s: float | None = None) -> list[str]:
        """Ends the polling of all models, and waits up to timeout_s for loads and unloads that run.

        Loaded versions stay loaded.

        Returns:
          The models that still load or unload after the timeout.
        """
        self.drain()
        with self._changing:
            self._poller.stop()
        return self._poller.wait_until_idle(timeout_s)

    def hanging(self) -> list[str]:
        return sorted(name for name, watcher in self._watchers.items() if watcher.has_hanging_load)

    def _refuse_if_stopped(self) -> None:
        if self._is_stopped:
            raise NotReady("The server is shutting down.")

    def _check_label(self, model: str, label: str, version: int) -> None:
        is_moved = self._registry.labels(model).get(label, version) != version
        if self._allow_labels_for_unavailable and not is_moved:
            return
        if model not in self._configs or not self._registry.is_available(model, version):
            raise ConfigConflict(
                f"Request to assign label to version {version} of model {model}, which is not currently available for "
                "inference"
            )

    def _commit(self, configs: Sequence[ModelConfig]) -> None:
        old, self._configs = self._configs, {config.name: config for config in configs}
        for config in configs:
            # A reload starts the watchers of its new models before it calls _commit(); for the server's first list of
            # models, _commit() starts them.
            if not self._is_watched(config):
                self._watch(config)
        self._on_commit(configs)
        self._registry.configure({config.name: config.labels for config in configs})
        for name in old.keys() - self._configs.keys():
            self._watchers[name].configure(None)
            self._removed.append(name)
        self._removed = [name for name in self._removed if name not in self._configs]
        self._registry.drop(self._removed[:-_MAX_REMOVED])
        self._removed = self._removed[-_MAX_REMOVED:]
        logger.info("models", extra={"models": sorted(self._configs)})
        self._on_change()

    def _is_watched(self, config: ModelConfig) -> bool:
        watcher = self._watchers.get(config.name)
        return watcher is not None and watcher.configure(config)

    def _watch(self, config: ModelConfig) -> None:
        """Starts the watcher of a new model, which no request can reach before the reload is accepted."""
        name = config.name
        with self._dropping:
            self._refused.discard(name)
            self._registry.add_model(name, is_configured=False)
        if self._is_watched(config):
            # A watcher exists, because the model was removed a moment ago and is still unloading; it goes on with the
            # new config.
            return
        watcher = ModelWatcher(config, self._registry, self._rules, partial(self._poller.wake, name))
        self._watchers[name] = watcher
        self._poller.add(watcher, partial(self._drop_if_refused, name))

    def _drop_if_refused(self, name: str) -> None:
        with self._dropping:
            if name in self._refused:
                self._registry.drop([name])

    def _take_back(self, names: Sequence[str]) -> None:
        self._refused.update(names)
        taken = [name for name in names if name in self._watchers]
        for name in taken:
            self._watchers[name].configure(None)
        self._poller.wait_until_ended(taken, _TAKE_BACK_S)

    def _wait_until_available(self, names: Sequence[str], until_s: float) -> None:
        while True:
            waiting = [name for name in names if not self._registry.is_available(name)]
            failed = {name: reason for name in waiting if (reason := self._failure(name))}
            if failed:
                listed = "".join(f"{{{reason}}}, " for reason in failed.values())
                raise ReloadFailed(f"{len(failed)} model(s) did not become available: {{{listed}}}")
            if not waiting:
                return
            self._refuse_if_stopped()
            if self._rules.clock() >= until_s:
                raise DeadlineExceeded(f"Not available in time, so nothing was changed: {', '.join(waiting)}")
            time.sleep(_LOOK_AGAIN_S)

    def _failure(self, name: str) -> str:
        statuses = self._registry.all_statuses(name)
        if any(status.state in (State.START, State.LOADING) for status in statuses):
            return ""
        problem = self._registry.noted_problem(name)
        for status in statuses:
            if status.code != "OK" and self.origin(name) == "client":
                # A client gets the same text for a missing folder and for a version that can not be loaded.
                problem = status.message
            elif status.code != "OK":
                return f"{{name: {name} version: {status.version}}} due to error: {status.code}: {status.message}"
        return f"{{name: {name}}} due to error: {problem}" if problem else ""
