"""Makes the TLS credentials for grpcio's server; grpcio itself allows no TLS version below 1.2."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc

from service.wire.ssl_config_proto import SslConfig


def server_credentials(now: Callable[[], SslConfig]) -> grpc.ServerCredentials:
    """Returns TLS credentials with which each new connection uses the current key and certificate.

    Args:
      now: returns the current configuration; its client_verify must never change.
    """
    shown = now()

    def newer() -> grpc.ServerCertificateConfiguration | None:
        nonlocal shown
        config = now()
        if config is shown:
            return None
        shown = config
        return _configuration(config)

    # grpcio calls `fetch` for each new connection, to ask for a changed certificate. `fetch` has the type Any, because
    # it returns None for "no change", which grpcio's type stubs do not allow.
    fetch: Any = newer
    return grpc.dynamic_ssl_server_credentials(_configuration(shown), fetch, shown.client_verify)


def _configuration(config: SslConfig) -> grpc.ServerCertificateConfiguration:
    authorities = config.custom_ca.encode() if config.client_verify else None
    return grpc.ssl_server_certificate_configuration(
        [(config.server_key.encode(), config.server_cert.encode())], authorities
    )
