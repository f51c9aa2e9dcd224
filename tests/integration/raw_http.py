"""Sends HTTP as raw bytes over a socket, also bytes that no client library would send."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterable, Iterator

from tests.integration.process import PATIENCE_S, ServerProcess

LOOKUP = b"POST /v1/models/default:lookup HTTP/1.1\r\nhost: x\r\n"
BODY = b'{"features": {"user": [1, 2]}}'


def connect(server: ServerProcess, receive_bytes: int | None = None) -> socket.socket:
    """Opens a TCP connection to the server's HTTP port; receive_bytes: size of the connection's receive buffer."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    if receive_bytes is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    sock.settimeout(PATIENCE_S)
    sock.connect(("127.0.0.1", server.http_port))
    return sock


def post(body: bytes, *headers: bytes, start: bytes = LOOKUP) -> bytes:
    """Returns the bytes of a POST request."""
    return start + b"".join(header + b"\r\n" for header in headers) + b"content-length: %d\r\n\r\n" % len(body) + body


def send(sock: socket.socket, pieces: Iterable[bytes], pause_s: float = 0.0) -> None:
    """Sends pieces until all are sent or the server has closed the connection."""
    try:
        for piece in pieces:
            sock.sendall(piece)
            if pause_s:
                time.sleep(pause_s)
    except OSError:
        pass


def rest(sock: socket.socket) -> bytes:
    """Reads until the server closes the connection; fails if it does not."""
    data = b""
    try:
        while more := sock.recv(1 << 16):
            data += more
    except ConnectionResetError:
        pass
    return data


def answer(server: ServerProcess, *pieces: bytes, pause_s: float = 0.0) -> bytes:
    """Sends pieces on a new connection and returns all bytes that the server sends before it closes."""
    with connect(server) as sock:
        sender = threading.Thread(target=send, args=(sock, pieces, pause_s), daemon=True)
        sender.start()
        data = rest(sock)
        sender.join(PATIENCE_S)
        return data


def status(data: bytes) -> int:
    """Returns the HTTP status of an answer; 0 if there is none."""
    return int(data.split(b" ", 2)[1]) if data.startswith(b"HTTP/1.1 ") else 0


def endless(piece: bytes) -> Iterator[bytes]:
    """Yields a piece again and again, up to a gigabyte in all."""
    for _ in range((1 << 30) // len(piece)):
        yield piece
