"""Starts threads for work beside the requests: pools, work that is repeated, and work of low priority."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

logger = logging.getLogger(__name__)


class Workers(ThreadPoolExecutor):
    """A pool of threads whose first thread starts at once, so that work waits while the system starts no further one.

    Its base class would queue the work and raise an error, though another thread runs the work later.

    Raises:
      RuntimeError: the system does not start the first thread.
    """

    def __init__(self, num_threads: int, name: str, initializer: Callable[[], object] | None = None) -> None:
        super().__init__(num_threads, thread_name_prefix=name, initializer=initializer)
        self.submit(lambda: None)

    def _adjust_thread_count(self) -> None:
        try:
            super()._adjust_thread_count()
        except RuntimeError:
            if not self._threads:
                raise


def repeat(
    work: Callable[[], object], stop: threading.Event, interval_s: float | Callable[[], float], name: str
) -> threading.Thread:
    """Starts a thread that calls `work` after each interval, until `stop` is set; returns the thread."""

    def run() -> None:
        while not stop.wait(interval_s() if callable(interval_s) else interval_s):
            try:
                work()
            except Exception:
                # An error must not end this thread: without it, no change of a file would have an effect any more, and
                # nobody would notice.
                logger.exception("polling failed", extra={"task": name})

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread


# What is added to the niceness of a low-priority thread: threads that answer requests get the processors first.
_NICENESS = 15
# The same for threads that load and unload versions. Beside a busy thread of connections, on one processor, they get
# 0.6 times the processor time of a thread of normal priority; with 10 it is 0.4, with 19 a fifth.
_NICENESS_OF_LOADS = 3


def low_priority_thread(name: str) -> Workers:
    return Workers(1, name, initializer=partial(_be_nicer_than_main, _NICENESS))


def lower_priority_of_loads() -> None:
    _be_nicer_than_main(_NICENESS_OF_LOADS)


def _be_nicer_than_main(by: int) -> None:
    # On Linux each thread has its own niceness, and only root may lower one, so it is relative to that of the process.
    niceness = os.getpriority(os.PRIO_PROCESS, os.getpid()) + by
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), niceness)
