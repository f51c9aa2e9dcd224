"""Runs the container image's health check: asks the server on this machine whether it is ready.

It reads the server's flags and EMB_ variables. A health check does not see the flags in a container's command, so set
the port and TLS in variables, or give the flags to the health check too.
"""

from __future__ import annotations

import http.client
import ssl
import sys
from collections.abc import Sequence
from pathlib import Path

from service.configuration.settings import Settings
from service.configuration.settings_reading import read_unchecked

_TIMEOUT_S = 4.0
_LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Asks the server on this machine whether it is ready; returns the exit status, 0 if it is."""
    settings = read_unchecked(sys.argv[1:] if arguments is None else arguments)
    try:
        return 0 if _is_ready(settings) else 1
    except (OSError, http.client.HTTPException) as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return 1


def _is_ready(settings: Settings) -> bool:
    host, port = _LOOPBACK.get(settings.host, settings.host), settings.rest_api_port
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


def _wants_certificate(file: str) -> bool:
    from service.artifact.plain_file import read_plain_file
    from service.wire.ssl_config_proto import parse_ssl_config_text

    return parse_ssl_config_text(read_plain_file(Path(file)).decode(), file).client_verify


if __name__ == "__main__":
    sys.exit(main())
