"""Serves constant answers with grpcio's threaded server: the lowest cost of any Python gRPC service."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

from loadtest.bench.baselines.answers import constant_answers, listening


class _Constants(grpc.GenericRpcHandler):
    def __init__(self, answers: dict[str, bytes]) -> None:
        self._handlers = {
            path: grpc.unary_unary_rpc_method_handler(lambda _request, _context, answer=answer: answer)
            for path, answer in answers.items()
        }

    def service(self, details: Any) -> Any:
        return self._handlers.get(details.method)


def main() -> None:
    """Serves constant answers until the process is killed."""
    # As in the service by default, the server has 8 threads, and messages may have any size.
    server = grpc.server(
        ThreadPoolExecutor(8),
        handlers=[_Constants(constant_answers("grpc"))],
        options=[("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)],
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    listening(port)
    server.wait_for_termination()


if __name__ == "__main__":
    main()
