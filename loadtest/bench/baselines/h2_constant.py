"""The service's HTTP/2 transport with handlers that only return bytes: what it costs with nothing behind it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import uvloop
from service.transports.grpc.h2.connection import Connection
from service.transports.grpc.h2.inbound import Budget
from service.transports.grpc.h2.metadata import error_head, read_options
from service.transports.grpc.h2.request_head import RequestHead
from service.transports.grpc.h2.route import Route, undivided
from service.transports.grpc.h2.stream import Stream
from service.transports.grpc.h2.unary import Runner, UnaryCall
from service.transports.turns import Turns

from loadtest.bench.baselines.answers import constant_answers, listening

_MAX_BYTES = 1 << 28


class _Threads:
    """See unary.Threads; it refuses nothing."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(8)

    def submit(
        self, _path: str, _message: bytes, _deadline_s: float | None, work: Callable[[None], None]
    ) -> Future[None]:
        return self._pool.submit(work, None)


class _Constants:
    """Routes to handlers that know one answer each; see Routes."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._answers = constant_answers("grpc")
        self._runner = Runner(loop, _Threads(), time.monotonic, self.refusal_block)
        self.generation = 0
        self.budget = Budget(_MAX_BYTES)
        self.most_quick_bytes = _MAX_BYTES
        self.now = time.monotonic

    def route(self, head: RequestHead) -> Route:
        options = read_options(head.headers)
        answer = self._answers[head.path]

        def handler(_request: bytes, _deadline_s: float | None) -> bytes:
            return answer

        quickly = undivided(handler)

        def open_call(stream: Stream, _may_be_quick: bool) -> UnaryCall:
            return UnaryCall(
                self._runner,
                stream,
                path=head.path,
                handler=handler,
                quickly=quickly,
                options=options,
                max_message_bytes=_MAX_BYTES,
            )

        return Route(open_call, quickly, options.timeout_s, options.head_block)

    def refusal_block(self, error: BaseException, _request_id: bytes = b"") -> bytes:
        return error_head(13, str(error))


async def _serve() -> None:
    loop = asyncio.get_running_loop()
    routes, turns = _Constants(loop), Turns()
    server = await loop.create_server(lambda: Connection(routes, lambda _lost: None, turns), "127.0.0.1", 0)
    listening(server.sockets[0].getsockname()[1])
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve())
