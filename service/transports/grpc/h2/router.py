"""From a new stream's headers to the call that answers it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from grpc_reflection.v1alpha import reflection as grpc_reflection

from service.codecs.framed_answer import Envelope
from service.core import request_context
from service.core.engine import Engine
from service.core.errors import ServiceError, Unimplemented
from service.transports.grpc import health as grpc_health
from service.transports.grpc.gate import retry_hint
from service.transports.grpc.h2.conversations import HealthWatch, Reflection, health_check
from service.transports.grpc.h2.inbound import Budget
from service.transports.grpc.h2.messages import INLINE_BYTES, MessageReader
from service.transports.grpc.h2.metadata import ENCODINGS, OK_TRAILERS, CallOptions, error_head, not_grpc, read_options
from service.transports.grpc.h2.request_head import RequestHead
from service.transports.grpc.h2.route import Route, StagedHandler, refused, undivided
from service.transports.grpc.h2.stream import Stream
from service.transports.grpc.h2.streaming import Answers, Conversation, StreamingCall
from service.transports.grpc.h2.unary import Runner, Threads, UnaryCall
from service.transports.grpc.health import Health
from service.transports.grpc.paths import PREDICT, Handler, PredictDirectly, QuickHandler
from service.transports.grpc.refusals import Refusals
from service.transports.grpc.served import UNIMPLEMENTED, unary_handlers
from service.transports.grpc.server_reflection import REFLECTION_NAMES
from service.transports.grpc.status_codes import STATUS_CODES

# How many of the largest messages half-sent requests may hold, over all connections.
_MESSAGES_HELD = 4


class Router:
    """Knows every method; see Routes. Event loop only."""

    def __init__(
        self,
        engine: Engine,
        *,
        loop: asyncio.AbstractEventLoop,
        threads: Threads,
        health: Health,
        reflection: grpc_reflection.ReflectionServicer,
        max_message_bytes: int,
        as_content: bool,
        predict_directly: PredictDirectly | None,
    ) -> None:
        self._loop = loop
        self._max_bytes = max_message_bytes
        self._as_content = as_content
        self._refusals = Refusals()
        self._runner = Runner(loop, threads, engine.clock, self.refusal_block)
        self.now = engine.clock
        self.generation = 0
        self.most_quick_bytes = min(INLINE_BYTES, max_message_bytes)
        self.budget = Budget(_MESSAGES_HELD * max_message_bytes)
        # By whether answers carry tensor_content.
        self._unary: dict[bool, dict[str, Handler]] = {
            in_content: unary_handlers(engine, as_content=in_content, predict_directly=predict_directly)
            for in_content in (False, True)
        }
        self._predict_directly = predict_directly
        self._quick: dict[bool, dict[str, QuickHandler]] = {}
        for in_content, handlers in self._unary.items():
            check = handlers[f"/{grpc_health.SERVICE_NAME}/Check"] = health_check(health)
            quick = self._quick[in_content] = {f"/{grpc_health.SERVICE_NAME}/Check": check}
            if predict_directly is not None:
                quick[PREDICT] = partial(predict_directly, as_content=in_content, may_wait=False)
        self._streaming: dict[str, Callable[[Answers], Conversation]] = {
            f"/{grpc_health.SERVICE_NAME}/Watch": lambda answers: HealthWatch(health, answers),
            **{f"/{name}/ServerReflectionInfo": partial(Reflection, reflection) for name in REFLECTION_NAMES},
        }

    def route(self, head: RequestHead) -> Route:
        """See Routes."""
        if head.method != "POST" or not head.headers.get(b"content-type", b"").startswith(b"application/grpc"):
            return refused(not_grpc(405 if head.method != "POST" else 415))
        try:
            return self._route(head.path, read_options(head.headers))
        except ServiceError as error:
            return refused(self.refusal_block(error))

    def refusal_block(self, error: BaseException, request_id: bytes = b"") -> bytes:
        """See Routes."""
        request_id = request_id or self._refusals.new_id().encode()
        request_context.enter(request_id)
        code, text = self._refusal(error)
        # What else is logged on this thread is none of this request's.
        request_context.enter(b"")
        return error_head(code, text, [(request_context.REQUEST_ID, request_id.decode()), *retry_hint(error)])

    def _route(self, path: str, options: CallOptions) -> Route:
        if options.encoding not in ENCODINGS:
            raise Unimplemented(f"Message encoding {ascii(options.encoding)} is not supported")
        as_content = self._as_content if options.as_content is None else options.as_content
        handler = self._unary[as_content].get(path)
        if handler is not None:
            return self._unary_route(path, handler, self._quickly(path, options, as_content=as_content), options)
        converse = self._streaming.get(path)
        if converse is None:
            raise Unimplemented(UNIMPLEMENTED.get(path, "Method not found!"))

        def open_call(stream: Stream, _may_be_quick: bool) -> StreamingCall:
            answers = Answers(self._loop, stream)
            reader = MessageReader(options.encoding, self._max_bytes)
            return StreamingCall(answers, converse(answers), reader=reader, refusal=self._refusal)

        return Route(open_call)

    def _unary_route(
        self,
        path: str,
        handler: Handler,
        quickly: StagedHandler | None,
        options: CallOptions,
    ) -> Route:
        def open_call(stream: Stream, may_be_quick: bool) -> UnaryCall:
            return UnaryCall(
                self._runner,
                stream,
                path=path,
                handler=handler,
                quickly=quickly if may_be_quick else None,
                options=options,
                max_message_bytes=self._max_bytes,
            )

        # A compressed answer is worth a call of its own.
        at_once = None if options.is_gzip_wanted else quickly
        return Route(open_call, at_once, options.timeout_s, options.head_block, options.request_id)

    def _quickly(self, path: str, options: CallOptions, *, as_content: bool) -> StagedHandler | None:
        quickly = self._quick[as_content].get(path)
        if quickly is None:
            return None
        if options.request_id or options.traceparent:
            # Its name would be gone when it is finished.
            return undivided(partial(_named, quickly, options))
        directly = self._predict_directly
        if directly is None or path != PREDICT or options.is_gzip_wanted:
            return undivided(quickly)
        envelope = Envelope(options.head_block, OK_TRAILERS)
        begin = partial(directly.begin, as_content=as_content, may_wait=False, envelope=envelope)
        return StagedHandler(begin, directly.finish)

    def _refusal(self, error: BaseException) -> tuple[int, str]:
        code, text = self._refusals(error)
        number: Any = STATUS_CODES[code].value[0]
        return int(number), text


def _named(quickly: QuickHandler, options: CallOptions, message: bytes, deadline_s: float | None) -> bytes | None:
    """Answers a request that has a name, or is part of a trace; others on this thread have none."""
    request_context.enter(options.request_id, options.traceparent)
    try:
        return quickly(message, deadline_s)
    finally:
        request_context.enter(b"")
