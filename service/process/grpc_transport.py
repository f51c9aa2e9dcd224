"""Builds the gRPC server from the settings."""

from __future__ import annotations

from typing import Any

from service.access.access import Access
from service.access.tls_ports import Wires
from service.configuration.settings import Settings
from service.engine.engine import Engine
from service.grpc.grpcio_server import GrpcServer
from service.grpc.grpcio_tls import server_credentials
from service.grpc.guard import Guard
from service.native.forwarded import Forwarding
from service.process.bound_ports import bracketed


def create_grpc_server(settings: Settings, engine: Engine, tls: Wires, access: Access | None = None) -> GrpcServer:
    """Returns a gRPC server for the public port; it is not started yet.

    Args:
      access: the callers and their rights; None: everybody may call.
    """
    return _create(
        settings,
        engine,
        access,
        hosts=[] if settings.port == 0 else [bracketed(host) for host in settings.hosts],
        port=0 if settings.port == "auto" else settings.port,
        socket_path=settings.grpc_socket_path,
        channel_arguments=[
            # The user's gRPC channel arguments come after the server's own: of two arguments with the same name, the
            # last one counts.
            ("grpc.server_handshake_timeout_ms", round(settings.tls_handshake_timeout_s * 1e3)),
            *settings.channel_arguments,
        ],
        credentials=None if tls.grpc is None else server_credentials(tls.grpc.config),
    )


def create_reference_grpc_server(
    settings: Settings, engine: Engine, name: str, access: Access | None, forwarding: Forwarding
) -> GrpcServer:
    """Returns a gRPC server for the calls that the native core forwards, on a Unix socket with an abstract name; it is
    not started yet.
    """
    return _create(
        settings,
        engine,
        access,
        abstract_name=name.removeprefix("\0"),
        forwarding=forwarding,
    )


def _create(settings: Settings, engine: Engine, access: Access | None, **more: Any) -> GrpcServer:
    return GrpcServer(
        engine,
        max_message_bytes=settings.max_message_bytes,
        max_workers=settings.grpc_max_threads,
        as_content=settings.enable_serialization_as_tensor_content,
        guard=None if access is None else Guard(access.callers, access.engine.of),
        **more,
    )
