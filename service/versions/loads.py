"""Runs the loads of a model's versions by rules: sources of files, threads with a time limit, and retries of failures.

The fault of a version's own folder stays until the folder changes, so it is tried a bounded number of times. What
failed for another reason (a cluster, an object store, memory, a password, a file system that does not answer) is tried
for ever, because nothing in the folder will tell that the reason is gone.
"""

from __future__ import annotations

import errno
import os
import random
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from service.artifact import completeness
from service.artifact.completeness import Fingerprint, Identity, identity
from service.errors import DeadlineExceeded, ServiceError
from service.versions import model_config
from service.versions.model_config import ModelConfig
from service.versions.servable import Servable


class VersionArrival(Protocol):
    """The watcher of one version's files, until all of them are in the local folder.

    folder: the version's local folder. seen: the folder's fingerprint at the last check.
    """

    @property
    def folder(self) -> Path: ...

    @property
    def seen(self) -> Fingerprint: ...

    def is_complete(self) -> bool:
        """Says whether all files of the version are in its folder; raises ServiceError if they can not be fetched."""


class VersionSource(Protocol):
    """Finder of one model's versions below a base path, local or remote. Concurrency: one caller at a time."""

    @property
    def is_local(self) -> bool:
        """Whether the arrival of a version fetches none of its files."""

    @property
    def notes(self) -> Mapping[int, str]:
        """Version -> one line on what is odd about the place of its files, at the last find()."""

    def find(self) -> Mapping[int, Path]:
        """Returns version -> local folder, also for versions whose files are not there yet; raises OSError."""

    def unreadable(self, error: OSError) -> str:
        """Returns one line for people that explains an OSError of find(), which could not read the base path."""

    def unserved(self, found: Collection[int]) -> str:
        """Returns one line that says why the base path has no version that the model's policy wants."""

    def arrival(self, version: int, path: Path) -> VersionArrival:
        """Returns an object that watches a version until all its files are in the local folder."""

    def is_at_hand(self, version: int) -> bool:
        """Says whether the version can be loaded without waiting for files from elsewhere."""

    def keep(self, versions: Collection[int]) -> None:
        """Tells the VersionSource which versions are loaded or wanted; it may remove its local copies of others."""


# Type of a function that opens the source of a model's URI; its arguments are the model's name, the URI, and a function
# to call when a version was fetched.
OpenStore = Callable[[str, str, Callable[[], None]], VersionSource]


_UNMOUNTED = "it is empty, and on another file system than its versions were: mount their volume again"


class Folder:
    """The version source of a mounted folder, which the server only reads. Its arguments are those of Arrival."""

    def __init__(
        self, base_path: str, settle_s: float, clock: Callable[[], float], wall_clock: Callable[[], float]
    ) -> None:
        self._base_path = base_path
        self._settle_s = settle_s
        self._clock = clock
        self._wall_clock = wall_clock
        self.is_local = True
        self.notes: Mapping[int, str] = {}
        # The device of the file system on which the base path had versions last.
        self._device: int | None = None

    def find(self) -> Mapping[int, Path]:
        device = os.stat(self._base_path).st_dev
        found = model_config.find_all_folders(Path(self._base_path))
        if not found and self._device not in (None, device):
            # An unmounted volume leaves the empty folder over which it was mounted: nobody has removed the versions.
            raise OSError(errno.ENOMEDIUM, _UNMOUNTED)
        self._device = device if found else self._device
        names = {version: [path.name for path in paths] for version, paths in found.items()}
        self.notes = {version: model_config.same_number(given) for version, given in names.items() if len(given) > 1}
        return {version: paths[-1] for version, paths in found.items()}

    def unreadable(self, error: OSError) -> str:
        return model_config.unreadable(self._base_path, error)

    def unserved(self, found: Collection[int]) -> str:
        return model_config.unserved(self._base_path, found)

    def arrival(self, version: int, path: Path) -> VersionArrival:
        return completeness.Arrival(path, self._settle_s, self._clock, self._wall_clock)

    def is_at_hand(self, version: int) -> bool:
        return True

    def keep(self, versions: Collection[int]) -> None:
        """Does nothing, because the server may not remove versions from a mounted folder, which others own."""


# Type of a function that loads a version: takes the model's name, the version, and the version's folder.
Load = Callable[[str, int, Path], Servable]


@dataclass(frozen=True, slots=True)
class LoadRules:
    """The rules for loading versions, which are the same for all models: loader, retries and timeouts.

    max_retries: how often a version that failed by a fault of its folder is tried again, retry_interval_s apart.
    settle_s: how long a folder without a manifest must not have changed before the version is loaded.
    clock, wall_clock: seconds; clock is monotonic, wall_clock is the file system's.
    slots: a semaphore that is held during a load; it bounds the number of loads at a time.
    load_timeout_s: the time after which a load is given up; 0: never.
    look_timeout_s: the time after which a scan of a folder is given up.
    on_look: called after each scan of a folder with the versions of a model that have a folder or are loaded; None: the
      model's folder could not be read. Must not raise.
    on_list: called with a list of models before the first load that follows it, and with the list before if a reload is
      refused. Must not raise.
    reloads_replaced: a served version is loaded again when other files lie under its number.
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
    reloads_replaced: bool = False


# Codes of errors whose reason does not lie in a version's folder.
_OUTSIDE_CODES = frozenset({"UNAVAILABLE", "DEADLINE_EXCEEDED"})
# Errors of the operating system about one file, whose mending changes the version's folder.
_ABOUT_FILES = frozenset(
    {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EACCES, errno.EINVAL}
)
_FIRST_WAIT_S = 1.0


def is_outside(error: BaseException | None) -> bool:
    """Says whether an error, or an error that caused it, has a reason outside of the version's folder."""
    while error is not None:
        if isinstance(error, ServiceError) and error.code in _OUTSIDE_CODES:
            return True
        if isinstance(error, OSError) and error.errno not in {*_ABOUT_FILES, None}:
            return True
        # The interpreter has no other error for a system that starts no further thread.
        if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "start new thread" in str(error)):
            return True
        error = error.__cause__
    return False


