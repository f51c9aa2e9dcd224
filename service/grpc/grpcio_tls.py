"""Makes the TLS credentials of grpcio's server; grpcio itself requires TLS 1.2 and HTTP/2."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc

from service.wire.ssl_config_proto import SslConfig


def server_credentials(now: Callable[[], SslConfig]) -> grpc.ServerCredentials:
    """Returns credentials that use the current configuration for each new connection.

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

    # `fetch` is Any, because grpcio's types lack that it may return None for "no change".
    fetch: Any = newer
    return grpc.dynamic_ssl_server_credentials(_configuration(shown), fetch, shown.client_verify)


def _configuration(config: SslConfig) -> grpc.ServerCertificateConfiguration:
    authorities = config.custom_ca.encode() if config.client_verify else None
    return grpc.ssl_server_certificate_configuration(
        [(config.server_key.encode(), config.server_cert.encode())], authorities
    )
