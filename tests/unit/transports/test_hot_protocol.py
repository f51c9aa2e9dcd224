"""The connection that answers plain lookups at once, over real sockets: who talks to it can not tell."""

from __future__ import annotations

import asyncio
import re
import socket
import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import uvicorn
from service.direct.http_bodies import DirectHttp
from service.transports.http.hot_protocol import HotProtocol
from service.transports.http.known_heads import KnownHeads
from service.transports.turns import Turns

from service.core.engine import Engine
from service.transports.http.http_app import create_http_app

BODY = b'{"features": {"user": [1, 2]}}'
# Larger than what is answered at once, and than what a connection buffers.
LARGE = b'{"features": {"user": [%s1]}}' % (b" " * 300_000)


class Server:
    """The application behind a protocol, in a thread of its own."""

    def __init__(self, engine: Engine, *, is_hot: bool, keep_alive_s: float = 60, **more: Any) -> None:
        app = create_http_app(
            engine,
            metrics=lambda: (b"", "text/plain"),
            max_body_bytes=1 << 20,
            rest_api_timeout_s=20,
            graph_threads=1,
            directly=DirectHttp(engine, "http"),
            **more,
        )
        protocol: Any = (
            partial(HotProtocol, answers=app.state.hot_answers, heads=KnownHeads(), turns=Turns())
            if is_hot
            else "httptools"
        )
        self.server = uvicorn.Server(
            uvicorn.Config(
                app,
                loop="none",
                http=protocol,
                ws="none",
                log_config=None,
                server_header=False,
                timeout_keep_alive=keep_alive_s,  # type: ignore[arg-type]
            )
        )
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = self._listener.getsockname()
        self._thread = threading.Thread(target=lambda: asyncio.run(self.server.serve(sockets=[self._listener])))
        self._thread.start()

    def stop(self) -> None:
        """Lets what is on its way end."""
        self.server.should_exit = True
        self._thread.join()
        self._listener.close()

    def talk(self, *pieces: bytes, answers: int = 1) -> bytes:
        """Sends pieces one after the other and returns so many answers, or what comes until the connection ends."""
        with socket.create_connection(self.address) as sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for piece in pieces:
                sock.sendall(piece)
            return read(sock, answers)


def read(sock: socket.socket, answers: int) -> bytes:
    """Returns so many answers, or what comes until the connection ends."""
    data = b""
    while count(data) < answers:
        more = sock.recv(1 << 16)
        if not more:
            break
        data += more
    return data


def count(data: bytes) -> int:
    """Returns how many whole answers there are."""
    found = 0
    while b"\r\n\r\n" in data:
        head, _, rest = data.partition(b"\r\n\r\n")
        if head.startswith(b"HTTP/1.1 100"):
            data = rest
            continue
        length = re.search(rb"content-length: (\d+)", head)
        assert length is not None
        if len(rest) < int(length[1]):
            break
        data = rest[int(length[1]) :]
        found += 1
    return found


def without_what_differs(answer: bytes) -> list[bytes]:
    """Returns an answer's lines but for the date and ids that the server makes."""
    return sorted(line for line in answer.split(b"\r\n") if not line.startswith((b"date:", b"x-request-id:")))


@pytest.fixture
def servers(toy_engine: Engine) -> Iterator[tuple[Server, Server]]:
    pair = Server(toy_engine, is_hot=True), Server(toy_engine, is_hot=False)
    yield pair
    for server in pair:
        server.stop()


def post(body: bytes, *headers: bytes, path: bytes = b"/v1/models/toy:lookup", version: bytes = b"1.1") -> bytes:
    """Returns the bytes of a request."""
    lines = [b"POST %b HTTP/%b" % (path, version), b"host: x", b"content-length: %d" % len(body), *headers]
    return b"\r\n".join([*lines, b"", body])


CHUNKED = b"POST /v1/models/toy:lookup HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n" + b"".join(
    b"%x\r\n%b\r\n" % (len(part), part) for part in (BODY[:7], BODY[7:], b"")
)
PLAIN = post(BODY)
TALKS: dict[str, tuple[tuple[bytes, ...], int]] = {
    "one": ((PLAIN,), 1),
    "in single bytes": (tuple(bytes([byte]) for byte in PLAIN), 1),
    "two, one after the other": ((PLAIN, PLAIN), 2),
    "three at once": ((PLAIN * 3,), 3),
    "plain, general, plain at once": ((PLAIN + post(BODY, path=b"/V1/models/toy:lookup") + PLAIN,), 3),
    "behind one that is general": ((post(LARGE) + PLAIN,), 2),
    "an error": ((post(b'{"features": {"user": [77]}}') + PLAIN,), 2),
    "no such model": ((post(BODY, path=b"/v1/models/none:lookup"),), 1),
    "a query": ((post(BODY, path=b"/v1/models/toy:lookup?x=1"),), 1),
    "too large to be answered at once": ((post(LARGE),), 1),
    "larger than it may be": ((post(b" " * (1 << 20) + BODY),), 1),
    "chunked": ((CHUNKED + PLAIN,), 2),
    "no body": ((post(b""),), 1),
    "to be closed": ((post(BODY, b"connection: close"),), 2),
    "of HTTP/1.0": ((post(BODY, version=b"1.0"),), 2),
    "expects to be let": ((post(BODY, b"expect: 100-continue"),), 1),
    "accepts gzip": ((post(BODY, b"accept-encoding: gzip") + PLAIN,), 2),
    "GET there": ((b"GET /v1/models/toy:lookup HTTP/1.1\r\nhost: x\r\n\r\n" + PLAIN,), 2),
    "no HTTP at all": ((b"\x00\x01\r\n\r\n",), 2),
}


