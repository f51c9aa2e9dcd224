"""Builds the gRPC server that the settings ask for."""

from __future__ import annotations

from pathlib import Path

from service.access import Access
from service.configuration.settings import Settings
from service.core.engine import Engine
from service.direct.predict import DirectPredict
from service.tls.wires import Wires, opener
from service.transports.grpc.grpcio_server import GrpcServer
from service.transports.grpc.grpcio_tls import server_credentials
from service.transports.grpc.guard import Guard
from service.transports.grpc.h2.server import H2Server
from service.transports.grpc.paths import API
from service.workers.crew import Crew


def create_grpc_server(
    settings: Settings, engine: Engine, crew: Crew | None, tls: Wires, access: Access | None = None
) -> GrpcServer | H2Server:
    """Returns a server that has not started.

    Args:
      access: who may call.
      crew: the other workers that this process is one of, with the sockets that they share.
    """
    predict_directly = DirectPredict(access.engine if access else engine, API)
    guard = None if access is None else Guard(access.callers, access.engine.of, predict_directly)
    if not settings.grpc_takes_sockets:
        return GrpcServer(
            engine,
            address=f"{_bracketed(settings.host)}:{settings.port}",
            max_message_bytes=settings.max_request_bytes,
            max_workers=settings.grpc_max_threads,
            socket_path=settings.grpc_socket_path,
            channel_arguments=[
                # What was given comes later and wins.
                ("grpc.server_handshake_timeout_ms", round(settings.tls_handshake_timeout_s * 1e3)),
                *settings.channel_arguments,
                *([("grpc.so_reuseport", 1)] if crew else []),
            ],
            as_content=settings.enable_serialization_as_tensor_content,
            predict_directly=predict_directly,
            guard=guard,
            credentials=None if tls.grpc is None else server_credentials(tls.grpc.config),
        )
    return H2Server(
        engine,
        host=settings.host,
        port=settings.port,
        max_message_bytes=settings.max_request_bytes,
        max_workers=settings.grpc_max_threads,
        socket_path=settings.grpc_socket_path,
        as_content=settings.enable_serialization_as_tensor_content,
        predict_directly=predict_directly,
        listeners=crew.grpc_listeners if crew else (),
        open_listener=opener("grpc", tls.grpc_handshakes(), crew),
        guard=guard,
    )


def create_reference_grpc_server(
    settings: Settings, engine: Engine, socket_path: Path, access: Access | None = None
) -> GrpcServer:
    """Returns the server behind the native core, on a Unix socket, which has not started."""
    predict_directly = DirectPredict(access.engine if access else engine, API)
    return GrpcServer(
        engine,
        address=f"unix:{socket_path}",
        # The core can not serve it: gRPC clients send the percent-encoded path of a Unix socket as :authority, which is
        # no authority (RFC 3986), and the HTTP/2 of the core refuses the request.
        socket_path=settings.grpc_socket_path,
        max_message_bytes=settings.max_request_bytes,
        max_workers=settings.grpc_max_threads,
        as_content=settings.enable_serialization_as_tensor_content,
        predict_directly=predict_directly,
        guard=None if access is None else Guard(access.callers, access.engine.of, predict_directly),
    )


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
