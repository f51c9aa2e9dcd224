"""Runs the reference servers for HTTP and gRPC on the public ports, if the native core is not used."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from service.access.access import Access
from service.access.tls_ports import Wires
from service.configuration.settings import Settings
from service.configuration.start_error import StartError
from service.engine.engine import Engine
from service.process.bound_ports import Ports, check_socket_path, grpc_port, http_port
from service.process.grpc_transport import create_grpc_server
from service.process.http_parts import HttpParts
from service.process.http_transport import create_http_server
from service.process.own_thread import in_own_thread


class PythonServers:
    """The HTTP and the gRPC reference server on the public ports. Concurrency: event loop only, except set_serving.

    Args:
      on_end: called when the HTTP server has ended, for any reason.

    Raises:
      StartError: a setting can not be used.
    """

    def __init__(
        self,
        settings: Settings,
        engine: Engine,
        http_parts: HttpParts,
        *,
        tls: Wires,
        access: Access | None,
        on_end: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._on_end = on_end
        self._grpc = create_grpc_server(settings, engine, tls, access)
        self._http = create_http_server(http_parts)
        self._serving: asyncio.Task[None] | None = None

    def bind(self) -> None:
        """Binds the HTTP port and tests that the gRPC port is free; both refuse connections until open().

        Raises StartError, also if the --grpc_socket_path is in use.
        """
        check_socket_path(self._settings.grpc_socket_path)
        self._http_port = http_port(self._settings)
        # The gRPC port is bound and closed once, to get the reason if that fails: grpcio binds the port itself later,
        # and its error has no reason.
        grpc_port(self._settings).close()

    async def open(self) -> Ports:
        """Starts to serve on the HTTP and the gRPC port; returns their numbers. Raises StartError if one is in use."""
        listeners = self._http_port.listen()
        try:
            grpc_number = self._grpc.start()
        except OSError as error:
            self._http_port.close()
            raise StartError(f"{error} Choose another with --port.") from error
        self._serving = asyncio.create_task(self._http.serve(sockets=listeners))
        self._serving.add_done_callback(lambda _: self._on_end())
        return Ports(self._http_port.number, grpc_number)

    async def complete(self) -> None:
        """Does nothing, because open() has started both reference servers (HTTP and gRPC)."""

    def set_serving(self, is_serving: bool) -> None:
        """Updates the statuses that gRPC health checks return, of the server and of its models.

        Concurrency: any thread.
        """
        self._grpc.set_serving(is_serving)

    async def stop(self) -> None:
        """Stops both servers: accepts no more requests, and waits for the requests in flight up to drain_timeout_s."""
        self._http.should_exit = True
        stopping = in_own_thread(partial(self._grpc.stop, self._settings.drain_timeout_s), "grpc-stop")
        await asyncio.gather(self._serving or asyncio.sleep(0), stopping)
        self._http_port.close()

    def stop_now(self) -> None:
        """Makes stop() of the HTTP and gRPC servers cut the requests in flight and not wait for them."""
        self._http.force_exit = True
        self._grpc.stop(0)

    def state(self) -> dict[str, Any]:
        """Returns the Python servers' part of the status page."""
        return {"kind": "python"}
