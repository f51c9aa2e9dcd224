"""Where requests wait for a thread: by model, and no longer than makes sense. What is refused is refused at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any

from service.codecs.model_name import first_model
from service.core.admission.room import Room
from service.core.admission.workers import Workers
from service.core.engine import Engine
from service.core.errors import DeadlineExceeded, Overloaded, ServiceError
from service.transports.grpc.paths import API, Handler

# Milliseconds after which a client may try again. Source: gRPC A6, "Pushback".
PUSHBACK_KEY, PUSHBACK_MS = "grpc-retry-pushback-ms", "1000"


def retry_hint(error: BaseException) -> tuple[tuple[str, str], ...]:
    """Returns what trailers say, beside the status, of when to try again."""
    return ((PUSHBACK_KEY, PUSHBACK_MS),) if isinstance(error, Overloaded) else ()


class _Refusal(threading.local):
    """Why the work that this thread does is to be refused, and of which model it is."""

    error: ServiceError | None = None
    model = ""


class Gate(Executor):
    """Runs handlers in threads. Concurrency: any thread.

    Work is submitted with the request's message as its only argument and comes, in whatever thread it is run, to a
    handler that this gate has made guarded. Work that is refused is run at once by who submits it, and gets no further
    than that guard.
    """

    def __init__(self, engine: Engine, max_workers: int) -> None:
        self._engine = engine
        self._workers = Workers(max_workers, name="grpc", admission=engine.admission, clock=engine.clock)
        self._refusal = _Refusal()

    def submit(self, work: Callable[..., Any], /, *args: Any, **more: Any) -> Future[Any]:
        """Queues work(message), or refuses it."""
        (message,) = args
        model = first_model(message, self._engine.is_model)
        room = Room(self._engine.admission, model)
        try:
            room.grow(len(message))
            job = self._workers.submit(model, partial(self._run, work, message, model))
        except ServiceError as error:
            room.done()
            self._run(work, message, model, error)
            refused: Future[Any] = Future()
            refused.set_result(None)
            return refused
        job.add_done_callback(lambda _: room.done())
        return job

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Lets running work end and cancels what has not begun."""
        self._workers.close()

    def guarded(self, path: str, handler: Handler) -> Handler:
        """Returns a handler that begins nothing which is refused, or late."""
        method = path.rpartition("/")[2]

        def guard(data: bytes, deadline_s: float | None) -> bytes:
            error = self._refusal.error
            if error is None and deadline_s is not None and self._engine.clock() >= deadline_s:
                error = DeadlineExceeded("The deadline passed before the request was run.")
            if error is not None:
                self._engine.reject(error, api=API, method=method, model=self._refusal.model)
                raise error
            return handler(data, deadline_s)

        return guard

    def _run(self, work: Callable[[bytes], Any], message: bytes, model: str, error: ServiceError | None) -> Any:
        self._refusal.error, self._refusal.model = error, model
        try:
            return work(message)
        finally:
            self._refusal.error = None