@dataclass(slots=True)
class Failure:
    """The failed loads of one version. seen: fingerprint of its folder at the last one. retry_at_s: of LoadRules.clock;
    None: not before the folder changes.
    """

    attempts: int = 0
    retry_at_s: float | None = 0.0
    seen: Fingerprint | None = None

    def note(self, error: Exception, now_s: float, interval_s: float, max_retries: int) -> float | None:
        """Counts a failed load; returns the seconds until the next one, None if there is none.

        After a reason outside of the folder, the waits double from a second up to interval_s. They are up to 20 %
        shorter or longer at random, so that the servers of one cluster do not all come back at the same moment.
        """
        self.attempts += 1
        wait_s: float | None = interval_s
        if is_outside(error):
            longest_s = max(interval_s, _FIRST_WAIT_S)
            wait_s = min(_FIRST_WAIT_S * 2.0 ** min(self.attempts - 1, 30), longest_s) * random.uniform(0.8, 1.2)
        elif self.attempts > max_retries:
            wait_s = None
        self.retry_at_s = None if wait_s is None else now_s + wait_s
        return wait_s

    def is_due(self, now_s: float) -> bool:
        return self.retry_at_s is not None and now_s >= self.retry_at_s


T = TypeVar("T")


class TimeIsOver(Exception):
    """The error that a function has not returned within its timeout; the daemon thread that runs it goes on."""


class Attempt(Generic[T]):
    """A function call in a daemon thread, which does not keep the process from ending. Concurrency: any thread.

    Args:
      on_late: called if a given-up call ends, with the call's result, or None if the call raised. Must not raise.
    """

    def __init__(
        self, name: str, call: Callable[[], T], on_late: Callable[[T | None], object] = lambda result: None
    ) -> None:
        self._call = call
        self._on_late = on_late
        self._result: T | None = None
        self._error: BaseException | None = None
        self._is_given_up = False
        self._is_over = threading.Event()
        # Lock that makes the result reach exactly one receiver: the caller of result(), or on_late after the timeout.
        self._deciding = threading.Lock()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    @property
    def is_over(self) -> bool:
        return self._is_over.is_set()

    def result(self, timeout_s: float) -> T:
        """Waits until the daemon thread's function ends; returns its result or raises its error; timeout_s 0: for ever.

        Raises:
          TimeIsOver: the call still runs and is given up; only on_late gets its result.
        """
        self._is_over.wait(timeout_s or None)
        with self._deciding:
            if not self.is_over:
                self._is_given_up = True
                raise TimeIsOver
        error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                # Breaks the reference cycle between the error and this frame, so that files in the traceback's frames
                # are closed now.
                del error
        result, self._result = self._result, None
        return result  # type: ignore[return-value]  # it is what the call returned

    def _run(self) -> None:
        result: T | None = None
        error: BaseException | None = None
        try:
            result = self._call()
        except BaseException as raised:
            error = raised
        with self._deciding:
            is_late = self._is_given_up
            if not is_late:
                self._result, self._error = result, error
            self._is_over.set()
        # Breaks the reference cycle between the error and this frame, as result() does for its own frame.
        del error
        if is_late:
            self._on_late(result)


class Opened(NamedTuple):
    """The result of a load: the servable, and the files that lay in its folder when the load began."""

    identity: Identity
    servable: Servable


class VersionLoads:
    """The loads of one model's versions. Concurrency: one caller at a time; has_hanging from any thread.

    Args:
      on_late: called when a load that was given up has ended, so that the version may be loaded again.
    """

    def __init__(self, model: str, rules: LoadRules, on_late: Callable[[], None]) -> None:
        self._model = model
        self._rules = rules
        self._on_late = on_late
        # Loads that were given up after their timeout and may still hang, by version.
        self._late: dict[int, Attempt[Opened]] = {}

    @property
    def has_hanging(self) -> bool:
        return any(not attempt.is_over for attempt in tuple(self._late.values()))

    def is_hanging(self, version: int) -> bool:
        return version in self._late and not self._late[version].is_over

    def load(self, version: int, path: Path) -> Opened:
        """Loads a version, for as long as the rules allow; raises DeadlineExceeded, and any error of the loader."""
        rules = self._rules
        self._late.pop(version, None)

        def load() -> Opened:
            return Opened(identity(path), rules.load(self._model, version, path))

        attempt = Attempt(f"load-{self._model}-{version}", load, self._end_late)
        try:
            return attempt.result(rules.load_timeout_s)
        except TimeIsOver:
            self._late[version] = attempt
            raise DeadlineExceeded(
                f"{path} did not load within {rules.load_timeout_s:g} s (--load_timeout_s), so it was given up: check "
                "that its files can be read and its graph does not wait. It is tried again when that load has ended"
            ) from None

    def _end_late(self, opened: Opened | None) -> None:
        if opened is not None:
            opened.servable.close()
        self._on_late()
