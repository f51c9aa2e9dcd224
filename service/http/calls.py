"""Runs a POST request to a signature: reads, parses and decodes the body, runs the signature, encodes the answer.

Steps that take microseconds run on the event loop, longer steps in a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import copy_context
from dataclasses import dataclass, replace
from functools import partial
from typing import Generic, NamedTuple, Protocol, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from service.engine.admission import Reservation
from service.engine.bound import Bound
from service.engine.call import Call
from service.engine.engine import Engine
from service.engine.workers import Workers
from service.errors import DeadlineExceeded, ServiceError
from service.http.body import read_body
from service.types import ModelRef
from service.wire.http_api import API

MODEL_VERSION = "X-Model-Version"

# Number of threads that parse large bodies. More would not help, because the JSON parser holds the interpreter's lock.
_NUM_PARSE_THREADS = 2


class Parsed(Protocol):
    """A parsed body of a request to run a signature; every wire form has at least the signature's name."""

    @property
    def signature_name(self) -> str: ...


P = TypeVar("P", bound=Parsed)
A = TypeVar("A")
T = TypeVar("T")


class Answered(NamedTuple, Generic[A]):
    """The answer of an operation, such as classify, and the model version that computed it."""

    content: A
    version: int


def json_response(answered: Answered[bytes]) -> Response:
    """Returns an HTTP response with the answer as JSON and its model version in the header X-Model-Version."""
    headers = {MODEL_VERSION: str(answered.version)}
    return Response(answered.content, headers=headers, media_type="application/json")


@dataclass(frozen=True, slots=True)
class Method(Generic[P, A]):
    """An operation of the HTTP API that runs a signature, such as predict.

    parse: parses a body, as far as that needs no signature.
    answer: computes the answer from the bound signature and the parsed body.
    name: the method's name in metrics.
    unknown_signature: error text for an unknown signature in place of the engine's; {} stands for the name.
    fallback_signature: signature of a body that names none, if the model has no serving_default.
    """

    parse: Callable[[bytes], P]
    answer: Callable[[Bound, P], A]
    unknown_signature: str = ""
    name: str = ""
    fallback_signature: str = ""


class Calls:
    """The runner of HTTP requests that need a signature, with pools of threads for graph runs and for large bodies.

    Concurrency: event loop only.

    Args:
      max_body_bytes: largest body, compressed or not.
      inline_body_bytes: largest body that is parsed, and whose lookup is run, on the event loop.
      timeout_s: timeout of a whole request, waiting for a thread included.
      graph_threads: number of graph runs at a time; others wait within the limits of engine.admission.
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

    async def answer(self, request: Request, ref: ModelRef, method: Method[P, A]) -> Answered[A]:
        """Runs an operation, such as predict, for a request; returns its answer and the model version.

        Raises:
          ServiceError: an error of the engine or of a decoder; DeadlineExceeded after timeout_s.
        """
        reservation = Reservation(self._engine.admission, self._engine.share_of(ref.name))
        try:
            return await self._answer(request, ref, method, reservation)
        finally:
            reservation.drop_user()

    async def _answer(
        self, request: Request, ref: ModelRef, method: Method[P, A], reservation: Reservation
    ) -> Answered[A]:
        deadline_s = self._engine.clock() + self._timeout_s
        call = Call(API, method.name, deadline_s=deadline_s)
        try:
            body = await read_body(request, self._max_body_bytes, reservation)
            # The request's time in metrics begins when its whole body has arrived, because the server does not control
            # how fast a client sends it.
            call = replace(call, started_s=self._engine.clock())
            is_small = len(body) <= self._inline_body_bytes
            if is_small:
                parsed = method.parse(body)
            else:
                parsed = await self._in_thread(
                    self._parse_threads, reservation, partial(method.parse, body), deadline_s
                )
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
        work = partial(_answer, bound, method, parsed)
        return await self._in_thread(self._graph_threads, reservation, work, deadline_s, bound)

    async def read(self, request: Request, model: str, work: Callable[[bytes], T]) -> T:
        """Reads a request's body and returns the result of work(body), which runs in a thread if the body is large.

        Args:
          model: the model's name in the request; "" if the request is for no model.
        """
        reservation = Reservation(self._engine.admission, self._engine.share_of(model))
        try:
            body = await read_body(request, self._max_body_bytes, reservation)
            if len(body) <= self._inline_body_bytes:
                return work(body)
            deadline_s = self._engine.clock() + self._timeout_s
            return await self._in_thread(self._parse_threads, reservation, partial(work, body), deadline_s)
        finally:
            reservation.drop_user()

    def close(self) -> None:
        """Ends all thread pools: running jobs go on, waiting ones are dropped."""
        for threads in (self._graph_threads, self._parse_threads):
            threads.close()

    async def _in_thread(
        self,
        threads: Workers,
        reservation: Reservation,
        work: Callable[[], T],
        deadline_s: float,
        bound: Bound | None = None,
    ) -> T:
        """Runs work() in a thread and returns its result; raises DeadlineExceeded if the deadline passes before.

        If work() never begins, this function ends the lease of the bound signature; else work() does.
        """

        # copy_context() gives the thread the context variables of the request: its id, its trace and its caller's
        # grant.
        context = copy_context()

        def run(refusal: ServiceError | None) -> T:
            if refusal is not None:
                _release(bound, refusal)
                raise refusal
            return context.run(work)

        try:
            future = threads.submit(reservation.model, run, deadline_s)
        except ServiceError as error:
            _release(bound, error)
            raise
        reservation.add_user()
        future.add_done_callback(lambda _: reservation.drop_user())
        late = DeadlineExceeded(f"Timed out: the request took longer than {self._timeout_s:g} s.")
        try:
            remaining_s = deadline_s - self._engine.clock()
            return await asyncio.wait_for(asyncio.wrap_future(future), max(remaining_s, 0))
        except TimeoutError as error:
            raise late from error
        finally:
            # future.cancel() returns True only if work() never begins: then its lease is ended here. A thread that
            # has begun work() holds the lease until the work ends, even if the client got a timeout.
            if future.cancel():
                _release(bound, late)


def _answer(bound: Bound, method: Method[P, A], parsed: P) -> Answered[A]:
    with bound:
        return Answered(method.answer(bound, parsed), bound.version)


def _release(bound: Bound | None, error: ServiceError) -> None:
    if bound is not None:
        bound.__exit__(type(error), error, None)
