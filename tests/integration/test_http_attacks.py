"""Hostile and broken HTTP clients are bounded and told so; nobody else notices. Raw sockets, a real process."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.billion import refusals
from tests.integration.process import ServerProcess, until
from tests.integration.raw_http import BODY, LOOKUP, Load, answer, connect, endless, post, rest, send, status
from tests.toy_model import write_toy_model

CLOSE = b"connection: close"
CHUNKED = LOOKUP + b"transfer-encoding: chunked\r\n\r\n"
# Of requests that take the general path.
PREDICT = LOOKUP.replace(b":lookup", b":predict")
# Longer than what is sent in one go, shorter than a test may take.
TIMEOUT_S = 0.6


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder with version 1 of the toy model."""
    folder = tmp_path_factory.mktemp("attacked") / "model"
    write_toy_model(folder / "1")
    return folder


@pytest.fixture(scope="module")
def server(base: Path) -> Iterator[ServerProcess]:
    """One impatient server that all attacks in this file fall on."""
    settings: dict[str, object] = {
        "model_base_path": base,
        "graph_signatures": "off",
        "rest_api_head_timeout_s": TIMEOUT_S,
        "rest_api_stall_timeout_s": TIMEOUT_S,
        "rest_api_keep_alive_s": TIMEOUT_S,
        "max_request_bytes": 8 << 20,
    }
    with ServerProcess(**settings) as server:
        yield server.ready()


@pytest.fixture(params=[False, True], ids=["idle", "loaded"], autouse=True)
def load(request: pytest.FixtureRequest, server: ServerProcess) -> Iterator[None]:
    """Runs each test on an idle server and on one that others use; these are answered before, during and after."""
    if not request.param:
        yield
        assert server.lookup({"user": [0]})
        return
    with Load(server) as load:
        until(lambda: load.answers)
        yield
        done = load.answers
        until(lambda: load.answers > done or load.failures)
    assert not load.failures


def metric(server: ServerProcess, name: str) -> float:
    """Returns a sample of the exposition; 0 where there is none."""
    text = server.http.get("/metrics").text
    found = re.search(rf"^embedding_server_{re.escape(name)} (\S+)$", text, re.MULTILINE)
    return float(found[1]) if found else 0.0


