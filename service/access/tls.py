"""Reads the TLS files of the ports, at the start and whenever a file changes, and makes an ssl.SSLContext of each."""

from __future__ import annotations

import logging
import os
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from service.artifact.files import read_plain_file
from service.configuration.settings import Settings, StartError
from service.errors import InvalidRequest, os_errors_as
from service.observe.reload_metrics import TlsCounter
from service.versions.threads import repeat
from service.wire.api import GRPC_API, HTTP_API
from service.wire.config_protos import SslConfig, parse_ssl_config_text

# The allowed cipher suites of TLS 1.2: all have forward secrecy, and none is on the list of weak suites in RFC 9113,
# appendix A. TLS 1.3 has no weak suites.
_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
_MISMATCHES = ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH")


def create_context(config: SslConfig, protocols: Sequence[str]) -> ssl.SSLContext:
    """Returns the ssl.SSLContext for a port's connections, with the key and the certificate of an SSLConfig.

    Raises:
      InvalidRequest: a part of the config is missing or broken, or its key and certificate do not belong together.
    """
    _check(config)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(_CIPHERS)
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(list(protocols))
    # Python's ssl reads certificates and keys from files only; a file in memory keeps the private key off the disk.
    with _in_memory(config.server_cert) as cert_file, _in_memory(config.server_key) as key_file:
        try:
            context.load_cert_chain(cert_file, key_file, password=_no_password)
        except ssl.SSLError as error:
            raise InvalidRequest(_why_not(error)) from None
    if config.client_verify:
        _trust(context, config.custom_ca, "custom_ca")
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _check(config: SslConfig) -> None:
    for name in ("server_key", "server_cert"):
        if not getattr(config, name).strip():
            raise InvalidRequest(f"{name} is missing")
    if config.client_verify and not config.custom_ca.strip():
        raise InvalidRequest("client_verify needs custom_ca: the authorities that sign clients' certificates")
    _end_s(config)
    scratch = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _trust(scratch, config.server_cert, "server_cert")
    if config.custom_ca:
        # custom_ca is checked even if client_verify is off: an operator shall learn of a faulty custom_ca before
        # switching client_verify on.
        _trust(scratch, config.custom_ca, "custom_ca")


def _end_s(config: SslConfig) -> float:
    # Imported late, because tests import this module without the core.
    from service._native import first_end_s

    try:
        return first_end_s(config.server_cert)
    except ValueError:
        raise InvalidRequest(_no_certificate("server_cert")) from None


def _trust(context: ssl.SSLContext, pem: str, name: str) -> None:
    try:
        # Characters outside ASCII are dropped: people write comments between certificates, and ssl refuses such
        # characters.
        context.load_verify_locations(cadata=pem.encode("ascii", "ignore").decode())
    except (ssl.SSLError, ValueError):
        raise InvalidRequest(_no_certificate(name)) from None


def _no_certificate(name: str) -> str:
    return f"{name} is not the text of a certificate (PEM), or is damaged"


def _why_not(error: ssl.SSLError) -> str:
    # OpenSSL refused server_cert and server_key for one of three reasons: the key is unreadable, the key is not that of
    # the certificate, or the certificate is too weak. _check() has refused an unreadable certificate before.
    reason = error.reason or ""
    if reason in _MISMATCHES:
        return "server_key does not belong to the first certificate in server_cert"
    if reason in ("EE_KEY_TOO_SMALL", "CA_MD_TOO_WEAK", "CA_KEY_TOO_SMALL"):
        return f"server_cert is too weak: {reason.lower().replace('_', ' ')}"
    return "server_key is not the text of a private key (PEM), or is damaged"


def _no_password() -> str:
    raise InvalidRequest("server_key is encrypted, and an SSLConfig has no password; give it decrypted")


@contextmanager
def _in_memory(text: str) -> Iterator[str]:
    descriptor = os.memfd_create("pem")
    try:
        with open(descriptor, "w", encoding="utf-8", closefd=False) as file:
            file.write(text)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


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
        end_s = _end_s(config)
        self._counter.accepted(self._api, end_s)
        extra = {"api": self._api, "path": str(self._path), "ends": datetime.fromtimestamp(end_s, UTC).isoformat()}
        if end_s <= self._clock():
            logger.warning("certificate accepted, but it has expired", extra=extra)
        else:
            logger.info("certificate accepted", extra=extra)
        return _Accepted(data, config, context)

    def _read(self) -> bytes:
        with os_errors_as(InvalidRequest, f"cannot read {self._path}"):
            return read_plain_file(self._path)


class Wires:
    """The TLS configurations of the gRPC port and of the HTTP port. Concurrency: any thread; call run() once.

    grpc, http: None if the port is plaintext.

    Raises:
      StartError: a file can not be used.
    """

    def __init__(self, settings: Settings, counter: TlsCounter) -> None:
        self._settings = settings
        self._counter = counter
        self.grpc = self._file("ssl_config_file", GRPC_API, "h2")
        self.http = self._file("rest_api_ssl_config_file", HTTP_API, "http/1.1")

    def run(self, stop: threading.Event, poll_interval_s: float) -> None:
        for file in (self.grpc, self.http):
            if file is not None:
                repeat(file.poll_once, stop, poll_interval_s, "tls-file")

    def _file(self, flag: str, api: str, protocol: str) -> TlsFile | None:
        path = getattr(self._settings, flag)
        if not path:
            return None
        try:
            return TlsFile(Path(path), api=api, protocols=[protocol], counter=self._counter)
        except InvalidRequest as error:
            raise StartError(f"--{flag}={path}: {error.message}") from error
