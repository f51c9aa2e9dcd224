"""The scheduler's own threads answer every request, and never run more of them at once than it has places."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from service.engine.batch_queue import BatchQueue, Call, Process, Result, Task
from service.engine.batch_scheduler import Scheduler
from service.engine.batching_parameters import BatchingParameters
from tests.conftest import Clock

TIMEOUT_S = 60


def call_of(value: int, group: str = "") -> Call:
    """Returns a batch call of one row."""
    return Call({"x": np.array([value])}, ("x",), 1, group)


class Counting:
    """A backend that answers each call with its own inputs; it records their order and how many batches ran at once."""

    def __init__(self) -> None:
        self.most = 0
        self.sizes: list[int] = []
        self.order: list[str] = []
        self._now = 0
        self._lock = threading.Lock()

    def named(self, name: str) -> Process:
        """Returns the process function of one queue."""

        def process(tasks: Sequence[Task]) -> Sequence[Result]:
            with self._lock:
                self._now += 1
                self.most = max(self.most, self._now)
                self.sizes.append(len(tasks))
                self.order.append(name)
            results: list[Result] = [dict(task.call.inputs) for task in tasks]
            with self._lock:
                self._now -= 1
            return results

        return process


@pytest.mark.parametrize("timeout_micros", [0, 500])
@pytest.mark.parametrize("threads", [1, 2])
def test_many_clients_get_their_own_answers(timeout_micros: int, threads: int) -> None:
    counting, scheduler = Counting(), Scheduler(threads)
    parameters = BatchingParameters(batch_timeout_micros=timeout_micros, max_batch_size=8, max_enqueued_batches=1000)
    queues = [BatchQueue(parameters, counting.named(str(i))) for i in range(3)]

    def client(number: int) -> None:
        for i in range(60):
            value = 1000 * number + i
            call = call_of(value, "ab"[i % 2])
            scheduler.run(queues[(number + i) % 3], call)
            assert call.error is None
            assert call.answers[0]["x"].tolist() == [value]

    with ThreadPoolExecutor(12) as clients:
        for future in [clients.submit(client, number) for number in range(12)]:
            future.result(TIMEOUT_S)
    assert counting.most <= threads
    assert sum(counting.sizes) == 12 * 60
    scheduler.stop()


def test_a_lone_request_is_answered_when_its_timeout_is_over() -> None:
    scheduler = Scheduler(2)
    queue = BatchQueue(BatchingParameters(batch_timeout_micros=1000), Counting().named(""))
    for i in range(3):
        call = call_of(i)
        scheduler.run(queue, call)
        assert call.answers[0]["x"].tolist() == [i]
    scheduler.stop()


def test_queues_take_turns() -> None:
    counting, clock, started = Counting(), Clock(), threading.Semaphore(0)
    scheduler = Scheduler(100, clock=clock, start_thread=lambda name, work: started.release())
    parameters = BatchingParameters(batch_timeout_micros=1, max_batch_size=1000)
    queues = {n: BatchQueue(parameters, counting.named(n)) for n in "ab"}
    with ThreadPoolExecutor(20) as clients:
        futures = []
        # Five calls of five groups: calls of different groups never share a batch, though they wait in the same queue.
        for i, name in enumerate("aaabb"):
            futures.append(clients.submit(scheduler.run, queues[name], call_of(i, str(i))))
            assert started.acquire(timeout=TIMEOUT_S)
        clock.now_s += 1
        while scheduler.run_ready():
            pass
        for future in futures:
            future.result(TIMEOUT_S)
    assert counting.order == ["a", "b", "a", "b", "a"]


def test_threads_are_named_after_the_pool_and_end_when_the_server_stops() -> None:
    names: list[str] = []
    works: list[threading.Thread] = []

    def start(name: str, work: Callable[[], None]) -> None:
        names.append(name)
        works.append(threading.Thread(target=work, daemon=True))
        works[-1].start()

    scheduler = Scheduler(1, thread_pool_name="pool", start_thread=start)
    queue = BatchQueue(BatchingParameters(batch_timeout_micros=1), Counting().named(""))
    scheduler.run(queue, call_of(1))
    scheduler.stop()
    for thread in works:
        thread.join(TIMEOUT_S)
        assert not thread.is_alive()
    assert names == ["pool_1"]
