"""From a new stream's headers to the call that answers it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from grpc_reflection.v1alpha import reflection as grpc_reflection
from httpunk.http import HeaderMap

from service.core.engine import Engine
from service.core.errors import ServiceError, Unimplemented
from service.transports.grpc import health as grpc_health
from service.transports.grpc.gate import Gate
from service.transports.grpc.h2.connection import Connection
from service.transports.grpc.h2.conversations import HealthWatch, Reflection, health_check
from service.transports.grpc.h2.messages import MessageReader
from service.transports.grpc.h2.metadata import ENCODINGS, NOT_GRPC, CallOptions, error_head, read_options
from service.transports.grpc.h2.stream import Call, Stream
from service.transports.grpc.h2.streaming import Answers, Conversation, StreamingCall
from service.transports.grpc.h2.unary import Runner, UnaryCall
from service.transports.grpc.health import Health
from service.transports.grpc.paths import PREDICT, Handler, PredictDirectly, QuickHandler
from service.transports.grpc.refusals import Refusals
from service.transports.grpc.served import UNIMPLEMENTED, unary_handlers
from service.transports.grpc.server_reflection import REFLECTION_NAMES
from service.transports.grpc.status_codes import STATUS_CODES


class Router:
    """Knows every method. Event loop only."""

    def __init__(
        self,
        engine: Engine,
        *,
        loop: asyncio.AbstractEventLoop,
        threads: Gate,
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
        self._runner = Runner(loop, threads, engine.clock, self._refusal)
        # By whether answers carry tensor_content.
        self._unary: dict[bool, dict[str, Handler]] = {
            in_content: {
                path: threads.guarded(path, handler)
                for path, handler in unary_handlers(
                    engine, as_content=in_content, predict_directly=predict_directly
                ).items()
            }
            for in_content in (False, True)
        }
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

    def open_call(
        self, connection: Connection, stream: Stream, method: str, path: str, headers: HeaderMap
    ) -> Call | None:
        """Returns the call of a stream; None where it was refused."""
        if method != "POST" or not (headers.get("content-type") or b"").startswith(b"application/grpc"):
            stream.only_head(NOT_GRPC, 405 if method != "POST" else 415)
            return None
        try:
            return self._call(connection, stream, path, read_options(headers))
        except ServiceError as error:
            stream.only_head(error_head(*self._refusal(error)))
            return None

    def _call(self, connection: Connection, stream: Stream, path: str, options: CallOptions) -> Call:
        if options.encoding not in ENCODINGS:
            raise Unimplemented(f"Message encoding {ascii(options.encoding)} is not supported")
        reader = MessageReader(options.encoding, self._max_bytes)
        as_content = self._as_content if options.as_content is None else options.as_content
        handler = self._unary[as_content].get(path)
        if handler is not None:
            return UnaryCall(
                self._runner,
                connection,
                stream,
                handler=handler,
                quickly=self._quick[as_content].get(path),
                options=options,
                reader=reader,
            )
        converse = self._streaming.get(path)
        if converse is None:
            raise Unimplemented(UNIMPLEMENTED.get(path, "Method not found!"))
        answers = Answers(self._loop, connection, stream)
        return StreamingCall(answers, converse(answers), reader=reader, refusal=self._refusal)

    def _refusal(self, error: BaseException) -> tuple[int, str]:
        code, text = self._refusals(error)
        number: Any = STATUS_CODES[code].value[0]
        return int(number), text
