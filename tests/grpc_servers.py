"""Both gRPC transports under one call, so that a test can be run over each."""

from __future__ import annotations

from typing import Any

from service.direct.predict import DirectPredict
from service.transports.grpc.h2.server import H2Server

from service.core.engine import Engine
from service.transports.grpc.grpcio_server import GrpcServer

TRANSPORTS = ("h2", "grpcio")


def grpc_server(transport: str, engine: Engine, *, port: int = 0, **options: Any) -> GrpcServer | H2Server:
    """Builds a server on the loopback interface that has not started, as the app builds them."""
    options = {
        "max_message_bytes": 1 << 20,
        "max_workers": 2,
        "predict_directly": DirectPredict(engine, "grpc"),
    } | options
    if transport == "grpcio":
        return GrpcServer(engine, address=f"127.0.0.1:{port}", **options)
    return H2Server(engine, host="127.0.0.1", port=port, **options)
