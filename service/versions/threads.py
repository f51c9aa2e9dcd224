"""Starts threads for work beside the requests: work that is repeated, and work of low priority."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

logger = logging.getLogger(__name__)


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


def low_priority_thread(name: str) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix=name, initializer=_be_nicer_than_main, initargs=(_NICENESS,))


def lower_priority_of_loads() -> None:
    _be_nicer_than_main(_NICENESS_OF_LOADS)


def _be_nicer_than_main(by: int) -> None:
    # On Linux each thread has its own niceness, and only root may lower one, so it is relative to that of the process.
    niceness = os.getpriority(os.PRIO_PROCESS, os.getpid()) + by
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), niceness)
