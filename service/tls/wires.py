"""The files of both wires, as the settings ask for them."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from service.configuration.settings import Settings
from service.core.errors import InvalidRequest
from service.metrics.tls import TlsCounter
from service.tls.tls_file import TlsFile
from service.transports.grpc.paths import API as GRPC_API
from service.transports.http.calls import API as HTTP_API
from service.transports.tls_listener import Factory, Handshakes, TlsListener
from service.workers.counts import Wire
from service.workers.crew import Crew

logger = logging.getLogger(__name__)


class TlsError(Exception):
    """A file can not be used; the message says which flag's, and what to change."""


class Wires:
    """TLS of both wires. Concurrency: any thread; run once.

    grpc, http: None where a wire is plaintext.

    Raises:
      TlsError: a file can not be used.
    """

    def __init__(self, settings: Settings, counter: TlsCounter) -> None:
        self._settings = settings
        self._counter = counter
        self.grpc = self._file("ssl_config_file", GRPC_API, "h2")
        self.http = self._file("rest_api_ssl_config_file", HTTP_API, "http/1.1")

    def grpc_handshakes(self) -> Handshakes | None:
        """Returns what secures the connections of our own gRPC transport."""
        # Who speaks HTTP/2 over TLS must have agreed on it (RFC 9113 section 3.2).
        return self._handshakes(self.grpc, GRPC_API, must_agree_on="h2")

    def http_handshakes(self) -> Handshakes | None:
        """Returns what secures HTTP connections."""
        return self._handshakes(self.http, HTTP_API)

    def run(self, stop: threading.Event, poll_interval_s: float) -> None:
        """Looks at the files again and again, in a thread of its own; not at all where the interval is 0."""
        files = [file for file in (self.grpc, self.http) if file is not None]
        if files and poll_interval_s > 0:
            threading.Thread(target=_poll, args=(files, stop, poll_interval_s), name="tls-files", daemon=True).start()

    def _file(self, flag: str, api: str, protocol: str) -> TlsFile | None:
        path = getattr(self._settings, flag)
        if not path:
            return None
        try:
            return TlsFile(Path(path), api=api, protocols=[protocol], counter=self._counter)
        except InvalidRequest as error:
            raise TlsError(f"--{flag}={path}: {error.message}") from error

    def _handshakes(self, file: TlsFile | None, api: str, must_agree_on: str = "") -> Handshakes | None:
        if file is None:
            return None

        def failed(reason: str) -> None:
            self._counter.handshake_failed(api)
            logger.debug("connection not secured", extra={"api": api, "reason": reason})

        return Handshakes(
            file.context,
            timeout_s=self._settings.tls_handshake_timeout_s,
            on_failed=failed,
            must_agree_on=must_agree_on,
        )


def opener(wire: Wire, handshakes: Handshakes | None, crew: Crew | None) -> Callable[..., Any] | None:
    """Returns what listens in place of the event loop's own server; None where that one does.

    Args:
      crew: the other workers, with which connections are shared.
    """
    if crew is not None:
        return crew.opener(wire, handshakes)
    if handshakes is None:
        return None

    def open_listener(
        loop: asyncio.AbstractEventLoop,
        factory: Factory,
        listener: socket.socket,
        num_connections: Callable[[], int],
    ) -> TlsListener:
        return TlsListener(loop, factory, listener, handshakes)

    return open_listener


def _poll(files: list[TlsFile], stop: threading.Event, poll_interval_s: float) -> None:
    while not stop.wait(poll_interval_s):
        for file in files:
            try:
                file.poll_once()
            except Exception:
                # A certificate that is not looked at any more would be noticed on the day that it ends.
                logger.exception("polling failed")
