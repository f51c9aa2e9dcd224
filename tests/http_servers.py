"""Serves HTTP in this process, by a handler of http.server."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Silent(BaseHTTPRequestHandler):
    """A handler that logs nothing."""

    def log_message(self, format: str, *args: object) -> None:
        """Drops the line."""


@contextmanager
def http_server(handler: Callable[..., Any], kind: type[ThreadingHTTPServer] = ThreadingHTTPServer) -> Iterator[int]:
    """Starts a server in a thread, and yields its port."""
    server = kind(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
