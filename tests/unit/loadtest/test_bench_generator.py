"""The load generator speaks HTTP/2 and HTTP/1.1 as stock servers do, counts right, and notices wrong answers."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
import numpy as np
import pytest

from loadtest.bench.generator.latencies import NUM_BUCKETS, quantile_ms, record
from loadtest.bench.generator.load import Ask, LoadError, Shot, drive

# More bytes than an HTTP/2 window has at first, and than one read returns.
LARGE = 300_000
FAST = {"seconds": 0.2, "warm_s": 0.02, "server_cpu_s": lambda: 0.0}


class Calls(grpc.GenericRpcHandler):
    """A gRPC server answers each byte of a request with three; it counts, and refuses requests that begin with "no"."""

    def __init__(self) -> None:
        self.count = 0
        self.lock = threading.Lock()

    def service(self, details: Any) -> Any:
        def answer(request: bytes, context: grpc.ServicerContext) -> bytes:
            with self.lock:
                self.count += 1
            if request.startswith(b"no"):
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, "refused")
            return request * 3

        return grpc.unary_unary_rpc_method_handler(answer)


@pytest.fixture
def calls() -> Iterator[tuple[Calls, int]]:
    handler = Calls()
    server = grpc.server(ThreadPoolExecutor(4), handlers=[handler], options=[("grpc.so_reuseport", 0)])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield handler, port
    server.stop(None).wait()


class Posts(BaseHTTPRequestHandler):
    """Answers a POST with its body twice; a body that begins with "no" gets status 500 with as many bytes."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(500 if body.startswith(b"no") else 200)
        self.send_header("CONTENT-Length", str(2 * len(body)))
        self.end_headers()
        self.wfile.write(body * 2)

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@pytest.fixture
def posts() -> Iterator[int]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Posts)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server.server_port
    server.shutdown()
    server.server_close()
    thread.join()


def asked(bodies: list[bytes], factor: int, *, is_grpc: bool, more: int = 0) -> Ask:
    return Ask(
        is_grpc, "/a.B/C", bodies, [factor * len(body) + more for body in bodies], [(("x-a", "1"),)] * len(bodies)
    )


@pytest.mark.parametrize("streams", [1, 7])
@pytest.mark.parametrize("bodies", [[b""], [b"a", b"bcd"], [b"x" * LARGE, b"small"]], ids=["empty", "small", "large"])
def test_every_grpc_call_is_counted_once(calls: tuple[Calls, int], bodies: list[bytes], streams: int) -> None:
    handler, port = calls
    shot = drive(asked(bodies, 3, is_grpc=True), port, connections=3, streams=streams, **FAST)
    assert 0 < shot.requests <= handler.count
    assert 0 < shot.p50_ms <= shot.p99_ms


def test_a_long_run_gives_windows_back(calls: tuple[Calls, int]) -> None:
    # Requests and answers of 1 MB: together they exceed the receive windows of both sides by far.
    _, port = calls
    shot = drive(asked([b"y" * (1 << 20)], 3, is_grpc=True), port, connections=1, streams=2, **FAST | {"seconds": 1.0})
    assert shot.requests > 1


@pytest.mark.parametrize(
    ("bodies", "more"),
    [([b"yes"], 1), ([b"no"], 0), ([b"yes", b"no"], 0)],
    ids=["another size", "refused", "one of two"],
)
def test_a_wrong_grpc_answer_is_noticed(calls: tuple[Calls, int], bodies: list[bytes], more: int) -> None:
    with pytest.raises(LoadError, match="answers of another size"):
        drive(asked(bodies, 3, is_grpc=True, more=more), calls[1], connections=2, **FAST)


@pytest.mark.parametrize("bodies", [[b""], [b"a", b"bcd"], [b"x" * LARGE, b"small"]], ids=["empty", "small", "large"])
def test_http_requests_are_answered(posts: int, bodies: list[bytes]) -> None:
    shot = drive(asked(bodies, 2, is_grpc=False), posts, connections=3, **FAST)
    assert shot.requests > 0


@pytest.mark.parametrize(("bodies", "more"), [([b"yes"], 1), ([b"no"], 0)], ids=["another size", "refused"])
def test_a_wrong_http_answer_is_noticed(posts: int, bodies: list[bytes], more: int) -> None:
    with pytest.raises(LoadError):
        drive(asked(bodies, 2, is_grpc=False, more=more), posts, connections=2, **FAST)


def test_time_is_spread_over_the_requests(calls: tuple[Calls, int]) -> None:
    ticks = iter([1.0, 3.0])
    how = FAST | {"server_cpu_s": lambda: next(ticks)}
    started_s = time.perf_counter()
    shot: Shot = drive(asked([b"a"], 3, is_grpc=True), calls[1], connections=1, **how)
    took_s = time.perf_counter() - started_s
    assert shot.server_cpu_us == pytest.approx(2e6 / shot.requests)
    # drive() measured 0.2 s of the seconds that the call took.
    assert shot.requests / took_s < shot.requests_per_s <= shot.requests / 0.2
    assert 0 < shot.busy < 1


def test_quantiles_are_those_of_the_latencies() -> None:
    latencies = np.random.default_rng(0).lognormal(12, 2, 5000).astype(np.int64)
    histogram = np.zeros(NUM_BUCKETS, np.int64)
    for nanoseconds in latencies:
        record(histogram, nanoseconds)
    for share in (0.01, 0.5, 0.99, 1.0):
        wanted = np.quantile(latencies, share, method="inverted_cdf") / 1e6
        assert quantile_ms(histogram, share) == pytest.approx(wanted, rel=0.025)
    assert np.isnan(quantile_ms(np.zeros(NUM_BUCKETS, np.int64), 0.5))
