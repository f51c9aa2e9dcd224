"""The reference servers of both wires on the public ports, where the native core does not answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from service.access import Access
from service.configuration.settings import Settings
from service.core.engine import Engine
from service.grpc_transport import create_grpc_server
from service.http_parts import HttpParts, Ports, listen
from service.http_transport import create_http_server
from service.start_error import StartError
from service.tls.wires import Wires


class PythonServers:
    """The HTTP and the gRPC server. Concurrency: event loop only, except set_serving.

    Raises:
      StartError: a setting can not be used.
    """

    def __init__(
        self, settings: Settings, engine: Engine, http_parts: HttpParts, *, tls: Wires, access: Access | None
    ) -> None:
        self._settings = settings
        self._grpc = create_grpc_server(settings, engine, tls, access)
        self._http = create_http_server(http_parts)
        self._serving: asyncio.Task[None] | None = None

    async def start(self, on_end: Callable[[], None]) -> Ports:
        """Listens and serves.

        Args:
          on_end: called when the HTTP server has ended, whatever ended it.

        Raises:
          StartError: a port is in use.
        """
        settings = self._settings
        http_socket = listen(settings.host, settings.rest_api_port)
        try:
            grpc_port = self._grpc.start()
        except OSError as error:
            http_socket.close()
            # grpcio does not say why: an attempt to listen does, in the words that both data planes have.
            listen(settings.host, settings.port, "--port or --host", "gRPC").close()
            raise StartError(f"{error} Choose another with --port.") from error
        http_port = http_socket.getsockname()[1]
        self._serving = asyncio.create_task(self._http.serve(sockets=[http_socket]))
        self._serving.add_done_callback(lambda _: on_end())
        return Ports(http_port, grpc_port)

    async def complete(self) -> None:
        """Does nothing: start() has started all servers."""

    def set_serving(self, is_serving: bool) -> None:
        """Tells gRPC's health checks whether the server and its models can answer. Concurrency: any thread."""
        self._grpc.set_serving(is_serving)

    async def stop(self) -> None:
        """Stops accepting and waits for the requests in flight, for as long as the settings allow."""
        assert self._serving is not None  # it was started
        self._http.should_exit = True
        await asyncio.gather(self._serving, asyncio.to_thread(self._grpc.stop, self._settings.drain_timeout_s))

    def stop_now(self) -> None:
        """Makes stop end without waiting for requests."""
        self._http.force_exit = True
        self._grpc.stop(0)

    def state(self) -> dict[str, Any]:
        """Returns what the status page shows of the data plane."""
        return {"kind": "python"}
