"""The load generator of the benchmarks counts what stock servers answer, and notices wrong answers."""

from __future__ import annotations

import itertools
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import grpc
import pytest

from loadtest.bench.generator import Ask, LoadError, drive
from tests.http_servers import Silent, http_server

pytestmark = pytest.mark.skipif(shutil.which("h2load") is None, reason="h2load is not installed")

# Seconds of a round.
ROUND_S = 0.2
BODIES = [[b"a", b"bcd"], [b"x" * 300_000, b"small"]]


class Calls(grpc.GenericRpcHandler):
    """A gRPC server answers each byte of a request with two; it counts, and refuses requests that begin with "no"."""

    count = 0

    def service(self, details: Any) -> Any:
        def answer(request: bytes, context: grpc.ServicerContext) -> bytes:
            self.count += 1
            if request.startswith(b"no"):
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, "refused")
            return request * 2

        return grpc.unary_unary_rpc_method_handler(answer)


class Posts(Silent):
    """Answers a POST with its body twice; a body that begins with "no" gets status 500 with as many bytes."""

    protocol_version = "HTTP/1.1"
    count = 0

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        Posts.count += 1
        self.send_response(500 if body.startswith(b"no") else 200)
        self.send_header("Content-Length", str(2 * len(body)))
        self.end_headers()
        # At its end, h2load closes connections whose answers are under way.
        with suppress(ConnectionError):
            self.wfile.write(body * 2)


@pytest.fixture(params=["grpc", "http"])
def doubling(request: pytest.FixtureRequest) -> Iterator[tuple[bool, int, Any]]:
    """Yields whether the server speaks gRPC, its port, and what has the count of its answers."""
    if request.param == "grpc":
        handler = Calls()
        # One thread, so that the count is right.
        server = grpc.server(ThreadPoolExecutor(1), handlers=[handler], options=[("grpc.so_reuseport", 0)])
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        yield True, port, handler
        server.stop(None).wait()
        return
    with http_server(Posts) as port:
        yield False, port, Posts


def driven(server: tuple[bool, int, Any], bodies: list[bytes], *, more: int = 0) -> Any:
    is_grpc, port, _ = server
    sizes = [2 * len(body) + more for body in bodies]
    ask = Ask(is_grpc, "/a.B/C", bodies, sizes, [(("x-a", "1"),)] * len(bodies))
    ticks = itertools.cycle([1.0, 3.0])
    return drive(ask, port, connections=3, seconds=ROUND_S, warm_s=0.05, server_cpu_s=lambda: next(ticks))


@pytest.mark.parametrize("bodies", BODIES, ids=["small", "large"])
def test_answers_are_counted_once_and_share_the_time(doubling: tuple[bool, int, Any], bodies: list[bytes]) -> None:
    before, started_s = doubling[2].count, time.perf_counter()
    shot = driven(doubling, bodies)
    took_s = time.perf_counter() - started_s
    assert 0 < shot.requests <= doubling[2].count - before
    assert 0 < shot.p50_ms <= shot.p99_ms
    assert shot.server_cpu_us == pytest.approx(2e6 / shot.requests)
    # drive() measured at least ROUND_S of the seconds that the call took.
    assert shot.requests / took_s < shot.requests_per_s <= shot.requests / ROUND_S


@pytest.mark.parametrize(
    ("bodies", "more"),
    [([b"yes"], 1), ([b"no"], 0), ([b"yes", b"no"], 0)],
    ids=["another size", "refused", "one of two"],
)
def test_a_wrong_answer_is_noticed(doubling: tuple[bool, int, Any], bodies: list[bytes], more: int) -> None:
    with pytest.raises(LoadError, match=r"/a\.B/C: \d+ of \d+ answers are errors, and all have \d+ bytes"):
        driven(doubling, bodies, more=more)
