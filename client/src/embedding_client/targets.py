"""Parses the address of a server: "host:port", "grpc://...", "http://..." or "unix:/path", with or without TLS."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

_WIRES: dict[str, tuple[Literal["grpc", "http"], bool]] = {
    "grpc": ("grpc", False),
    "grpcs": ("grpc", True),
    "http": ("http", False),
    "https": ("http", True),
}
_FORMS = "host:port, grpc://host:port, http://host:port, grpcs://..., https://... or unix:/path"


@dataclass(frozen=True, slots=True)
class Tls:
    """The PEM files that a client needs for a TLS connection.

    ca_file: authorities that may sign the server's certificate; None: the system's (HTTP) or gRPC's own list (gRPC).
    cert_file, key_file: the client's own certificate for a server that asks for one; both or neither.
    """

    ca_file: str | Path | None = None
    cert_file: str | Path | None = None
    key_file: str | Path | None = None

    def __post_init__(self) -> None:
        if (self.cert_file is None) != (self.key_file is None):
            raise ValueError("Tls: cert_file and key_file go together")

    def ssl_context(self) -> ssl.SSLContext:
        """Returns the SSLContext for HTTP connections; raises OSError if a PEM file can not be read."""
        context = ssl.create_default_context(cafile=self.ca_file)
        if self.cert_file is not None:
            context.load_cert_chain(self.cert_file, self.key_file)
        return context

    def pem(self) -> tuple[bytes | None, bytes | None, bytes | None]:
        """Reads the PEM files ca_file, key_file and cert_file; returns their bytes, in gRPC's order; raises OSError."""
        ca, key, cert = (
            None if file is None else Path(file).read_bytes() for file in (self.ca_file, self.key_file, self.cert_file)
        )
        return ca, key, cert


@dataclass(frozen=True, slots=True)
class Target:
    """A parsed server address.

    wire: the protocol, "grpc" or "http".
    address: "host:port" or "unix:/path".
    host, port: "" and 0 for a Unix socket.
    """

    wire: Literal["grpc", "http"]
    address: str
    host: str
    port: int
    tls: Tls | None

    def __str__(self) -> str:
        return self.address if self.wire == "grpc" else f"http{'s' if self.tls else ''}://{self.address}"


def parse_target(text: str, tls: Tls | None = None) -> Target:
    """Parses the address of the embedding server that a client calls.

    >>> parse_target("localhost:8500").wire, parse_target("http://[::1]:8501").host
    ('grpc', '::1')

    Args:
      tls: None means Tls() if the scheme is grpcs or https, else no TLS.

    Raises:
      ValueError: the text is no such address, or asks for TLS over a Unix socket.
    """
    if text.startswith("unix:"):
        if tls is not None:
            raise ValueError(f"target {text!r}: TLS over a Unix socket is not supported")
        return Target("grpc", text, "", 0, None)
    scheme, found, rest = text.partition("://")
    if not found:
        scheme, rest = "grpc", text
    wire = _WIRES.get(scheme.lower())
    parts = urlsplit(f"//{rest}")
    try:
        port = parts.port
    except ValueError:
        port = None
    # An address with a path, a query or a user name is refused, because gRPC or HTTP would silently ignore that part.
    is_plain = parts.path in ("", "/") and not parts.query and not parts.fragment and "@" not in parts.netloc
    if wire is None or not parts.hostname or not port or not is_plain:
        raise ValueError(f"target {text!r}: expected {_FORMS}")
    if wire[1] and tls is None:
        tls = Tls()
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return Target(wire[0], f"{host}:{port}", parts.hostname, port, tls)