@pytest.mark.parametrize(
    "head",
    [
        LOOKUP + b"x: " + b"a" * 200_000 + b"\r\n\r\n",
        LOOKUP + b"x: " + b"a" * 200_000,
        b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\n\r\n",
        LOOKUP + b"a: b\r\n" * 20_000 + b"\r\n",
    ],
    ids=["whole", "endless", "path", "many"],
)
@pytest.mark.parametrize("pieces", [1, 3])
def test_a_huge_head_is_refused(server: ServerProcess, head: bytes, pieces: int) -> None:
    # No piece is larger than the limit where there are three.
    size = -(-len(head) // pieces)
    parts = [head[at : at + size] for at in range(0, len(head), size)]
    # The core may close without a word.
    assert status(answer(server, *parts, pause_s=0.05 * (pieces > 1))) in (431, 0)


def test_a_head_that_grows_for_ever_is_cut_at_its_limit(server: ServerProcess) -> None:
    with connect(server) as sock:
        sock.sendall(LOOKUP + b"x: ")
        send(sock, endless(b"a" * 4096))
        assert status(rest(sock)) in (431, 0)


@pytest.mark.parametrize(
    "pieces",
    [[b""], [bytes([byte]) for byte in LOOKUP + b"x: y\r\n" * 20], [b"\r\n"] * 40],
    ids=["silent", "dribbled", "empty lines"],
)
def test_a_head_that_does_not_come_closes_the_connection(server: ServerProcess, pieces: list[bytes]) -> None:
    assert status(answer(server, *pieces, pause_s=0.05)) in (408, 0)


@pytest.mark.parametrize("start", [LOOKUP, PREDICT], ids=["lookup", "predict"])
def test_a_body_that_does_not_come_closes_the_connection(server: ServerProcess, start: bytes) -> None:
    # So does one whose client has vanished without a word: nothing more comes.
    assert status(answer(server, start + b"content-length: 100\r\n\r\n{")) in (408, 0)
    dribbled = [start + b"content-length: 100\r\n\r\n", *[b"{"] * 60]
    assert status(answer(server, *dribbled, pause_s=0.05)) in (408, 0)


def test_an_idle_connection_is_closed_after_its_answer(server: ServerProcess) -> None:
    with connect(server) as sock:
        sock.sendall(post(BODY))
        assert status(rest(sock)) == 200
        assert metric(server, 'in_flight_bytes{model="default"}') == 0


def test_a_chunked_body_without_end_is_refused_and_cut(server: ServerProcess) -> None:
    chunk = b"10000\r\n" + b" " * 65536 + b"\r\n"
    with connect(server) as sock:
        sock.sendall(CHUNKED)
        send(sock, endless(chunk))
        # A client that still sends when its connection is closed may not see why.
        assert status(rest(sock)) in (413, 0)


@pytest.mark.parametrize(
    "piece",
    [b"1;" + b"x" * 4096, b"x: " + b"y" * 4000 + b"\r\n"],
    ids=["extension", "trailers"],
)
def test_what_stands_around_chunks_is_bounded(server: ServerProcess, piece: bytes) -> None:
    with connect(server) as sock:
        sock.sendall(CHUNKED + (b"1\r\n{\r\n0\r\n" if piece.startswith(b"x") else b"1\r\n{\r\n"))
        send(sock, [piece, *endless(piece.removeprefix(b"1;"))])
        assert status(rest(sock)) in (400, 0)


def test_requests_sent_ahead_are_answered(server: ServerProcess) -> None:
    get = b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n"
    assert answer(server, get * 50).count(b"HTTP/1.1 200 ") == 50


@pytest.mark.parametrize("method", [b":lookup", b":predict", b":classify", b"/tables/user:rows"])
def test_json_of_500_000_levels_is_a_bad_request(server: ServerProcess, method: bytes) -> None:
    start = LOOKUP.replace(b":lookup", method)
    for body in (b"[" * 500_000, b'{"features": ' + b"[" * 500_000 + b"]" * 500_000 + b"}"):
        assert status(answer(server, post(body, CLOSE, start=start))) == 400


@pytest.mark.parametrize("data", [b" " * (64 << 20), b"a" * (6 << 20)], ids=["over the limit", "below it"])
def test_a_decompression_bomb_is_413(server: ServerProcess, data: bytes) -> None:
    bomb = gzip.compress(data)
    assert len(bomb) < 1 << 18
    assert status(answer(server, post(bomb, CLOSE, b"content-encoding: gzip"))) == 413


def test_very_many_empty_gzip_members_are_refused(server: ServerProcess) -> None:
    body = gzip.compress(b"") * 100_000
    assert status(answer(server, post(body, CLOSE, b"content-encoding: gzip"))) == 400


def test_what_is_compressed_as_much_as_requests_are_is_taken(server: ServerProcess) -> None:
    body = json.dumps({"features": {"user": [1, 2, 3, 4] * 50_000}}).encode()
    data = answer(server, post(gzip.compress(body), CLOSE, b"content-encoding: gzip"))
    assert status(data) == 200


def test_a_billion_rows_are_refused_on_both_wires(server: ServerProcess) -> None:
    invalid = ("gRPC", "INVALID_ARGUMENT")
    assert refusals(server) == [("HTTP", 400), ("HTTP", 400), invalid, invalid]


def test_a_client_that_reads_nothing_is_cut_and_its_answer_forgotten(server: ServerProcess) -> None:
    before = metric(server, 'connections_dropped_total{reason="stalled"}')
    # Some 20 MB of answer: more than the sockets' buffers take.
    body = b'{"features": {"user": [' + b"4," * 1_000_000 + b"4]}}"
    with connect(server, receive_bytes=4096) as sock:
        sock.sendall(post(body))
        until(lambda: metric(server, 'connections_dropped_total{reason="stalled"}') > before)
