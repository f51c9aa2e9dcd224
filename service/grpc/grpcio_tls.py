"""TLS of grpcio's server, which wants TLS 1.2 and HTTP/2 by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc

from service.wire.ssl_config_proto import SslConfig


def server_credentials(now: Callable[[], SslConfig]) -> grpc.ServerCredentials:
    """Returns credentials that ask, for each new connection, what holds now. Its client_verify must stay as it is."""
    shown = now()

    def newer() -> grpc.ServerCertificateConfiguration | None:
        nonlocal shown
        config = now()
        if config is shown:
            return None
        shown = config
        return _configuration(config)

    # Any: that it may return None, for no change, is not in its types.
    fetch: Any = newer
    return grpc.dynamic_ssl_server_credentials(_configuration(shown), fetch, shown.client_verify)


def _configuration(config: SslConfig) -> grpc.ServerCertificateConfiguration:
    authorities = config.custom_ca.encode() if config.client_verify else None
    return grpc.ssl_server_certificate_configuration(
        [(config.server_key.encode(), config.server_cert.encode())], authorities
    )
