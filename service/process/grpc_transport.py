"""Builds the gRPC server in Python for the control requests that the native core forwards."""

from __future__ import annotations

from service.access.access import Access
from service.configuration.settings import Settings
from service.engine.engine import Engine
from service.grpc.grpcio_server import GrpcServer
from service.grpc.guard import Guard
from service.native.forwarded import Forwarding


def create_control_grpc_server(
    settings: Settings, engine: Engine, name: str, access: Access | None, forwarding: Forwarding
) -> GrpcServer:
    """Returns a gRPC server on a Unix socket with an abstract name; it is not started yet.

    Args:
      access: the callers and their rights; None: everybody may call.
    """
    return GrpcServer(
        engine,
        abstract_name=name.removeprefix("\0"),
        max_message_bytes=settings.max_message_bytes,
        max_workers=settings.grpc_max_threads,
        as_content=settings.enable_serialization_as_tensor_content,
        guard=None if access is None else Guard(access.callers, access.engine.of),
        forwarding=forwarding,
    )
