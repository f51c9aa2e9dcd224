"""Makes threads of low priority, for work that must not slow requests down."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor

# Niceness of a low-priority thread: threads that answer requests get the processors first.
_NICENESS = 15


def low_priority_thread(name: str) -> ThreadPoolExecutor:
    """Returns an executor of one low-priority thread, which starts with the first task."""
    return ThreadPoolExecutor(1, thread_name_prefix=name, initializer=_be_nice)


def _be_nice() -> None:
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
