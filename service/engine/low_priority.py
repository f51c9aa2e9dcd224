"""Makes threads of low priority, for work that is done beside requests."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor

# Requests come first: the thread gets a processor that no request needs.
_NICENESS = 15


def low_priority_thread(name: str) -> ThreadPoolExecutor:
    """Returns an executor of one thread, which begins with the first work."""
    return ThreadPoolExecutor(1, thread_name_prefix=name, initializer=_be_nice)


def _be_nice() -> None:
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
