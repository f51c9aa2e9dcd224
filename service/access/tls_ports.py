"""Holds the TLS files of the gRPC port and of the HTTP port, as the settings name them."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

from service.access.tls_file import TlsFile
from service.configuration.settings import Settings
from service.errors import InvalidRequest
from service.observe.tls_metrics import TlsCounter
from service.wire.grpc_api import API as GRPC_API
from service.wire.http_api import API as HTTP_API

logger = logging.getLogger(__name__)


class TlsError(Exception):
    """The error that a TLS file can not be used; the message names the file's flag and says what to change."""


class Wires:
    """The TLS configurations of the gRPC port and of the HTTP port. Concurrency: any thread; call run() once.

    grpc, http: None if the port is plaintext.

    Raises:
      TlsError: a file can not be used.
    """

    def __init__(self, settings: Settings, counter: TlsCounter) -> None:
        self._settings = settings
        self._counter = counter
        self.grpc = self._file("ssl_config_file", GRPC_API, "h2")
        self.http = self._file("rest_api_ssl_config_file", HTTP_API, "http/1.1")

    def run(self, stop: threading.Event, poll_interval_s: float) -> None:
        """Starts a thread that reads the TLS files again at each interval; starts none if the interval is 0 or no port
        has TLS.
        """
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


def _poll(files: list[TlsFile], stop: threading.Event, poll_interval_s: float) -> None:
    while not stop.wait(poll_interval_s):
        for file in files:
            try:
                file.poll_once()
            except Exception:
                # An error must not end this thread: without the thread, no renewed certificate would be loaded, and the
                # old one expires.
                logger.exception("polling failed")
