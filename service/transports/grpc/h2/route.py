"""What a request's head leads to, found once and remembered for the heads that are the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import itemgetter
from typing import NamedTuple, Protocol

from service.codecs.framed_answer import Framed
from service.core.shortcuts import Begun
from service.transports.grpc.h2.inbound import Budget
from service.transports.grpc.h2.request_head import RequestHead
from service.transports.grpc.h2.stream import Call, Stream
from service.transports.grpc.paths import QuickHandler


class StagedHandler(NamedTuple):
    """A QuickHandler in two steps, so that what comes for many is done together.

    begin: its first, told the stream that is answered; None where that is all.
    finish: its second, for what the same thread has begun, to be called once; what it returns is a message, or already
      frames.
    """

    begin: Callable[[bytes, float | None, int], Begun | None]
    finish: Callable[[Begun], bytes | Framed | None]


def undivided(handler: QuickHandler) -> StagedHandler:
    """Returns a handler whose first step is all of it."""

    def begin(data: bytes, deadline_s: float | None, _stream_id: int) -> Begun | None:
        answer = handler(data, deadline_s)
        return None if answer is None else (len(answer), answer)

    return StagedHandler(begin, itemgetter(1))


@dataclass(frozen=True, slots=True)
class Route:
    """How calls with one head are answered.

    open: makes the call of a stream, told whether quickly may still be tried; None where it has answered it already.
    quickly: answers a whole, uncompressed message at once, before there is a call; None where that can not be.
    timeout_s: that a call has.
    head_block: before an answer of quickly.
    request_id: what errors are logged with.
    """

    open: Callable[[Stream, bool], Call | None]
    quickly: StagedHandler | None = None
    timeout_s: float | None = None
    head_block: bytes = b""
    request_id: bytes = b""


class Routes(Protocol):
    """Where connections learn what heads lead to. Event loop only.

    generation: changes when routes that were given out must not be used any more.
    most_quick_bytes: of a message that is answered before there is a call.
    budget: of all its connections.
    """

    @property
    def generation(self) -> int: ...

    @property
    def most_quick_bytes(self) -> int: ...

    @property
    def budget(self) -> Budget: ...

    def route(self, head: RequestHead) -> Route:
        """Returns where a head leads; refusals are routes too."""
        ...

    def now(self) -> float:
        """Returns what deadlines are measured on, in seconds."""
        ...

    def refusal_block(self, error: BaseException, request_id: bytes = b"") -> bytes:
        """Logs an error, and returns the head of an answer that is that alone."""
        ...


def refused(block: bytes) -> Route:
    """Returns the route of requests that are answered by a head alone."""

    def open_call(stream: Stream, _may_be_quick: bool) -> None:
        stream.only_head(block)

    return Route(open_call)