@pytest.mark.parametrize("name", TALKS)
def test_answers_are_those_of_the_usual_connection(servers: tuple[Server, Server], name: str) -> None:
    pieces, answers = TALKS[name]
    hot, usual = (server.talk(*pieces, answers=answers) for server in servers)
    assert without_what_differs(hot) == without_what_differs(usual)


ERROR = post(b'{"features": {"user": [77]}}')
# Requests with the same heads again and again, each sent in pieces once the one before it is answered.
EXCHANGES: dict[str, tuple[tuple[bytes, ...], ...]] = {
    "the same": ((PLAIN,), (PLAIN,), (PLAIN,)),
    "another body of the same length": ((PLAIN,), (PLAIN.replace(b"1, 2", b"2, 0"),), (PLAIN,)),
    "in pieces": ((PLAIN,), (PLAIN[:-7], PLAIN[-7:]), (PLAIN,)),
    "in single bytes": ((PLAIN,), tuple(bytes([byte]) for byte in PLAIN), (PLAIN,)),
    "the body by itself": ((PLAIN,), (PLAIN[: -len(BODY)], BODY), (PLAIN,)),
    "refused": ((PLAIN,), (ERROR,), (ERROR,), (PLAIN,)),
    "not JSON": ((PLAIN,), (PLAIN[:-1] + b"!",), (PLAIN,)),
    "behind an empty line": ((PLAIN,), (b"\r\n" + PLAIN,), (PLAIN,), (b"\r\n", PLAIN), (b"\r\n" + PLAIN,)),
    "the general path between": ((PLAIN,), (post(BODY, path=b"/V1/models/toy:lookup"),), (PLAIN,), (PLAIN,)),
    "to be closed": ((PLAIN,), (post(BODY, b"connection: close"),)),
    "of HTTP/1.0": ((PLAIN,), (post(BODY, version=b"1.0"),)),
    "accepts gzip": ((PLAIN,), (post(BODY, b"accept-encoding: gzip"),), (post(BODY, b"accept-encoding: gzip"),)),
    "wants to speak another protocol": ((PLAIN,), (post(BODY, b"connection: upgrade", b"upgrade: x"),), (PLAIN,)),
}


@pytest.mark.parametrize("name", EXCHANGES)
def test_known_heads_mean_what_they_did(servers: tuple[Server, Server], name: str) -> None:
    found = []
    for server in servers:
        with socket.create_connection(server.address) as sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            talked = []
            for pieces in EXCHANGES[name]:
                for piece in pieces:
                    sock.sendall(piece)
                talked.append(without_what_differs(read(sock, 1)))
            found.append(talked)
    hot, usual = found
    assert hot == usual


def test_more_than_one_request_behind_a_known_head(servers: tuple[Server, Server]) -> None:
    hot, usual = servers
    pieces = (PLAIN * 2, PLAIN + PLAIN[:20], PLAIN[20:])
    for server in servers:
        server.talk(PLAIN)
    assert without_what_differs(hot.talk(PLAIN, *pieces, answers=5)) == without_what_differs(
        usual.talk(PLAIN, *pieces, answers=5)
    )


KEEP_ALIVE_S = 0.3


@pytest.mark.parametrize("last", [PLAIN, ERROR])
def test_a_connection_that_is_idle_is_closed(toy_engine: Engine, last: bytes) -> None:
    server = Server(toy_engine, is_hot=True, keep_alive_s=KEEP_ALIVE_S)
    try:
        with socket.create_connection(server.address) as sock:
            for request in (PLAIN, PLAIN, last):
                # The timer of the first answer is not the last one's.
                time.sleep(KEEP_ALIVE_S / 2)
                sock.sendall(request)
                assert count(read(sock, 1)) == 1
            answered_s = time.monotonic()
            assert sock.recv(1) == b""
            # Timers have steps of a millisecond, and the answer was on its way for a while.
            assert time.monotonic() - answered_s > KEEP_ALIVE_S / 2
    finally:
        server.stop()


