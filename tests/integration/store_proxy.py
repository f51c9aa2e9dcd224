"""An HTTP proxy before the server of an object store, which records each request and breaks answers by a rule."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from typing import NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

from tests.http_servers import Silent, http_server

# Headers that describe one connection or one message: the proxy does not pass them on.
_HOP_HEADERS = ("host", "connection", "keep-alive", "transfer-encoding", "content-length")
_CHUNK_BYTES = 1 << 16


class Request(NamedTuple):
    """A request that a client sent. path: decoded; status: of the answer, 0 if the connection was cut."""

    method: str
    path: str
    query: dict[str, list[str]]
    status: int
    answer_bytes: int


@dataclass(frozen=True)
class Fault:
    """A fault that replaces or changes an answer.

    status, body, headers: the proxy answers with these, without asking the store; status 0: with the store's answer.
    cut_after: the connection is cut after this many bytes of the body; below 0: before the head.
    flips_last: the last byte of the body is changed.
    drops: the last bytes of the body, this many, are left out, and the length in the head agrees.
    held: the answer is sent once this event is set.
    before: called with the path before the store is asked.
    """

    status: int = 0
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    cut_after: int | None = None
    flips_last: bool = False
    drops: int = 0
    held: threading.Event | None = None
    before: Callable[[str], object] | None = None


# Type of a rule: a function of method, decoded path and query that returns a fault for the answer, or None.
Rule = Callable[[str, str, dict[str, list[str]]], Fault | None]


class StoreProxy:
    """A proxy on a port of its own, before a server on this machine.

    rule: judges each request. requests: all requests, in the order of their answers' ends.
    """

    def __init__(self, port: int) -> None:
        self.rule: Rule | None = None
        self.requests: list[Request] = []
        proxy = self

        class Handler(Silent):
            protocol_version = "HTTP/1.1"
            # Without this, the kernel would hold back a small answer until the client has acknowledged the answer's
            # head.
            disable_nagle_algorithm = True

            def _pass(self) -> None:
                proxy._answer(self, port)

            do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _pass

        self._stack = ExitStack()
        self.port = self._stack.enter_context(http_server(Handler))
        self.url = f"http://127.0.0.1:{self.port}"

    def close(self) -> None:
        """Stops the proxy: it accepts no further connections."""
        self._stack.close()

    def _answer(self, handler: BaseHTTPRequestHandler, port: int) -> None:
        url = urlsplit(handler.path)
        path, query = unquote(url.path), parse_qs(url.query, keep_blank_values=True)
        body = handler.rfile.read(int(handler.headers.get("content-length") or 0))
        fault = (self.rule and self.rule(handler.command, path, query)) or Fault()
        if fault.before is not None:
            fault.before(path)
        if fault.status:
            status, headers, answer = fault.status, list(fault.headers), fault.body
        else:
            status, headers, answer = _ask(port, handler, body)
        if fault.held is not None:
            fault.held.wait(timeout=120)
        if fault.flips_last and answer:
            answer = answer[:-1] + bytes([answer[-1] ^ 1])
        answer = answer[: len(answer) - fault.drops]
        whole = fault.cut_after is None
        sent = answer if fault.cut_after is None else answer[: max(fault.cut_after, 0)]
        # The request is recorded before the client gets the answer, so that a test which has the answer finds the
        # record.
        self.requests.append(Request(handler.command, path, query, status if whole else 0, len(sent)))
        if fault.cut_after is not None and fault.cut_after < 0:
            handler.close_connection = True
            return
        try:
            handler.send_response_only(status)
            for name, value in headers:
                handler.send_header(name, value)
            if handler.command != "HEAD":
                handler.send_header("content-length", str(len(answer)))
            handler.end_headers()
            for begin in range(0, len(sent), _CHUNK_BYTES):
                handler.wfile.write(sent[begin : begin + _CHUNK_BYTES])
        except OSError:
            whole = False
        if not whole:
            handler.close_connection = True


def _ask(port: int, handler: BaseHTTPRequestHandler, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        headers = {name: value for name, value in handler.headers.items() if name.lower() not in _HOP_HEADERS}
        connection.request(handler.command, handler.path, body=body or None, headers=headers | _length(handler, body))
        answer = connection.getresponse()
        data = answer.read()
    except (OSError, http.client.HTTPException):
        return 502, [], b""
    finally:
        connection.close()
    kept = [(name, value) for name, value in answer.getheaders() if name.lower() not in _HOP_HEADERS]
    if handler.command == "HEAD":
        kept += [("content-length", answer.getheader("content-length") or "0")]
    return answer.status, kept, data


def _length(handler: BaseHTTPRequestHandler, body: bytes) -> dict[str, str]:
    return {"content-length": str(len(body))} if handler.command in ("PUT", "POST") else {}
