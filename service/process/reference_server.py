"""Runs the reference server, service.reference, on the public ports, where the native core is not used."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from functools import partial

from service.configuration.settings import Settings, StartError
from service.errors import ServiceError
from service.http.uvicorn_server import HttpServer
from service.process.bound_ports import Ports, bracketed, check_socket_path, grpc_port, http_port, log_listening
from service.process.model_lists import ModelLists
from service.process.resources import handle_signals, in_own_thread, wait_unless
from service.reference.grpc_methods import create_grpc_server, open_port
from service.reference.http_app import http_config
from service.reference.models import Models, check_settings

logger = logging.getLogger(__name__)

_LOOK_AGAIN_S = 0.02


class ReferenceServer:
    """The reference server of one process.

    Raises:
      StartError: a setting asks for what the reference server does not do.
    """

    def __init__(self, settings: Settings) -> None:
        check_settings(settings)
        self._settings = settings
        self._models = Models(settings)
        self._lists = ModelLists(settings, self._models.set)
        self._grpc = create_grpc_server(
            self._models,
            threads=settings.grpc_max_threads,
            max_message_bytes=settings.max_message_bytes,
            arguments=settings.channel_arguments,
            as_content=settings.enable_serialization_as_tensor_content,
        )
        self._http = HttpServer(http_config(self._models, settings))
        self._stop, self._forced, self._stop_watching = asyncio.Event(), asyncio.Event(), threading.Event()

    async def run(self) -> list[str]:
        """Serves until SIGTERM or SIGINT; returns the models whose loads could not be ended.

        Raises:
          StartError: a port is in use, or the list of models is wrong.
        """
        settings = self._settings
        configs = self._lists.first()
        check_socket_path(settings.grpc_socket_path)
        port = http_port(settings)
        grpc_port(settings).close()
        end_s = settings.shutdown_delay_s + 2 * settings.drain_timeout_s + 3.0
        handle_signals(self._stop, force=self._force, on_hangup=self._lists.read_again, end_s=end_s)
        try:
            self._models.start(configs)
        except ServiceError as error:
            raise StartError(error.message) from error
        self._lists.watch(self._stop_watching)
        # The ports open when each model is loaded or has failed.
        until_s = time.monotonic() + settings.first_loads_timeout_s
        names = [config.name for config in configs]
        while not all(map(self._models.set.is_settled, names)) and time.monotonic() < until_s:
            if self._stop.is_set():
                break
            await asyncio.sleep(_LOOK_AGAIN_S)
        grpc_number = self._open_grpc()
        listeners = port.listen()
        serving = asyncio.create_task(self._http.serve(sockets=listeners)) if listeners else None
        log_listening(settings, Ports(port.number, grpc_number), None, has_console=False)
        await self._stop.wait()
        self._models.registry.drain()
        self._models.set.drain()
        await wait_unless(self._forced, settings.shutdown_delay_s)
        self._http.should_exit = True
        await in_own_thread(lambda: self._grpc.stop(settings.drain_timeout_s).wait(), "grpc-stop")
        if serving is not None:
            await serving
        port.close()
        self._stop_watching.set()
        logger.info("stopped")
        return await in_own_thread(partial(self._models.set.stop, settings.drain_timeout_s), "models-stop")

    def _open_grpc(self) -> int | None:
        settings, number = self._settings, None
        if settings.port != 0:
            number = 0 if settings.port == "auto" else settings.port
            for host in settings.hosts:
                number = open_port(self._grpc, f"{bracketed(host)}:{number}")
        if settings.grpc_socket_path:
            open_port(self._grpc, f"unix:{settings.grpc_socket_path}")
        self._grpc.start()
        return number

    def _force(self) -> None:
        self._forced.set()
        self._http.force_exit = True
        self._grpc.stop(0)
