"""The service's HTTP/2 transport with handlers that only return bytes: what it costs with nothing behind it."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import uvloop

from loadtest.bench.baselines.answers import constant_answers, listening
from service.transports.grpc.h2.connection import Connection
from service.transports.grpc.h2.messages import MessageReader
from service.transports.grpc.h2.metadata import read_options
from service.transports.grpc.h2.unary import Runner, UnaryCall


async def _serve() -> None:
    answers = constant_answers("grpc")
    handlers = {path: (lambda _request, _deadline, answer=answer: answer) for path, answer in answers.items()}
    loop = asyncio.get_running_loop()
    runner = Runner(loop, ThreadPoolExecutor(8), time.monotonic, lambda error: (13, str(error)))

    def open_call(connection: Any, stream: Any, _method: str, path: str, headers: Any) -> UnaryCall:
        options = read_options(headers)
        reader = MessageReader(options.encoding, 1 << 28)
        handler: Any = handlers[path]
        return UnaryCall(runner, connection, stream, handler=handler, quickly=handler, options=options, reader=reader)

    server = await loop.create_server(lambda: Connection(open_call, lambda _lost: None), "127.0.0.1", 0)
    listening(server.sockets[0].getsockname()[1])
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve())
