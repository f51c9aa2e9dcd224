"""One POST to a signature: read, parse, bind, decode, run, encode; on the event loop where that is a matter of
microseconds, in a thread where it is not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import copy_context
from dataclasses import dataclass, replace
from functools import partial
from typing import Generic, NamedTuple, Protocol, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from service.engine.admission import Room
from service.engine.bound import Bound
from service.engine.call import Call
from service.engine.engine import Engine
from service.engine.workers import Workers
from service.errors import DeadlineExceeded, ServiceError
from service.http.body import read_body
from service.types import ModelRef
from service.wire.http_api import API

MODEL_VERSION = "X-Model-Version"

# Large bodies are parsed beside the event loop; JSON holds the interpreter's lock, so more threads would not help.
_NUM_PARSE_THREADS = 2
# Threads that wait for other machines, for lookups of remote tables; they start with the first of these.
_NUM_WAITING_THREADS = 32


class Parsed(Protocol):
    """A parsed request; it names at least the signature."""

    @property
    def signature_name(self) -> str: ...


P = TypeVar("P", bound=Parsed)
A = TypeVar("A")
T = TypeVar("T")


class Answered(NamedTuple, Generic[A]):
    """A method's answer, and the version of the model that computed it."""

    content: A
    version: int


def json_response(answered: Answered[bytes]) -> Response:
    """Returns a JSON answer that names the version."""
    headers = {MODEL_VERSION: str(answered.version)}
    return Response(answered.content, headers=headers, media_type="application/json")


@dataclass(frozen=True, slots=True)
class Method(Generic[P, A]):
    """A wire method over signatures.

    parse: body to what it says, as far as that needs no signature.
    answer: computes the answer from the held signature and the parsed body.
    name: its name in metrics.
    unknown_signature: the text of that error, where it is not the engine's; {} stands for the name.
    fallback_signature: what a body that names none is for where the model has no serving_default.
    """

    parse: Callable[[bytes], P]
    answer: Callable[[Bound, P], A]
    unknown_signature: str = ""
    name: str = ""
    fallback_signature: str = ""


class Calls:
    """Runs methods against an engine. Concurrency: event loop only.

    Args:
      max_body_bytes: what a body may have, compressed or not.
      inline_body_bytes: up to which a body is parsed, and a lookup run, on the event loop.
      timeout_s: for the whole request, waiting for a thread included.
      graph_threads: how many graph runs go on at once; others wait, as engine.admission lets them.
    """

    def __init__(
        self, engine: Engine, *, max_body_bytes: int, inline_body_bytes: int, timeout_s: float, graph_threads: int
    ) -> None:
        self._engine = engine
        self._max_body_bytes = max_body_bytes
        self._inline_body_bytes = inline_body_bytes
        self._timeout_s = timeout_s
        admission, clock = engine.admission, engine.clock
        self._graph_threads = Workers(graph_threads, name="http-graph", admission=admission, clock=clock)
        self._parse_threads = Workers(_NUM_PARSE_THREADS, name="http-parse", admission=admission, clock=clock)
        self._waiting_threads = Workers(_NUM_WAITING_THREADS, name="http-remote", admission=admission, clock=clock)

    async def answer(self, request: Request, ref: ModelRef, method: Method[P, A]) -> Answered[A]:
        """Returns what the method answers, and the version.

        Raises:
          ServiceError: whatever the engine and the codecs raise; DeadlineExceeded after timeout_s.
        """
        room = Room(self._engine.admission, self._engine.share_of(ref.name))
        try:
            return await self._answer(request, ref, method, room)
        finally:
            room.done()

    async def _answer(self, request: Request, ref: ModelRef, method: Method[P, A], room: Room) -> Answered[A]:
        deadline_s = self._engine.clock() + self._timeout_s
        call = Call(API, method.name, deadline_s=deadline_s)
        try:
            body = await read_body(request, self._max_body_bytes, room)
            # The clock starts when the body is here: how fast a client sends is not this server's doing.
            call = replace(call, started_s=self._engine.clock())
            is_small = len(body) <= self._inline_body_bytes
            if is_small:
                parsed = method.parse(body)
            else:
                parsed = await self._in_thread(self._parse_threads, room, partial(method.parse, body), deadline_s)
        except ServiceError as error:
            self._engine.reject(error, call, model=ref.name)
            raise
        bound = self._engine.bind(
            ref,
            parsed.signature_name,
            call,
            unknown_signature=method.unknown_signature,
            fallback_signature=method.fallback_signature,
        )
        is_lookup = bound.spec.kind == "lookup"
        if is_lookup and is_small and not bound.may_wait:
            return _answer(bound, method, parsed)
        threads = self._parse_threads if is_lookup else self._graph_threads
        if bound.may_wait:
            threads = self._waiting_threads
        work = partial(_answer, bound, method, parsed)
        return await self._in_thread(threads, room, work, deadline_s, bound)

    async def read(self, request: Request, model: str, work: Callable[[bytes], T], *, may_wait: bool = False) -> T:
        """Returns work(body), run in a thread where the body is large.

        Args:
          model: as the request has it, "" where it is for none.
          may_wait: work waits for other machines, so it runs in a thread in any case.
        """
        room = Room(self._engine.admission, self._engine.share_of(model))
        try:
            body = await read_body(request, self._max_body_bytes, room)
            if len(body) <= self._inline_body_bytes and not may_wait:
                return work(body)
            deadline_s = self._engine.clock() + self._timeout_s
            threads = self._waiting_threads if may_wait else self._parse_threads
            return await self._in_thread(threads, room, partial(work, body), deadline_s)
        finally:
            room.done()

    def close(self) -> None:
        """Lets running work end and drops what has not begun."""
        for threads in (self._graph_threads, self._parse_threads, self._waiting_threads):
            threads.close()

    async def _in_thread(
        self, threads: Workers, room: Room, work: Callable[[], T], deadline_s: float, bound: Bound | None = None
    ) -> T:
        """Runs work in a thread until the deadline; gives bound back where work never begins, else work does."""

        # With the request's id, its trace, and who asks.
        context = copy_context()

        def run(refusal: ServiceError | None) -> T:
            if refusal is not None:
                _give_back(bound, refusal)
                raise refusal
            return context.run(work)

        try:
            future = threads.submit(room.model, run, deadline_s)
        except ServiceError as error:
            _give_back(bound, error)
            raise
        room.use()
        future.add_done_callback(lambda _: room.done())
        late = DeadlineExceeded(f"Timed out: the request took longer than {self._timeout_s:g} s.")
        try:
            remaining_s = deadline_s - self._engine.clock()
            return await asyncio.wait_for(asyncio.wrap_future(future), max(remaining_s, 0))
        except TimeoutError as error:
            raise late from error
        finally:
            # True only where no thread has begun the work and now none will; a thread that has holds the lease until
            # it is done, also when the client was told of the timeout.
            if future.cancel():
                _give_back(bound, late)


def _answer(bound: Bound, method: Method[P, A], parsed: P) -> Answered[A]:
    with bound:
        return Answered(method.answer(bound, parsed), bound.version)


def _give_back(bound: Bound | None, error: ServiceError) -> None:
    if bound is not None:
        bound.__exit__(type(error), error, None)
