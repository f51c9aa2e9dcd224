"""Builds gRPC servers for tests, with the same settings as the service."""

from __future__ import annotations

from typing import Any

from service.engine.engine import Engine
from service.grpc.grpcio_server import GrpcServer


def grpc_server(engine: Engine, *, port: int = 0, **options: Any) -> GrpcServer:
    """Builds a gRPC server on the loopback interface, without starting it."""
    options = {"max_message_bytes": 1 << 20, "max_workers": 2} | options
    return GrpcServer(engine, hosts=["127.0.0.1"], port=port, **options)
