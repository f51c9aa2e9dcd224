"""Describes a port to attack: its address, its protocol, and the bytes of a small and of a large request."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from typing import Literal

from loadtest.attacks import frames
from loadtest.tls import client_context

Wire = Literal["http2", "http1"]
_CONNECT_S = 5.0


@dataclass(frozen=True, slots=True)
class Target:
    """One port of a server, with the requests that an attacker and the victim send to it.

    body: body of the small request; empty: that request is a GET.
    large_body: body of a request with an answer of megabytes.
    takes_http1: whether a port that speaks HTTP/2 also speaks HTTP/1.1.
    pids: the processes whose memory is watched.
    admin_port: the port of the admin routes, if the small request is one that a reference server answers; else 0.
    credentials: header line with the token of a caller that has all rights, if the server has callers.
    model, feature: what the small request reads, on a server of this project; its table has the feature's name.
    """

    peer: str
    wire: Wire
    host: str
    port: int
    path: str
    body: bytes = b""
    large_body: bytes = b""
    is_grpc: bool = False
    is_tls: bool = False
    takes_http1: bool = False
    pids: tuple[int, ...] = field(default=())
    admin_port: int = 0
    credentials: bytes = b""
    model: str = ""
    feature: str = ""

    @property
    def name(self) -> str:
        """The name of the server; with TLS, also the protocol."""
        if self.admin_port:
            return f"{self.peer} reference"
        return f"{self.peer} {self.wire}" if self.is_tls else self.peer

    def connect(self, *, receive_bytes: int | None = None) -> socket.socket:
        """Opens a connection to the port, with TLS if the port uses it.

        Args:
          receive_bytes: size of the socket's receive buffer; None: the system's default.
        """
        sock = socket.socket(socket.AF_INET6 if ":" in self.host else socket.AF_INET, socket.SOCK_STREAM)
        sock.settimeout(_CONNECT_S)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if receive_bytes is not None:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
            sock.connect((self.host, self.port))
            if self.is_tls:
                sock = client_context("h2" if self.wire == "http2" else "http/1.1").wrap_socket(sock)
        except OSError:
            sock.close()
            raise
        return sock

    def fields(self, *more: tuple[bytes, bytes], path: str = "") -> bytes:
        """Encodes the header fields of an HTTP/2 request as an HPACK block."""
        found = [
            (b":method", b"POST"),
            (b":scheme", b"https" if self.is_tls else b"http"),
            (b":path", (path or self.path).encode()),
            (b":authority", b"localhost"),
        ]
        if self.is_grpc:
            found += [(b"content-type", b"application/grpc"), (b"te", b"trailers")]
        return frames.block([*found, *more])

    def request(self, stream: int, *, is_large: bool = False) -> bytes:
        """Encodes the target's small or large request as HTTP/2: a HEADERS frame, then DATA frames with the body."""
        body = self.large_body if is_large else self.body
        head = self.fields()
        parts = [body[at : at + 16384] for at in range(0, len(body), 16384)]
        sent = [frames.frame(frames.HEADERS, frames.END_HEADERS, stream, head)]
        sent += [frames.frame(frames.DATA, 0, stream, part) for part in parts[:-1]]
        return b"".join([*sent, frames.frame(frames.DATA, frames.END_STREAM, stream, parts[-1])])

    def open_request(self, stream: int, *more: tuple[bytes, bytes]) -> bytes:
        """Encodes the HEADERS frame of an HTTP/2 request whose body is sent later."""
        return frames.frame(frames.HEADERS, frames.END_HEADERS, stream, self.fields(*more))

    def get(self, path: str, *lines: bytes, is_signed: bool = True) -> bytes:
        """Encodes an HTTP/1.1 GET request, with the target's credentials if `is_signed` is true."""
        return b"GET %s HTTP/1.1\r\n" % path.encode() + self._lines(lines, is_signed=is_signed) + b"\r\n"

    def post(self, path: str, body: bytes, *lines: bytes, is_signed: bool = True) -> bytes:
        """Encodes an HTTP/1.1 POST request, with the target's credentials if `is_signed` is true."""
        lines = (*lines, b"content-length: %d" % len(body))
        return b"POST %s HTTP/1.1\r\n" % path.encode() + self._lines(lines, is_signed=is_signed) + b"\r\n" + body

    def _lines(self, lines: tuple[bytes, ...], *, is_signed: bool) -> bytes:
        more = (self.credentials,) if self.credentials and is_signed else ()
        return b"".join(line + b"\r\n" for line in (b"host: localhost", *more, *lines))

    def head(self, *lines: bytes, host: bytes = b"host: localhost\r\n") -> bytes:
        """Encodes the request line and headers of an HTTP/1.1 POST, without the empty line after them."""
        return b"POST %s HTTP/1.1\r\n" % self.path.encode() + host + b"".join(line + b"\r\n" for line in lines)

    def whole(self, body: bytes | None = None, *lines: bytes) -> bytes:
        """Encodes an HTTP/1.1 request with `body`; if `body` is None, with the body of the target's small request."""
        body = self.body if body is None else body
        return self.head(*lines, b"content-length: %d" % len(body)) + b"\r\n" + body
