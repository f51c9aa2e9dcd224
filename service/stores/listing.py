"""Lists the versions below one URI of an object store at intervals, in threads, so that no request of a store is waited
for while the cache folder has versions.
"""

from __future__ import annotations

import errno
import logging
import random
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from service.engine.base_paths import same_number, version_number
from service.stores.object_store import ObjectStore, StoreError

logger = logging.getLogger(__name__)

_FIRST_WAIT_S = 1.0
_MAX_WAIT_S = 60.0


@dataclass(slots=True)
class Counts:
    """Counts of what one model's mirror did in its object store. read_bytes: bytes that were read from objects."""

    read_bytes: int = 0
    listings: int = 0
    failures: int = 0
    fetched: int = 0


@dataclass(eq=False)
class Listing:
    """The last listing of a model's versions in an object store. Concurrency: the watcher's thread calls.

    An empty listing counts as a failure while versions are known: if a portal or a proxy sends a web page in place of
    the store's listing, obstore reads the page as an empty listing, and this must not unload the model's versions.

    Args:
      cached: returns the versions in the cache folder. wake: called when a listing has ended.
      poll_s: seconds between two listings. clock: seconds, monotonic. named: what log lines say of the mirror.

    Attributes:
      names: version -> name of its folder, by the last listing that did not fail; None before it.
      notes: version -> one line on folders for the same number. problem: why the last listing failed; "" if it did not.
      is_new: set by a listing that did not fail; whoever reads the listing clears the flag.
    """

    store: ObjectStore
    cached: Callable[[], Collection[int]]
    wake: Callable[[], None]
    poll_s: float
    clock: Callable[[], float]
    counts: Counts
    named: Mapping[str, Any]
    names: Mapping[int, str] | None = None
    notes: Mapping[int, str] = field(default_factory=dict)
    problem: str = ""
    is_new: bool = False
    _due_s: float = 0.0
    _failures: int = 0
    _thread: threading.Thread | None = None

    def begin_if_due(self) -> None:
        """Begins to list the store in a thread, unless a listing runs or was made less than poll_s ago."""
        if self._thread is None and self.clock() >= self._due_s:
            self._thread = threading.Thread(target=self._run, name=f"list-{self.store.uri}", daemon=True)
            self._thread.start()

    def wait(self) -> None:
        """Waits until the listing that runs has ended."""
        if (thread := self._thread) is not None:
            thread.join()

    def _run(self) -> None:
        try:
            self._read()
        except Exception as error:
            is_known = isinstance(error, StoreError)
            problem = error.text if isinstance(error, StoreError) else f"the store can not be listed: {error}"
            if self.problem != problem:
                extra = {**self.named, "reason": problem}
                logger.warning("store can not be listed", exc_info=None if is_known else error, extra=extra)
            self.problem = problem
            self._failures += 1
            self.counts.failures += 1
            self._due_s = self.clock() + wait_s(self._failures, self.poll_s)
        finally:
            self._thread = None
            self.wake()

    def _read(self) -> None:
        self.counts.listings += 1
        folders: dict[int, list[str]] = {}
        for name in sorted(self.store.folders()):
            if (version := version_number(name)) is not None:
                folders.setdefault(version, []).append(name)
        if not folders and (self.names or self.cached()):
            raise StoreError(errno.ENOENT, "the store lists no versions any more; the versions before stay")
        if self.problem:
            logger.info("store is listed again", extra=self.named)
        self.problem, self._failures = "", 0
        self.names = {version: given[-1] for version, given in folders.items()}
        self.notes = {version: same_number(given) for version, given in folders.items() if len(given) > 1}
        self._due_s = self.clock() + jittered(self.poll_s)
        self.is_new = True


def wait_s(attempts: int, poll_s: float) -> float:
    """Returns the seconds between a failed attempt to read the store and the next one."""
    return jittered(min(_FIRST_WAIT_S * 2 ** (attempts - 1), _MAX_WAIT_S, max(poll_s, _FIRST_WAIT_S)))


def jittered(seconds: float) -> float:
    """Returns a wait that is up to 20 % shorter or longer at random.

    Otherwise all servers that read one bucket could send their requests at the same moment.
    """
    return seconds * random.uniform(0.8, 1.2)
