"""Polls the folders of all models: one thread waits for the models that are due, one thread scans their folders.

A scan that hangs, such as that of a mount whose server is gone, and a load, which takes long, get threads of their own,
so that no model waits for another. An idle server has the same number of threads for a thousand models as for one.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

from service.versions.model_folder import Scanned
from service.versions.repository import ModelWatcher
from service.versions.threads import lower_priority_of_loads

# Seconds after which a running job counts as long, so that another thread takes its place.
LONG_S = 0.2
# Seconds after which a thread without a job ends.
_IDLE_S = 10.0


class CompensatingPool:
    """A pool of daemon threads in which a job that hangs or takes long delays no other job. Concurrency: any thread.

    NOTE: nothing here runs by a clock. While jobs wait, the owner calls tend() again and again.

    Args:
      size: most threads that run jobs at a time, not counting threads whose job takes longer than LONG_S.
      clock: seconds, monotonic.
    """

    def __init__(self, name: str, size: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._name = name
        self._size = size
        self._clock = clock
        self._changed = threading.Condition()
        self._jobs: deque[Callable[[], None]] = deque()
        # When each running job began, by the number of its thread.
        self._begun_s: dict[int, float] = {}
        self._idle = 0

    def submit(self, job: Callable[[], None]) -> None:
        """Adds a job, which must not raise, to the end of the queue."""
        with self._changed:
            self._jobs.append(job)
            self._changed.notify()
            self._compensate()

    def tend(self) -> bool:
        """Starts threads in place of those whose jobs take long; returns whether jobs still wait for a thread."""
        with self._changed:
            self._compensate()
            return len(self._jobs) > self._idle

    def _compensate(self) -> None:
        missing = len(self._jobs) - self._idle
        if missing <= 0:
            return
        long_since_s = self._clock() - LONG_S
        short = sum(begun_s > long_since_s for begun_s in self._begun_s.values())
        for _ in range(min(missing, self._size - short - self._idle)):
            try:
                threading.Thread(target=self._run, name=self._name, daemon=True).start()
            except RuntimeError:
                # The system starts no further thread: the job waits for one, or for the next tend().
                return
            # The new thread counts as idle until it has a job, so that no second thread is started for this job.
            self._idle += 1

    def _run(self) -> None:
        lower_priority_of_loads()
        while (job := self._next()) is not None:
            job()
            # The job is dropped before the thread waits: it may hold the last reference to a large object.
            del job

    def _next(self) -> Callable[[], None] | None:
        """Waits for a job; returns None if this thread is one too many, or was idle for long."""
        thread = threading.get_ident()
        with self._changed:
            if self._begun_s.pop(thread, None) is not None:
                self._idle += 1
            while not self._jobs:
                is_over = self._idle > self._size or not self._changed.wait(_IDLE_S)
                if is_over and not self._jobs:
                    self._idle -= 1
                    return None
            self._idle -= 1
            self._begun_s[thread] = self._clock()
            return self._jobs.popleft()


logger = logging.getLogger(__name__)

# Most loads at a time that each take less than LONG_S. Longer loads run beside them, each in a thread of its own.
_SHORT_LOADS = 4
# Part of the interval by which a scan may come early, so that models that are due one after the other are scanned
# together.
_EARLY = 0.05


@dataclass(eq=False, slots=True)
class _Scan:
    """A scan of a base path; begun_s: None while it waits for a thread. is_given_up: nobody waits for its result."""

    base_path: str | None
    begun_s: float | None = None
    is_given_up: bool = False


@dataclass(eq=False, slots=True)
class _Entry:
    """A polled model. Each of its turns is a scan, and then the loads and unloads that the scan asks for.

    due_s: when the next turn begins. scan: the scan of the current turn. is_acting: the current turn's scan is over.
    is_woken: a further turn begins when this one ends. late: scans that were given up and may still hang.
    """

    watcher: ModelWatcher
    on_end: Callable[[], None]
    due_s: float = 0.0
    scan: _Scan | None = None
    is_acting: bool = False
    is_woken: bool = False
    late: dict[str | None, _Scan] = field(default_factory=dict)


class Poller:
    """The poller of the folders of all models. Concurrency: any thread.

    Args:
      interval_s: seconds between two scans of a model's folder; 0: a folder is scanned only when its model is woken or
        has a version that is due.
      scan_timeout_s: seconds after which a scan is given up; the model's loaded versions stay.
      clock: seconds, monotonic.
    """

    def __init__(self, interval_s: float, scan_timeout_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._interval_s = interval_s
        self._scan_timeout_s = scan_timeout_s
        self._clock = clock
        # Scans share one thread, because they are short and hold the interpreter's lock: more threads would only take
        # it from each other.
        self._scans = CompensatingPool("poll-scan", 1)
        self._loads = CompensatingPool("poll-load", _SHORT_LOADS)
        self._lock = threading.Lock()
        self._due, self._ended = threading.Condition(self._lock), threading.Condition(self._lock)
        self._entries: dict[str, _Entry] = {}
        self._sleeps_until_s = math.inf
        self._is_started = self._is_stopped = False

    def add(self, watcher: ModelWatcher, on_end: Callable[[], None] = lambda: None) -> None:
        """Scans a model's folder now, and then at each interval.

        Args:
          on_end: called once the model has no configuration and no loaded version, so that it is polled no more.
        """
        with self._lock:
            if not self._is_started:
                threading.Thread(target=self._run, name="poll", daemon=True).start()
                self._is_started = True
            self._entries[watcher.name] = _Entry(watcher, on_end)
            self._due.notify()

    def wake(self, name: str) -> None:
        with self._lock:
            if (entry := self._entries.get(name)) is not None:
                entry.is_woken, entry.due_s = True, 0.0
                self._due.notify()

    def stop(self) -> None:
        with self._lock:
            self._is_stopped = True
            for entry in self._entries.values():
                entry.watcher.stop()
            self._due.notify()

    def wait_until_idle(self, timeout_s: float | None) -> list[str]:
        """Waits until no model loads or unloads; returns the names of the models that still do after the timeout."""
        with self._lock:
            self._ended.wait_for(lambda: not self._acting(), timeout_s)
            return sorted(self._acting())

    def wait_until_ended(self, names: Iterable[str], timeout_s: float) -> None:
        with self._lock:
            self._ended.wait_for(lambda: self._entries.keys().isdisjoint(names), timeout_s)

    def _acting(self) -> list[str]:
        return [name for name, entry in self._entries.items() if entry.is_acting]

    def _run(self) -> None:
        with self._lock:
            while not self._is_stopped:
                now_s = self._clock()
                until_s = min((self._next_s(entry, now_s) for entry in self._entries.values()), default=math.inf)
                # Both pools are tended, also where the first one has no waiting job.
                if any([self._scans.tend(), self._loads.tend()]):
                    until_s = min(until_s, now_s + LONG_S / 4)
                self._sleeps_until_s = until_s
                self._due.wait(None if until_s == math.inf else max(until_s - now_s, 0))

    def _next_s(self, entry: _Entry, now_s: float) -> float:
        """Begins an entry's turn if it is due, or gives up its scan if that hangs; returns when to look at it again."""
        if entry.is_acting:
            return math.inf
        scan = entry.scan
        if scan is None:
            if entry.due_s > now_s + self._interval_s * _EARLY:
                return entry.due_s
            self._begin(entry)
            return now_s + self._scan_timeout_s
        if scan.begun_s is None or now_s < scan.begun_s + self._scan_timeout_s:
            return (now_s if scan.begun_s is None else scan.begun_s) + self._scan_timeout_s
        scan.is_given_up = True
        entry.late[scan.base_path] = scan
        logger.warning("a folder does not answer", extra={"model": entry.watcher.name, "path": scan.base_path})
        self._act_beside(entry, entry.watcher.unanswered())
        return math.inf

    def _begin(self, entry: _Entry) -> None:
        entry.is_woken = False
        base_path = entry.watcher.base_path
        if base_path in entry.late:
            # While a scan of this base path hangs, no other one is begun, because it would hang as well.
            self._act_beside(entry, entry.watcher.unanswered())
            return
        entry.scan = _Scan(base_path)
        self._scans.submit(partial(self._scan, entry, entry.scan))

    def _act_beside(self, entry: _Entry, scanned: Scanned) -> None:
        entry.scan, entry.is_acting = None, True
        self._loads.submit(partial(self._act, entry, scanned))

    def _scan(self, entry: _Entry, scan: _Scan) -> None:
        scan.begun_s = self._clock()
        scanned: Scanned | None = None
        try:
            scanned = entry.watcher.scan()
        except Exception:
            _log_surprise(entry)
        with self._lock:
            if scan.is_given_up:
                del entry.late[scan.base_path]
                return
            entry.scan, entry.is_acting = None, True
        if scanned is None:
            self._end(entry, None)
        elif entry.watcher.is_quiet(scanned):
            self._act(entry, scanned)
        else:
            self._loads.submit(partial(self._act, entry, scanned))
            with self._lock:
                # Its thread may sleep, and tends the pools only while it knows of a job that waits.
                self._due.notify()

    def _act(self, entry: _Entry, scanned: Scanned) -> None:
        due_s: float | None = None
        try:
            if not self._is_stopped:
                due_s = entry.watcher.act(scanned)
        except Exception:
            _log_surprise(entry)
        self._end(entry, due_s)

    def _end(self, entry: _Entry, due_s: float | None) -> None:
        """Ends a model's turn; due_s: seconds until the next version is due, None if none waits."""
        is_over = entry.watcher.end_if_over()
        if is_over:
            entry.on_end()
        with self._lock:
            entry.is_acting = False
            # A model of the same name may have been added meanwhile, with another watcher.
            if is_over and self._entries.get(entry.watcher.name) is entry:
                del self._entries[entry.watcher.name]
            elif not is_over and not entry.is_woken:
                waits = [seconds for seconds in (self._interval_s, due_s) if seconds is not None and seconds > 0]
                entry.due_s = self._clock() + min(waits, default=math.inf)
            if entry.due_s < self._sleeps_until_s:
                self._due.notify()
            self._ended.notify_all()


def _log_surprise(entry: _Entry) -> None:
    # An error must not end a thread of the poller: without it, no new version of any model would ever be served.
    logger.exception("polling failed", extra={"model": entry.watcher.name})
