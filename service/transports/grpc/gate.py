"""Where requests wait for a thread: by model, and no longer than makes sense. What is refused is refused at once."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from service.codecs.model_name import first_model
from service.core.admission.room import Room
from service.core.admission.workers import Workers
from service.core.engine import Engine
from service.core.errors import DeadlineExceeded, Overloaded, ServiceError
from service.transports.grpc.paths import API

# Milliseconds after which a client may try again. Source: gRPC A6, "Pushback".
PUSHBACK_KEY, PUSHBACK_MS = "grpc-retry-pushback-ms", "1000"


def retry_hint(error: BaseException) -> tuple[tuple[str, str], ...]:
    """Returns what trailers say, beside the status, of when to try again."""
    return ((PUSHBACK_KEY, PUSHBACK_MS),) if isinstance(error, Overloaded) else ()


class Gate:
    """Runs work in threads; what it refuses, at once or later, is counted. Concurrency: any thread."""

    def __init__(self, engine: Engine, max_workers: int) -> None:
        self._engine = engine
        self._workers = Workers(max_workers, name="grpc", admission=engine.admission, clock=engine.clock)

    def submit(
        self, path: str, message: bytes, deadline_s: float | None, work: Callable[[ServiceError | None], None]
    ) -> Future[Any]:
        """Queues what is to be done for a message.

        Args:
          path: of the method.
          deadline_s: on the engine's clock, or None.
          work: called with None when it is its turn, or with an error when that came too late.

        Raises:
          ServiceError: it would wait too long, or too much is in flight.
        """
        model = first_model(message, self._engine.is_model)
        room = Room(self._engine.admission, model)

        def run(error: ServiceError | None) -> None:
            if error is None and deadline_s is not None and self._engine.clock() >= deadline_s:
                error = DeadlineExceeded("The deadline passed before the request was run.")
            if error is not None:
                self._count(error, path, model)
            work(error)

        try:
            room.grow(len(message))
            job = self._workers.submit(model, run)
        except ServiceError as error:
            room.done()
            self._count(error, path, model)
            raise
        job.add_done_callback(lambda _: room.done())
        return job

    def close(self) -> None:
        """Lets running work end and cancels what has not begun."""
        self._workers.close()

    def _count(self, error: ServiceError, path: str, model: str) -> None:
        self._engine.reject(error, api=API, method=path.rpartition("/")[2], model=model)
