"""The metrics of all workers, asked for over their control channels."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from service.workers.exposition import Family, parse, render
from service.workers.sums import Sums
from service.workers.worker_process import WorkerProcess

# A worker that has not told its counts by then is shown as it was before.
_PATIENCE_S = 0.5
# How old the counts may be that are left of a worker that is killed.
INTERVAL_S = 2.0


class Scrapes:
    """Asks workers for their counts and adds them up. Concurrency: the supervising process's event loop only."""

    def __init__(
        self, workers: Callable[[], Sequence[WorkerProcess]], clock: Callable[[], float], restarts: Callable[[], int]
    ) -> None:
        self._workers = workers
        self._restarts = restarts
        self._sums = Sums(clock)
        self._news: dict[int, str] = {}
        self._asked: dict[int, asyncio.Event] = {}

    async def run(self) -> None:
        """Asks for the counts again and again, so that little is lost with a worker that is killed."""
        while True:
            await asyncio.sleep(INTERVAL_S)
            self._ask()

    async def text(self) -> str:
        """Returns the exposition of all workers; waits a moment for each, and for a hung one no longer."""
        answers = [asyncio.create_task(event.wait()) for event in self._ask()]
        if answers:
            _, late = await asyncio.wait(answers, timeout=_PATIENCE_S)
            for task in late:
                task.cancel()
        for number in list(self._news):
            self._take(number)
        return render([*self._sums.read(), *self._own()])

    def told(self, worker: WorkerProcess, text: str) -> None:
        """A worker told its counts."""
        # Read when somebody wants to know: that costs as much as writing it did.
        self._news[worker.number] = text
        if asked := self._asked.pop(worker.number, None):
            asked.set()

    def ended(self, worker: WorkerProcess) -> None:
        """A worker is gone; its counts stay."""
        self._take(worker.number)
        self._sums.ended(worker.number)
        if asked := self._asked.pop(worker.number, None):
            asked.set()

    def _ask(self) -> list[asyncio.Event]:
        """Asks those that do not owe an answer already, so that questions to a hung worker do not pile up."""
        for worker in self._workers():
            if worker.is_listening and worker.number not in self._asked:
                self._asked[worker.number] = asyncio.Event()
                worker.send("tell_counts")
        return list(self._asked.values())

    def _take(self, number: int) -> None:
        text = self._news.pop(number, None)
        if text is not None:
            self._sums.update(number, parse(text))

    def _own(self) -> list[Family]:
        workers = len(self._workers())
        silent = len(self._asked)
        return [
            _family("workers", "gauge", "Worker processes that run now.", workers),
            _family("workers_silent", "gauge", "Those of them whose counts here are old: they did not answer.", silent),
            _family("worker_restarts_total", "counter", "Workers that ended and were replaced.", self._restarts()),
        ]


def _family(part: str, kind: str, about: str, value: int) -> Family:
    name = f"embedding_server_{part}"
    return Family(name, kind, about, {name: float(value)})
