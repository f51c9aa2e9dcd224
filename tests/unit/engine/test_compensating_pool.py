"""The threads of a pool of jobs have a lower priority than the threads that answer requests."""

from __future__ import annotations

import os
import threading
from concurrent.futures import Future

from service.engine.poller import CompensatingPool


def test_threads_of_loads_and_threads_that_they_start_have_a_lower_priority() -> None:
    own = os.getpriority(os.PRIO_PROCESS, os.getpid())
    found: Future[tuple[int, int]] = Future()

    def niceness() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    def job() -> None:
        of_child: list[int] = []
        child = threading.Thread(target=lambda: of_child.append(niceness()))
        child.start()
        child.join()
        # A job that submits a job lowers no priority twice.
        pool.submit(lambda: found.set_result((niceness(), of_child[0])))

    pool = CompensatingPool("niceness", 2)
    pool.submit(job)
    expected = min(own + 3, 19)
    assert found.result(60) == (expected, expected)
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == own
