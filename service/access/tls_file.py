"""Reads the TLS file of one port (private key and certificate): at the start, and again whenever the file changes."""

from __future__ import annotations

import logging
import ssl
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from service.access.certificates import first_end_s
from service.access.tls_context import create_context
from service.artifact.plain_file import read_plain_file
from service.errors import InvalidRequest
from service.observe.tls_metrics import TlsCounter
from service.wire.ssl_config_proto import SslConfig, parse_ssl_config_text

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Accepted:
    text: bytes
    config: SslConfig
    context: ssl.SSLContext


class TlsFile:
    """The TLS configuration of one port, which poll_once() reads from the port's TLS file.

    Concurrency: any thread; poll_once() one caller at a time.

    A changed file that can not be used is logged once and counted, and the configuration before it stays. client_verify
    can not change after the start, so that no mistake in a file opens a port to all clients.

    Args:
      api: the port's name in metrics, "grpc" or "http".
      protocols: protocols that ALPN offers.
      clock: seconds since 1970.

    on_change: called with a new configuration before it is used; if it raises InvalidRequest, the file is refused.

    Raises:
      InvalidRequest: the file can not be used.
    """

    def __init__(
        self,
        path: Path,
        *,
        api: str,
        protocols: Sequence[str],
        counter: TlsCounter,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._path = path
        self._api = api
        self._protocols = tuple(protocols)
        self._counter = counter
        self._clock = clock
        self._refused: bytes | str | None = None
        self.on_change: Callable[[SslConfig], None] = lambda config: None
        self._now = self._accept(self._read())

    def context(self) -> ssl.SSLContext:
        """Returns the ssl.SSLContext for a listener; new connections use the TLS settings that were accepted last."""
        context = create_context(self._now.config, self._protocols)
        # sni_callback replaces the context of each new connection: OpenSSL calls it in each handshake, also if the
        # client names no server.
        context.sni_callback = self._begin
        return context

    def _begin(self, connection: ssl.SSLObject, server_name: str | None, context: ssl.SSLContext) -> None:
        connection.context = self._now.context

    def config(self) -> SslConfig:
        return self._now.config

    def poll_once(self) -> None:
        """Reads the TLS file; if it has changed and is valid, new connections use its certificate and key."""
        data: bytes | None = None
        try:
            data = self._read()
            if data == self._now.text:
                self._refused = None
                return
            if data != self._refused:
                self._now = self._accept(data, self._now.config.client_verify)
                self._refused = None
        except InvalidRequest as error:
            # A refused TLS file is logged once: the next poll recognises it by its bytes, or an unreadable file by its
            # error.
            fault = error.message if data is None else data
            if fault != self._refused:
                self._refused = fault
                self._counter.refused(self._api)
                extra = {"api": self._api, "path": str(self._path), "reason": error.message}
                logger.error("certificate refused, the one before stays", extra=extra)

    def _accept(self, data: bytes, client_verify: bool | None = None) -> _Accepted:
        try:
            text = data.decode()
        except UnicodeDecodeError:
            raise InvalidRequest(f"Invalid protobuf file: '{self._path}': it is not UTF-8 text") from None
        config = parse_ssl_config_text(text, str(self._path))
        context = create_context(config, self._protocols)
        if client_verify not in (None, config.client_verify):
            raise InvalidRequest("client_verify can not change while the server runs; start it anew")
        self.on_change(config)
        end_s = first_end_s(config.server_cert)
        self._counter.accepted(self._api, end_s)
        extra = {"api": self._api, "path": str(self._path), "ends": datetime.fromtimestamp(end_s, UTC).isoformat()}
        if end_s <= self._clock():
            logger.warning("certificate accepted, but it has expired", extra=extra)
        else:
            logger.info("certificate accepted", extra=extra)
        return _Accepted(data, config, context)

    def _read(self) -> bytes:
        try:
            return read_plain_file(self._path)
        except OSError as error:
            raise InvalidRequest(f"cannot read {self._path}: {error.strerror}") from error
