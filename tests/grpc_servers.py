"""Builds gRPC servers for tests, with the same settings as the service."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc

from service.control.engine import Engine
from service.core.forwarded import NO_FORWARDING
from service.grpc.grpcio_server import GrpcServer


class LocalServer(GrpcServer):
    """A gRPC server on an abstract Unix socket of its own, which takes calls of other callers than the core.

    target: what a channel connects to.
    """

    def __init__(self, engine: Engine, *, name: str = "", **options: Any) -> None:
        name = name or f"tests-{uuid.uuid4()}"
        self.target = f"unix-abstract:{name}"
        options = {"max_message_bytes": 1 << 20, "max_workers": 2, "forwarding": NO_FORWARDING} | options
        super().__init__(engine, abstract_name=name, **options)


@contextmanager
def started(server: LocalServer) -> Iterator[grpc.Channel]:
    """Starts a server, and yields a channel to it."""
    server.start()
    with grpc.insecure_channel(server.target) as channel:
        yield channel
