"""The supervising process: holds the ports, starts the workers, replaces those that end, and drains them all.

It imports neither numpy nor a framework: it takes little memory, and nothing in it can crash natively.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from service.configuration.settings import Settings
from service.workers.backoff import Backoff
from service.workers.counts import ConnectionCounts
from service.workers.messages import Message
from service.workers.ports import PortError, Ports, open_ports
from service.workers.reloads import Reloads
from service.workers.scrapes import Scrapes
from service.workers.worker_process import WorkerProcess

logger = logging.getLogger(__name__)

# Before any worker ever listened, so many ends without a word mean that none ever will.
_MAX_FAILED_STARTS = 3
# Beyond the time that a worker itself takes to drain.
_DRAIN_GRACE_S = 10.0


class Supervisor:
    """N workers as one server."""

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._workers: dict[int, WorkerProcess] = {}
        self._backoffs = [Backoff(clock) for _ in range(settings.num_workers)]
        self._reloads = Reloads(self._running)
        self._scrapes = Scrapes(self._running, clock, lambda: self._num_restarts)
        self._counts = ConnectionCounts.create(settings.num_workers)
        self._config_text = _read_text(settings.model_config_file)
        self._ports: Ports
        self._num_started = 0
        self._num_restarts = 0
        self._has_listened = False
        self._is_announced = False
        self._exit_code = 0
        self._signals = 0
        self._tasks: set[asyncio.Task[Any]] = set()
        self._over = asyncio.Event()

    async def run(self) -> int:
        """Serves until SIGTERM or SIGINT; a second signal does not wait for requests in flight.

        Returns:
          The exit status: 0 after a drain, 2 for what keeps every worker from starting, 1 where they end unexplained.
        """
        settings = self._settings
        try:
            self._ports = open_ports(settings, grpc_takes_sockets=settings.grpc_takes_sockets)
        except PortError as error:
            logger.error("cannot start", extra={"reason": str(error)})
            return 2
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)
        for place in range(settings.num_workers):
            await self._start(place)
        self._spawn(self._scrapes.run())
        await self._over.wait()
        for task in self._tasks:
            task.cancel()
        self._ports.close()
        if not self._exit_code:
            logger.info("stopped")
        return self._exit_code

    def _running(self) -> list[WorkerProcess]:
        return list(self._workers.values())

    async def _start(self, place: int) -> None:
        if self._is_stopping:
            return
        self._num_started += 1
        ports = self._ports
        settings = dataclasses.replace(self._settings, port=ports.grpc_port, rest_api_port=ports.http_port)
        hello = {
            "settings": dataclasses.asdict(settings),
            "place": place,
            "num_workers": settings.num_workers,
            "http": ports.http.fileno(),
            "admin": ports.admin.fileno() if ports.admin else None,
            "grpc": [listener.fileno() for listener in ports.grpc],
            "counts": self._counts.descriptor,
            "models": self._reloads.models,
            "config_text": self._config_text,
        }
        listeners = [ports.http, *([ports.admin] if ports.admin else []), *ports.grpc]
        inherited = [*(listener.fileno() for listener in listeners), self._counts.descriptor]
        self._workers[place] = await WorkerProcess.start(
            self._num_started,
            place,
            hello=hello,
            descriptors=inherited,
            on_message=self._on_message,
            on_end=self._on_end,
        )
        if self._is_stopping:
            self._workers[place].signal(signal.SIGTERM)

    async def _start_later(self, place: int, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        await self._start(place)

    def _on_message(self, worker: WorkerProcess, message: Message) -> None:
        match message["kind"]:
            case "listening":
                self._listening(worker)
            case "cannot_start":
                worker.why_not = message["reason"]
            case "counts":
                self._scrapes.told(worker, message["text"])
            case "scrape":
                self._spawn(self._answer_scrape(worker, message["id"]))
            case "reload":
                self._spawn(self._answer_reload(worker, message))
            case "prepared" | "finished":
                self._reloads.told(worker, message)
            case "config_taken":
                self._config_text = message["text"]

    def _listening(self, worker: WorkerProcess) -> None:
        worker.is_listening = self._has_listened = True
        self._backoffs[worker.place].listening()
        logger.info("worker listening", extra={"worker": worker.place, "pid": worker.pid})
        if not self._is_announced and all(worker.is_listening for worker in self._running()):
            self._is_announced = True
            ports = {"http_port": self._ports.http_port, "grpc_port": self._ports.grpc_port}
            if self._ports.admin is not None:
                ports["admin_port"] = self._ports.admin.getsockname()[1]
            logger.info("listening", extra={"host": self._settings.host, **ports, "workers": len(self._workers)})

    async def _answer_scrape(self, worker: WorkerProcess, number: int) -> None:
        worker.send("exposition", id=number, text=await self._scrapes.text())

    async def _answer_reload(self, worker: WorkerProcess, message: Message) -> None:
        error = await self._reloads.reload(message["models"], message["seconds"])
        worker.send("reloaded", id=message["id"], error=error)

    def _on_end(self, worker: WorkerProcess) -> None:
        place = worker.place
        del self._workers[place]
        self._counts.gone(place)
        self._reloads.ended(worker)
        self._scrapes.ended(worker)
        delay_s = self._backoffs[place].ended()
        if self._is_stopping:
            if not self._workers:
                self._over.set()
            return
        fields: dict[str, Any] = {"worker": place, "pid": worker.pid, "ended_with": worker.how_it_ended}
        if not self._has_listened and (worker.why_not or self._backoffs[place].num_short >= _MAX_FAILED_STARTS):
            reason = worker.why_not or f"worker {place} ended with {worker.how_it_ended} each time before it listened"
            self._give_up(reason, 2 if worker.why_not else 1)
            return
        self._num_restarts += 1
        fields |= {"reason": worker.why_not or None, "restart_in_s": delay_s}
        logger.error("worker ended", extra=fields)
        self._spawn(self._start_later(place, delay_s))

    def _give_up(self, reason: str, exit_code: int) -> None:
        logger.error("cannot start", extra={"reason": reason})
        self._exit_code = exit_code
        self._stop(signal.SIGTERM)

    def _on_signal(self, number: int) -> None:
        name = signal.Signals(number).name
        if self._is_stopping:
            logger.warning("second signal: not waiting for requests in flight", extra={"signal": name})
        else:
            logger.info("draining", extra={"signal": name})
        self._stop(number)

    @property
    def _is_stopping(self) -> bool:
        return self._signals > 0

    def _stop(self, number: int) -> None:
        self._signals += 1
        for worker in self._running():
            worker.signal(number)
        if not self._workers:
            self._over.set()
        if self._signals == 1:
            self._spawn(self._finish())

    async def _finish(self) -> None:
        """Refuses connections when the workers do, and ends those that do not end."""
        await asyncio.sleep(self._settings.shutdown_delay_s)
        self._ports.close()
        await asyncio.sleep(self._settings.drain_timeout_s + _DRAIN_GRACE_S)
        for worker in self._running():
            logger.error("worker does not end", extra={"worker": worker.place, "pid": worker.pid})
            worker.signal(signal.SIGKILL)

    def _spawn(self, coroutine: Any) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            logger.error("a task of the supervisor failed", exc_info=error)


def _read_text(path: str) -> str | None:
    """Returns what all workers take the file of models to say, so that no two read different ones."""
    try:
        return Path(path).read_text() if path else None
    except (OSError, UnicodeDecodeError):
        # Each worker finds this too, and says it well.
        return None