@pytest.mark.parametrize("sent", [10, len(PLAIN) - 5])
def test_a_connection_in_a_request_is_not_idle(toy_engine: Engine, sent: int) -> None:
    server = Server(toy_engine, is_hot=True, keep_alive_s=KEEP_ALIVE_S)
    try:
        with socket.create_connection(server.address) as sock:
            sock.sendall(PLAIN)
            assert count(read(sock, 1)) == 1
            sock.sendall(PLAIN[:sent])
            time.sleep(3 * KEEP_ALIVE_S)
            sock.sendall(PLAIN[sent:])
            assert count(read(sock, 1)) == 1
            assert sock.recv(1) == b""
    finally:
        server.stop()


def test_a_clients_own_id_comes_back(servers: tuple[Server, Server]) -> None:
    hot, usual = (server.talk(post(BODY, b"x-request-id: mine")) for server in servers)
    assert b"\r\nx-request-id: mine\r\n" in hot
    assert b"\r\nx-request-id: mine\r\n" in usual
    again = servers[0].talk(
        *[post(BODY, b"x-request-id: %b" % name) for name in (b"own1", b"own2", b"own1")], answers=3
    )
    assert re.findall(rb"\r\nx-request-id: (\w+)\r\n", again) == [b"own1", b"own2", b"own1"]
    assert re.search(rb"\r\nx-request-id: (?!mine)[\w-]+\r\n", servers[0].talk(post(BODY, b"x-request-id: a b")))


def test_headers_of_other_origins_are_there(toy_engine: Engine) -> None:
    server = Server(toy_engine, is_hot=True, has_cors=True)
    try:
        assert b"\r\naccess-control-allow-origin: *\r\n" in server.talk(PLAIN)
    finally:
        server.stop()


def test_a_request_whose_body_is_on_its_way_is_answered_at_the_end(servers: tuple[Server, Server]) -> None:
    hot, _ = servers
    with socket.create_connection(hot.address) as sock:
        sock.sendall(PLAIN[:-5])
        while not any(connection._asked for connection in list(hot.server.server_state.connections)):  # type: ignore[union-attr]
            pass
        hot.server.should_exit = True
        while any(connection._asked for connection in list(hot.server.server_state.connections)):  # type: ignore[union-attr]
            pass
        sock.sendall(PLAIN[-5:])
        assert read(sock, 1).startswith(b"HTTP/1.1 200 OK\r\n")


def test_requests_are_counted_for_whoever_limits_them(servers: tuple[Server, Server]) -> None:
    hot, _ = servers
    before = hot.server.server_state.total_requests
    hot.talk(PLAIN * 3, answers=3)
    assert hot.server.server_state.total_requests == before + 3


def test_a_client_that_leaves_early_ends_nothing_else(servers: tuple[Server, Server]) -> None:
    hot, _ = servers
    with socket.create_connection(hot.address) as sock:
        sock.sendall(PLAIN[:-5])
    assert hot.talk(PLAIN).startswith(b"HTTP/1.1 200 OK\r\n")


def test_many_requests_whose_clients_say_no_more_are_answered(servers: tuple[Server, Server]) -> None:
    hot, _ = servers
    socks = [socket.create_connection(hot.address) for _ in range(20)]
    try:
        for sock in socks:
            sock.sendall(PLAIN)
            sock.shutdown(socket.SHUT_WR)
        assert [read(sock, 1)[:12] for sock in socks] == [b"HTTP/1.1 200"] * 20
    finally:
        for sock in socks:
            sock.close()


@pytest.mark.parametrize("event", ["eof_received", "shutdown", "timeout_keep_alive_handler", "_on_idle"])
@pytest.mark.parametrize("request_bytes", [PLAIN, post(BODY, path=b"/V1/models/toy:lookup")], ids=["plain", "general"])
def test_a_request_that_was_read_is_answered_whatever_comes_next(
    servers: tuple[Server, Server], event: str, request_bytes: bytes
) -> None:
    hot, _ = servers
    with socket.create_connection(hot.address) as sock:
        sock.sendall(PLAIN)
        read(sock, 1)
        (connection,) = hot.server.server_state.connections
        held: Any = connection

        def came() -> None:
            # As where many are busy.
            held._turns._num_alone = 0
            held.data_received(request_bytes)
            getattr(held, event)()

        held.loop.call_soon_threadsafe(came)
        assert read(sock, 1)[:12] in (b"HTTP/1.1 200", b"HTTP/1.1 404")


def test_memory_that_runs_out_as_a_request_is_read_is_not_its_fault(
    servers: tuple[Server, Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    def on_body(_self: HotProtocol, _body: bytes) -> None:
        raise MemoryError

    monkeypatch.setattr(HotProtocol, "on_body", on_body)
    assert servers[0].talk(PLAIN, answers=2)[:12] == b"HTTP/1.1 503"
