"""A call that answers with any number of messages: health's Watch and server reflection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from service.core.errors import MalformedPayload, ServiceError
from service.transports.grpc.h2.messages import MessageReader, prefix
from service.transports.grpc.h2.metadata import OK_TRAILERS, RESPONSE_HEAD, error_head, error_trailers
from service.transports.grpc.h2.stream import Stream


class Conversation(Protocol):
    """What a method does with a stream's messages. Event loop only."""

    def message(self, data: bytes) -> None:
        """A message arrived; raises ServiceError to end the call."""

    def half_closed(self) -> None:
        """The client sends no more."""

    def draining(self) -> None:
        """The server stops once all calls have ended; raises ServiceError to end this one."""

    def closed(self) -> None:
        """The call is over, by whoever's doing."""


class Answers:
    """Where a conversation's answers go. send and end: any thread; they do nothing after the end."""

    def __init__(self, loop: asyncio.AbstractEventLoop, stream: Stream) -> None:
        self._loop = loop
        self._stream = stream
        self._has_head = False

    def send(self, data: bytes) -> None:
        """Sends one message."""
        self._loop.call_soon_threadsafe(self._send, data)

    def end(self) -> None:
        """Ends the call with OK."""
        self._loop.call_soon_threadsafe(self._end)

    def refuse(self, code: int, text: str) -> None:
        """Ends the call with an error. Event loop only."""
        if self._has_head:
            self._stream.trailers(error_trailers(code, text))
        else:
            self._stream.only_head(error_head(code, text))

    def _send(self, data: bytes) -> None:
        self._begin()
        self._stream.write(prefix(len(data)) + data)
        self._stream.flush()

    def _end(self) -> None:
        self._begin()
        self._stream.trailers(OK_TRAILERS)
        self._stream.flush()

    def _begin(self) -> None:
        if not self._has_head:
            self._has_head = True
            self._stream.head(RESPONSE_HEAD)


class StreamingCall:
    """One call. Event loop only."""

    def __init__(
        self,
        answers: Answers,
        conversation: Conversation,
        *,
        reader: MessageReader,
        refusal: Callable[[BaseException], tuple[int, str]],
    ) -> None:
        self._answers = answers
        self._conversation = conversation
        self._reader = reader
        self._refusal = refusal
        self._is_over = False

    def data(self, payload: bytes) -> None:
        """See Call."""
        try:
            for message in self._reader.feed(payload):
                self._conversation.message(message)
        except Exception as error:
            self._refuse(error)

    def end(self) -> None:
        """See Call."""
        if self._reader.is_between_messages:
            self._conversation.half_closed()
        else:
            self._refuse(MalformedPayload("The request ends before its message does."))

    def batch_done(self) -> None:
        """See Call."""

    def draining(self) -> None:
        """See Call."""
        try:
            self._conversation.draining()
        except ServiceError as error:
            self._refuse(error)

    def stalled(self) -> None:
        """See Call; a conversation may be silent."""

    def cancelled(self) -> None:
        """See Call."""
        self._close()

    def _refuse(self, error: Exception | ServiceError) -> None:
        self._answers.refuse(*self._refusal(error))
        self._close()

    def _close(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._conversation.closed()
