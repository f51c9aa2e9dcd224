"""A call with one message each way: run at once where that is short, in a thread where it may take longer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from service.codecs.framed_answer import Framed
from service.core import request_context
from service.core.errors import DeadlineExceeded, MalformedPayload, Overloaded, ServiceError
from service.transports.grpc.h2.answers import send_answer, send_frames
from service.transports.grpc.h2.messages import INLINE_BYTES, MessageReader, gzipped
from service.transports.grpc.h2.metadata import CallOptions
from service.transports.grpc.h2.route import StagedHandler
from service.transports.grpc.h2.stream import Stream
from service.transports.grpc.paths import Handler


class Threads(Protocol):
    """Where handlers run; see grpc.gate."""

    def submit(
        self, path: str, message: bytes, deadline_s: float | None, work: Callable[[ServiceError | None], None]
    ) -> Future[Any]:
        """Queues work, or raises ServiceError."""
        ...


@dataclass(frozen=True, slots=True)
class Runner:
    """What all unary calls of a server share.

    Args:
      clock: what deadlines are measured on.
      refusal_block: an exception, and the request's id, to the head that the client gets.
    """

    loop: asyncio.AbstractEventLoop
    threads: Threads
    clock: Callable[[], float]
    refusal_block: Callable[[BaseException, bytes], bytes]


class UnaryCall:
    """One call. Event loop only, but for the handler itself.

    Args:
      path: of the method.
      handler: run in a thread, for it may block.
      quickly: tried first, on the event loop.
    """

    __slots__ = (
        "_runner",
        "_stream",
        "_path",
        "_handler",
        "_quickly",
        "_options",
        "_reader",
        "_message",
        "_deadline_s",
        "_timer",
        "_work",
    )

    def __init__(
        self,
        runner: Runner,
        stream: Stream,
        *,
        path: str,
        handler: Handler,
        quickly: StagedHandler | None,
        options: CallOptions,
        max_message_bytes: int,
    ) -> None:
        self._runner = runner
        self._stream = stream
        self._path = path
        self._handler = handler
        self._quickly = quickly
        self._options = options
        self._reader = MessageReader(options.encoding, max_message_bytes)
        self._message: bytes | None = None
        timeout_s = options.timeout_s
        self._deadline_s = None if timeout_s is None else runner.clock() + timeout_s
        self._timer: asyncio.TimerHandle | None = None
        self._work: Future[Any] | None = None

    def data(self, payload: bytes) -> None:
        """See Call."""
        try:
            for message in self._reader.feed(payload):
                if self._message is not None:
                    raise MalformedPayload("The request holds more than one message.")
                self._message = message
        except ServiceError as error:
            self._refuse(error)

    def end(self) -> None:
        """See Call."""
        message = self._message
        if message is None or not self._reader.is_between_messages:
            self._refuse(MalformedPayload("The request ends before its message does."))
        elif not self._is_answered_quickly(message):
            try:
                self._work = self._runner.threads.submit(
                    self._path, message, self._deadline_s, partial(self._run, message)
                )
            except ServiceError as error:
                self._refuse(error)

    def batch_done(self) -> None:
        """See Call."""
        if self._deadline_s is not None and self._timer is None:
            remaining_s = max(0.0, self._deadline_s - self._runner.clock())
            self._timer = self._runner.loop.call_later(remaining_s, self._expired)

    def draining(self) -> None:
        """See Call; it is waited for."""

    def stalled(self) -> None:
        """See Call."""
        self._refuse(DeadlineExceeded("The request did not arrive whole, and nothing more of it came for too long."))

    def cancelled(self) -> None:
        """See Call."""
        self._drop()

    def _is_answered_quickly(self, message: bytes) -> bool:
        if self._quickly is None or len(message) > INLINE_BYTES:
            return False
        try:
            begun = self._quickly.begin(message, self._deadline_s, self._stream.id)
            answer = None if begun is None else self._quickly.finish(begun)
        except Exception as error:
            self._refuse(error)
            return True
        if answer is None:
            return False
        self._answer(answer)
        return True

    def _run(self, message: bytes, error: ServiceError | None) -> None:
        """Runs in a thread."""
        try:
            if error is not None:
                raise error
            request_context.enter(self._options.request_id, self._options.traceparent)
            answer = self._handler(message, self._deadline_s)
        except Exception as error:
            self._runner.loop.call_soon_threadsafe(self._ran, None, error)
        else:
            self._runner.loop.call_soon_threadsafe(self._ran, answer, None)

    def _ran(self, answer: bytes | None, error: Exception | None) -> None:
        if self._work is None:
            self._stream.work_left(-1)
        self._work = None
        if self._stream.is_open:
            if error is not None:
                self._refuse(error)
            elif answer is not None:
                self._answer(answer)
            self._stream.flush()

    def _expired(self) -> None:
        self._timer = None
        if self._stream.is_open and self._stream.is_flowing:
            self._refuse(DeadlineExceeded("Deadline Exceeded"))
            self._stream.flush()

    def _answer(self, answer: bytes | Framed) -> None:
        if not self._stream.has_room:
            self._refuse(Overloaded("The client leaves too many of its answers unread."))
            return
        options = self._options
        if not isinstance(answer, bytes):
            send_frames(self._stream, answer)
        elif options.is_gzip_wanted:
            send_answer(self._stream, options.head_block, gzipped(answer), is_compressed=True)
        else:
            send_answer(self._stream, options.head_block, answer)
        self._drop()

    def _refuse(self, error: BaseException) -> None:
        self._stream.only_head(self._runner.refusal_block(error, self._options.request_id))
        self._drop()

    def _drop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._work is not None:
            # Not begun yet: nobody waits for it any more. Begun: it goes on, and is waited for.
            if not self._work.cancel():
                self._stream.work_left(+1)
            self._work = None
        self._message = None
