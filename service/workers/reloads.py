"""A new list of models for all workers, or for none: each loads what is new, and when all have, each swaps.

A worker that ends meanwhile does not hold the others up: its successor starts with the list that holds then.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Sequence
from typing import Any

from service.workers.messages import Message
from service.workers.worker_process import WorkerProcess

logger = logging.getLogger(__name__)

# A worker knows its time itself; one that is over it by so much does not answer at all.
_GRACE_S = 5.0
# What is loaded needs no time to be swapped in; taking back waits a second for threads.
_SWAP_S = 5.0

Models = list[dict[str, Any]]
Error = dict[str, str]


class _Vote:
    """What one worker says to one reload."""

    def __init__(self) -> None:
        self.prepared: asyncio.Future[Error | None] = asyncio.get_running_loop().create_future()
        self.finished: asyncio.Future[Error | None] = asyncio.get_running_loop().create_future()


class Reloads:
    """Leads reloads, one after the other. Concurrency: the supervising process's event loop only.

    models: the list that holds, as a worker sent it; None: what the settings name.
    """

    def __init__(self, workers: Callable[[], Sequence[WorkerProcess]]) -> None:
        self._workers = workers
        self.models: Models | None = None
        self._turn = asyncio.Lock()
        self._num_waiting = 0
        self._number = 0
        self._votes: dict[WorkerProcess, _Vote] = {}

    async def reload(self, models: Models, seconds: float) -> Error | None:
        """Has all workers take a list of models; returns why none did, or None."""
        if self._num_waiting >= 2:
            return _error("Overloaded", "A reload is going on and another one waits for it; nothing was changed.")
        self._num_waiting += 1
        try:
            async with self._turn:
                return await self._reload(models, seconds)
        finally:
            self._num_waiting -= 1

    def told(self, worker: WorkerProcess, message: Message) -> None:
        """A worker said how far it is."""
        vote = self._votes.get(worker)
        if vote is None or message["number"] != self._number:
            return
        error = message.get("error")
        if not vote.prepared.done():
            vote.prepared.set_result(error)
        if message["kind"] == "finished" and not vote.finished.done():
            vote.finished.set_result(error)

    def ended(self, worker: WorkerProcess) -> None:
        """A worker is gone: it has no vote."""
        if vote := self._votes.pop(worker, None):
            for future in (vote.prepared, vote.finished):
                if not future.done():
                    future.cancel()

    async def _reload(self, models: Models, seconds: float) -> Error | None:
        self._number += 1
        members = {worker: _Vote() for worker in self._workers() if worker.is_listening}
        self._votes = dict(members)
        for worker in members:
            worker.send("prepare", number=self._number, models=models, seconds=seconds)
        error = await self._first_error([vote.prepared for vote in members.values()], seconds + _GRACE_S)
        if error is None and not self._votes:
            error = _error("NotReady", "Every worker ended while it loaded the new models; nothing was changed.")
        if error is None:
            # Whoever is started from here on starts with it.
            self.models = models
        for worker in self._votes:
            worker.send("decide", number=self._number, error=error)
        finished = {vote.finished: worker for worker, vote in members.items()}
        await asyncio.wait(finished, timeout=_SWAP_S)
        if error is None:
            for future, worker in finished.items():
                if not future.done() or (not future.cancelled() and future.result()):
                    self._replace(worker, "it did not take a list of models that the others took")
        for worker in self._workers():
            if worker not in members and error is None:
                self._replace(worker, "it was started with a list of models that is old now")
        self._votes = {}
        return error

    async def _first_error(self, votes: Sequence[asyncio.Future[Error | None]], seconds: float) -> Error | None:
        """Waits until one refuses or all agree; a worker that is gone does neither."""
        waiting = set(votes)
        end_s = asyncio.get_running_loop().time() + seconds
        while waiting:
            left_s = end_s - asyncio.get_running_loop().time()
            done, waiting = await asyncio.wait(waiting, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            for vote in done:
                if not vote.cancelled() and (error := vote.result()):
                    return error
            if not done:
                return _error("DeadlineExceeded", "A worker did not answer in time, so nothing was changed.")
        return None

    def _replace(self, worker: WorkerProcess, why: str) -> None:
        if not worker.ended.is_set():
            logger.error("worker is replaced", extra={"worker": worker.place, "pid": worker.pid, "reason": why})
            worker.signal(signal.SIGKILL)


def _error(name: str, message: str) -> Error:
    return {"error": name, "message": message}
