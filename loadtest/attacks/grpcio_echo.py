"""Serves an echo method on grpcio with default settings, as a server to compare attacks on; prints its port."""

from __future__ import annotations

import sys
from concurrent import futures
from typing import Any

import grpc


class _Echo(grpc.GenericRpcHandler):
    def service(self, handler_call_details: Any) -> Any:
        return grpc.unary_unary_rpc_method_handler(lambda request, _: request)


def main() -> None:
    """Serves the echo method until the process is killed."""
    server = grpc.server(futures.ThreadPoolExecutor(4), handlers=[_Echo()])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()
    server.wait_for_termination()


if __name__ == "__main__":
    main()
