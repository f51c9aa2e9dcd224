"""Runs the container image's health check: asks the server on this machine whether it is ready.

It reads the server's flags and EMB_ variables. A health check does not see the flags in a container's command, so set
the port and TLS in variables, or give the flags to the health check too. It asks a server without an HTTP port by gRPC.
"""

from __future__ import annotations

import http.client
import socket
import ssl
import sys
from collections.abc import Sequence
from pathlib import Path

from service.configuration.settings import Settings
from service.configuration.settings_reading import read_unchecked

_TIMEOUT_S = 4.0
# A HealthCheckResponse with the status SERVING.
_SERVING = b"\x08\x01"


def main(arguments: Sequence[str] | None = None) -> int:
    settings = read_unchecked(sys.argv[1:] if arguments is None else arguments)
    try:
        return 0 if _is_ready(settings) else 1
    except (OSError, http.client.HTTPException, ValueError) as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return 1


def _is_ready(settings: Settings) -> bool:
    host, port = settings.local_host, settings.rest_api_port
    if port == 0:
        return _is_ready_by_grpc(settings, host)
    if port == "auto":
        raise ValueError("--rest_api_port is 'auto', so the health check does not know the port")
    connection = http.client.HTTPConnection(host, port, timeout=_TIMEOUT_S)
    file = settings.rest_api_ssl_config_file
    if file:
        # The health check does not verify the server's certificate, because it connects to the loopback address, which
        # the certificate need not name.
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        connection = http.client.HTTPSConnection(host, port, timeout=_TIMEOUT_S, context=context)
    try:
        connection.connect()
        if file and _wants_certificate(file):
            # If the server wants a client certificate, which the health check has not, a completed TLS handshake counts
            # as ready.
            return True
        connection.request("GET", "/readyz")
        return connection.getresponse().status == 200
    finally:
        connection.close()


def _is_ready_by_grpc(settings: Settings, host: str) -> bool:
    """Asks grpc.health.v1, over the Unix socket if there is one; a port with TLS need only complete a handshake."""
    # grpc is imported here and not at the top: its import takes longer than the whole check by HTTP.
    import grpc

    target = f"unix:{settings.grpc_socket_path}"
    if not settings.grpc_socket_path:
        target = f"[{host}]:{settings.port}" if ":" in host else f"{host}:{settings.port}"
        if settings.ssl_config_file:
            context = ssl.create_default_context()
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            context.set_alpn_protocols(["h2"])
            with socket.create_connection((host, int(settings.port)), _TIMEOUT_S) as plain:
                with context.wrap_socket(plain, server_hostname=host):
                    return True
    with grpc.insecure_channel(target) as channel:
        try:
            check: grpc.UnaryUnaryMultiCallable[bytes, bytes]
            check = channel.unary_unary("/grpc.health.v1.Health/Check")
            answer = check(b"", timeout=_TIMEOUT_S)
        except grpc.RpcError as error:
            raise OSError(f"{target}: {error}") from error
    return answer == _SERVING


def _wants_certificate(file: str) -> bool:
    from service.artifact.files import read_plain_file
    from service.wire.config_protos import parse_ssl_config_text

    return parse_ssl_config_text(read_plain_file(Path(file)).decode(), file).client_verify


if __name__ == "__main__":
    sys.exit(main())
