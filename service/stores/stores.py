"""Opens a mirror for each model whose base path is the URI of an object store."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from service.stores.cache import Cache
from service.stores.listing import Counts
from service.stores.mirror import Mirror
from service.stores.object_store import ObjectStore


class Stores:
    """The mirrors of one server's models, which share one cache folder. Concurrency: any thread.

    Args:
      poll_s, settle_s: as in Mirror.

    Raises:
      OSError, CacheInUse: the cache folder can not be used.
    """

    def __init__(self, cache_folder: Path, max_bytes: int, *, poll_s: float, settle_s: float) -> None:
        self._cache = Cache(cache_folder, max_bytes)
        self._poll_s = poll_s
        self._settle_s = settle_s
        self._opening = threading.Lock()
        self._mirrors: dict[tuple[str, str], Mirror] = {}

    def open(self, model: str, base_path: str, wake: Callable[[], None]) -> Mirror:
        """Returns or opens the mirror of a model's base path; raises InvalidRequest for a URI that can not be used."""
        with self._opening:
            mirror = self._mirrors.get((model, base_path))
            if mirror is None:
                store = ObjectStore(base_path)
                folder = self._cache.folder_of(model, store.uri)
                mirror = Mirror(model, store, folder, self._cache, wake, self._poll_s, self._settle_s)
                self._mirrors[model, base_path] = mirror
            mirror.wake = wake
            return mirror

    def forget(self, model: str) -> None:
        """Drops the mirrors of a removed model, with their counts; the model's cache folder stays."""
        with self._opening:
            self._mirrors = {key: mirror for key, mirror in self._mirrors.items() if key[0] != model}

    def status(self) -> list[dict[str, Any]]:
        """Returns the state of each mirror for the status page, sorted by model and URI."""
        return [mirror.status() for _, mirror in sorted(self._mirrors.copy().items())]

    def counts(self) -> list[tuple[str, Counts, bool]]:
        return [(mirror.model, mirror.counts, not mirror.problem) for _, mirror in sorted(self._mirrors.copy().items())]
