"""Runs every attack of loadtest.attacks on a real server, which must answer others, end the attack and free memory."""

from __future__ import annotations

import contextlib
import gzip
import json
import re
import select
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from loadtest.attacks import frames
from loadtest.attacks.__main__ import main
from loadtest.attacks.attacker import Attacker
from loadtest.attacks.cases import CASES
from loadtest.attacks.measuring import Result, Victim, measure, resident_mib
from loadtest.attacks.targets import DIM, Target, reference_of, secured, targets_of, write_callers, write_version
from tests.certificates import Authority, ssl_config
from tests.integration.billion import refusals
from tests.integration.h2_client import PREDICT as _PREDICT
from tests.integration.h2_client import Answer, H2Client, framed
from tests.integration.process import PATIENCE_S, ServerProcess, until
from tests.integration.raw_http import BODY, LOOKUP, answer, connect, endless, post, rest, send, status

CLOSE = b"connection: close"
CHUNKED = LOOKUP + b"transfer-encoding: chunked\r\n\r\n"
_STATUS = "/tensorflow.serving.ModelService/GetModelStatus"
_WATCH = "/grpc.health.v1.Health/Watch"
_REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
# The head of a predict.
PREDICT = LOOKUP.replace(b":lookup", b":predict")
# Seconds that the server waits for bytes of a client.
TIMEOUT_S = 0.3
# Seconds that an attack lasts. A busy machine leaves the attacker little time to send what the server must react to, so
# an attack that had no effect is made again, each time for longer.
ATTACK_S = (0.2, 0.8, 3.2, 25.6, 25.6, 25.6, 25.6)
# MiB that the server may keep after an attack: far more than was measured, because the allocator keeps some freed
# memory.
LEFT_MIB = 64.0


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, ServerProcess]]:
    """Starts three servers with short timeouts for all attacks in this file: plain, with callers, and with TLS."""
    folder = tmp_path_factory.mktemp("attacked")
    write_version(folder / "model" / "1")
    (folder / "ssl.conf").write_text(ssl_config(Authority().issue()))
    names = ("stall_timeout_s", "rest_api_keep_alive_s")
    settings: dict[str, object] = dict.fromkeys(names, TIMEOUT_S) | {
        "model_base_path": folder / "model",
        "graph_signatures": "off",
        "max_request_bytes": 8 << 20,
    }
    config = folder / "ssl.conf"
    with (
        ServerProcess(**settings) as plain,
        ServerProcess(
            **settings, auth_config=write_callers(folder), admin_port="auto", delta_journal_dir=folder
        ) as callers,
        ServerProcess(**settings, ssl_config_file=config, rest_api_ssl_config_file=config) as tls,
    ):
        plain.ready()
        for one in (callers, tls):
            one.answering().wait_for_log("loaded")
        yield {"plain": plain, "callers": callers, "tls": tls}
        # A request for the metrics makes the server collect the core's last events.
        dropped(plain)
    # No server logged an error, neither during the attacks nor when it stopped.
    assert [
        record for one in (plain, callers, tls) for record in one.records if record["level"] in ("error", "raw")
    ] == []


@pytest.fixture(scope="module")
def server(servers: dict[str, ServerProcess]) -> ServerProcess:
    """The plain one."""
    return servers["plain"]


@pytest.fixture(scope="module")
def victims(servers: dict[str, ServerProcess]) -> Iterator[dict[Target, Victim]]:
    """Yields a client of each port, which must always get its answers during the attacks."""
    targets: list[Target] = []
    for name, one in servers.items():
        if name == "callers":
            admin_port = one.wait_for_log("listening")["admin_port"]
            targets.append(reference_of("127.0.0.1", one.http_port, admin_port, "default", "user", (one.pid,)))
            continue
        ports = targets_of("127.0.0.1", one.grpc_port, one.http_port, "default", "user", (one.pid,))
        targets += secured(ports) if name == "tls" else ports
    victims: dict[Target, Victim] = {}
    try:
        for target in targets:
            victims[target] = Victim(target)
        yield victims
    finally:
        for victim in victims.values():
            victim.close()


def dropped(server: ServerProcess) -> dict[str, float]:
    """Reads from the metrics how many connections the server dropped, by reason."""
    # The metrics are asked for on a new connection, because the server may close a kept one just as the client uses it
    # again.
    text = httpx.get(f"http://127.0.0.1:{server.http_port}/metrics", timeout=PATIENCE_S).text
    found = re.findall(r'^embedding_server_connections_dropped_total\{reason="(\w+)"\} (\S+)$', text, re.MULTILINE)
    return {reason: float(count) for reason, count in found}


@pytest.mark.parametrize("name", CASES)
def test_an_attack_costs_nobody_else_an_answer(name: str, victims: dict[Target, Victim], server: ServerProcess) -> None:
    for target, victim in victims.items():
        if CASES[name].fits(target):
            result = attacked(target, name, victim)
            assert has_effect(name, result), result
    data = answer(server, post(b'{"features": {"user": [1]}}', CLOSE))
    assert json.loads(data.partition(b"\r\n\r\n")[2]) == {"embeddings": {"user": [[1.0] * DIM]}}


def attacked(target: Target, name: str, victim: Victim) -> Result:
    """Attacks until the attack has its effect, at most seven times, and checks each time what must always hold."""
    for attack_s in ATTACK_S:
        result = measure(target, name, victim=victim, quiet_s=0.0, attack_s=attack_s, allowed_mib=LEFT_MIB)
        assert result.during.count > 0 and not result.during.faults, result
        assert result.memory.left is not None, result
        assert result.memory.left < LEFT_MIB + CASES[name].cached_mib, result
        if has_effect(name, result):
            break
    return result


def has_effect(name: str, result: Result) -> bool:
    """Says whether the attacker sent its bytes and, where the server must end the attack, whether it did."""
    is_sent = result.outcome.sent_bytes > 0 or name.endswith(("connections", "handshakes", "preface"))
    return is_sent and (result.outcome.is_out or not CASES[name].is_ended)


def test_the_server_counts_the_connections_that_it_closes_and_why(
    victims: dict[Target, Victim], server: ServerProcess
) -> None:
    before = dropped(server)
    reasons = {
        "http2.ping_flood": "flood_ping",
        "http2.hpack_huffman_flood": "flood_headers",
        "http1.no_host": "malformed",
        "http1.byte_chunks": "flood_parts",
    }
    for target, victim in victims.items():
        for name in reasons:
            if CASES[name].fits(target):
                attacked(target, name, victim)
    after = dropped(server)
    assert all(after.get(reason, 0) > before.get(reason, 0) for reason in reasons.values()), (before, after)


def test_a_failed_handshake_of_http2_is_counted_without_tls(server: ServerProcess) -> None:
    before = dropped(server).get("handshake", 0)
    with socket.create_connection(("127.0.0.1", server.grpc_port), 10) as sock:
        sock.sendall(b"these bytes are no preface of HTTP/2" * 10)
        # The server closes the connection without reading all bytes, so the client may get a reset.
        with contextlib.suppress(ConnectionResetError):
            while sock.recv(4096):
                pass
    assert dropped(server)["handshake"] == before + 1


def test_a_body_that_the_reference_refuses_unread_leaves_no_connection(server: ServerProcess) -> None:
    body = gzip.compress(b"") * 50_000
    dropped(server)
    before = open_descriptors(server)
    for _ in range(20):
        assert status(answer(server, post(body, CLOSE, b"content-encoding: gzip"))) in (400, 0)

    def are_closed() -> bool:
        # The native core closes its idle connections to the reference server when it forwards the next request.
        dropped(server)
        return open_descriptors(server) < before + 20

    until(are_closed)


def test_the_memory_of_connections_that_have_closed_is_returned(tmp_path: Path) -> None:
    write_version(tmp_path / "model" / "1")
    # The server counts its connections each second, so the timeout lets it count them while they are open.
    settings = {"model_base_path": tmp_path / "model", "graph_signatures": "off", "stall_timeout_s": 2.5}
    with ServerProcess(**settings) as server, contextlib.ExitStack() as stack:
        server.ready()
        before = resident_mib([server.pid])
        socks = [stack.enter_context(connect(server)) for _ in range(500)]
        for sock in socks:
            sock.sendall(LOOKUP + b"x: " + b"y" * 60_000)
        for sock in socks:
            rest(sock)
        # Without the return of freed memory, 40 MiB stay for good.
        until(lambda: resident_mib([server.pid]) < before + 20)


def open_descriptors(server: ServerProcess) -> int:
    """Returns the number of open descriptors of the server's process."""
    return len(list(Path(f"/proc/{server.pid}/fd").iterdir()))


def test_another_host_is_attacked_only_when_that_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["attacks", "--grpc=192.0.2.1:8500"])
    assert main() == 2
    assert "is not this machine" in capsys.readouterr().out


@pytest.mark.parametrize("start", [LOOKUP, PREDICT], ids=["lookup", "predict"])
def test_a_body_that_does_not_come_closes_the_connection(server: ServerProcess, start: bytes) -> None:
    # The server can not tell this client from one that has vanished: no more bytes come from either.
    assert status(answer(server, start + b"content-length: 100\r\n\r\n{")) in (408, 0)


@pytest.mark.parametrize("path", [_PREDICT, _STATUS], ids=["answered by the core", "forwarded"])
def test_a_message_that_dribbles_ends_its_call(server: ServerProcess, path: str) -> None:
    before = num_stalled(server)
    with H2Client(server.grpc_port) as client:
        stream = client.begin(path)
        client.send(stream, b"\0" + (1 << 20).to_bytes(4), is_last=False)
        found, end_s = client.answers[stream], time.monotonic() + PATIENCE_S
        while not found.is_over and time.monotonic() < end_s:
            # The bytes come at intervals far below the timeout, but at a rate below the lowest that is allowed.
            if select.select([client.socket], [], [], TIMEOUT_S / 6)[0]:
                client.receive()
            else:
                client.send(stream, b"\0", is_last=False)
        assert found.is_over and found.status == 4 and "too slowly" in found.headers["grpc-message"]
        # The connection still serves other calls.
        assert client.call(b"").status == 3
    until(lambda: num_stalled(server) > before)


@pytest.mark.parametrize("start", [LOOKUP, PREDICT], ids=["lookup", "predict"])
def test_a_body_that_dribbles_is_request_timeout(server: ServerProcess, start: bytes) -> None:
    before = num_stalled(server)
    data = answer(server, start + b"content-length: 1000\r\n\r\n", *[b" "] * 500, pause_s=TIMEOUT_S / 6)
    assert status(data) == 408 and b"too slowly" in data and b"\r\nconnection: close\r\n" in data
    until(lambda: num_stalled(server) > before)


def test_slow_bodies_of_status_requests_leave_slots(server: ServerProcess) -> None:
    # These are more connections than the reference server has slots for bodies of such requests.
    with contextlib.ExitStack() as stack:
        socks = [stack.enter_context(connect(server)) for _ in range(64)]
        for sock in socks:
            sock.sendall(b"POST /v1/models/default HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n")
        for _ in range(5):
            assert (
                status(answer(server, b"GET /v1/models/default HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"))
                == 200
            )
        assert status(rest(socks[0])) == 408


def num_stalled(server: ServerProcess) -> float:
    """Returns how many requests were refused because their body came too slowly."""
    # The metrics are asked for on a new connection, because the server closes idle ones.
    text = answer(server, b"GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").decode()
    found = re.findall(r'^embedding_server_refused_total\{.*reason="stalled"\} (\S+)\r?$', text, re.MULTILINE)
    return sum(map(float, found))


def test_a_chunked_body_without_end_is_refused_and_cut(server: ServerProcess) -> None:
    chunk = b"10000\r\n" + b" " * 65536 + b"\r\n"
    with connect(server) as sock:
        sock.sendall(CHUNKED)
        send(sock, endless(chunk))
        # A client that still sends when the server closes the connection may get a reset instead of the answer.
        assert status(rest(sock)) in (413, 0)


def test_requests_sent_ahead_are_answered(server: ServerProcess) -> None:
    get = b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n"
    assert answer(server, get * 50).count(b"HTTP/1.1 200 ") == 50
    assert answer(server, post(BODY) * 50).count(b"HTTP/1.1 200 ") == 50


@pytest.mark.parametrize(
    "head",
    [
        b"POST /v1/models/default:lookup HTTP/1.1\r\n",
        LOOKUP + b"host: y\r\n",
        b"GET /healthz HTTP/1.1\r\n",
    ],
    ids=["none", "two", "none, forwarded"],
)
def test_a_request_needs_one_host(server: ServerProcess, head: bytes) -> None:
    data = answer(server, post(BODY, start=head))
    assert status(data) == 400 and b"\r\nconnection: close\r\n" in data


def test_http_1_0_needs_no_host(server: ServerProcess) -> None:
    assert status(answer(server, b"GET /healthz HTTP/1.0\r\n\r\n").replace(b"HTTP/1.0", b"HTTP/1.1")) == 200


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


def test_what_is_compressed_as_much_as_requests_are_is_taken(server: ServerProcess) -> None:
    body = json.dumps({"features": {"user": [1, 2, 3, 4] * 5_000}}).encode()
    data = answer(server, post(gzip.compress(body), CLOSE, b"content-encoding: gzip"))
    assert status(data) == 200


@pytest.mark.parametrize("path", [_PREDICT, "/grpc.health.v1.Health/Watch"])
def test_a_second_message_of_a_unary_call_is_unimplemented(server: ServerProcess, path: str) -> None:
    plain, compressed = framed(b""), framed(gzip.compress(b""))
    compressed = b"\1" + compressed[1:]
    for first in (plain, compressed):
        for second in (plain, compressed):
            found = called(server, path, first + second)
            assert (found.status, found.data) == (12, b"")
            assert "exactly one request message" in found.headers["grpc-message"]


@pytest.mark.parametrize("path", [_PREDICT, _STATUS, "/grpc.health.v1.Health/Check"])
def test_a_call_without_a_message_is_unimplemented(server: ServerProcess, path: str) -> None:
    for data in (None, b""):
        with H2Client(server.grpc_port) as client:
            stream = client.begin(path)
            if data is None:
                client.h2.end_stream(stream)
                client.flush()
            else:
                client.send(stream, data)
            found = client.answer(stream)
        assert (found.status, found.data) == (12, b"")
        assert "exactly one request message" in found.headers["grpc-message"]


def test_metadata_that_differs_in_each_call_is_no_flood(server: ServerProcess) -> None:
    target = next(one for one in targets_of("127.0.0.1", server.grpc_port, server.http_port, "default", "user", ()))
    conn = Attacker(target, PATIENCE_S).http2()
    for first in range(1, 4000, 80):
        calls = []
        for stream in range(first, first + 80, 2):
            # Neither side's HPACK table can remember a field of 11 KB, so each call sends all of its bytes.
            block = target.fields((b"x-user", b"%08x" % stream * (11 << 7)))
            calls.append(frames.frame(frames.HEADERS, frames.END_HEADERS | frames.END_STREAM, stream, block))
        conn.send(calls, time.monotonic() + PATIENCE_S)
        while not conn.closed and first + 78 not in conn.received.ended_streams:
            conn.wait(time.monotonic() + 0.01)
    assert not conn.closed and not conn.received.goaway
    conn.end()


def test_a_stream_of_compressed_messages_is_unimplemented(server: ServerProcess) -> None:
    listing = b"\x3a\x01*"
    assert called(server, _REFLECTION, framed(listing) * 2, grpc_encoding="identity").status == 0
    found = called(server, _REFLECTION, framed(listing) * 2)
    assert (found.status, found.data) == (12, b"")


def called(server: ServerProcess, path: str, body: bytes, grpc_encoding: str = "gzip") -> Answer:
    """Sends bytes as the body of a gRPC call and returns its answer."""
    client = H2Client(server.grpc_port)
    try:
        stream = client.begin(path, grpc_encoding=grpc_encoding)
        client.send(stream, body)
        return client.answer(stream)
    finally:
        client.socket.close()


def test_a_billion_rows_are_refused_on_both_wires(server: ServerProcess) -> None:
    invalid = ("gRPC", "INVALID_ARGUMENT")
    assert refusals(server) == [("HTTP", 400), ("HTTP", 400), invalid, invalid]


def test_a_connection_has_few_calls_without_end(server: ServerProcess) -> None:
    with H2Client(server.grpc_port) as client:
        watches = [client.begin(_WATCH) for _ in range(9)]
        for stream in watches:
            client.send(stream, framed(b""))
        *begun, last = (client.answers[stream] for stream in watches)
        client.until(lambda: last.is_over and all(len(answer.data) > 0 for answer in begun))
        assert last.status == 8 and "health watches" in last.headers["grpc-message"]
        assert not any(answer.is_over for answer in begun)
        # The end of one health watch makes room for another one on the connection.
        client.h2.reset_stream(watches[0], 8)
        client.flush()

        def is_begun() -> bool:
            stream = client.begin(_WATCH)
            client.send(stream, framed(b""))
            answer = client.answers[stream]
            client.until(lambda: answer.is_over or len(answer.data) > 0)
            return not answer.is_over

        until(is_begun)


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"grpc-timeout": "1x"}, 3),
        ({"grpc-timeout": ""}, 3),
        ({"grpc-timeout": "99999999H"}, 0),
        ({"grpc-encoding": "odd"}, 12),
        ({"grpc-previous-rpc-attempts": "many"}, 0),
        ({"grpc-status": "x"}, 0),
        ({"x-bin": "***"}, 0),
        ({"lb-cost-bin": "AAAA"}, 0),
        ({"x": "\u00ff"}, 0),
    ],
    ids=str,
)
def test_metadata_that_can_not_be_parsed_is_no_fault_of_the_server(
    server: ServerProcess, more: dict[str, str], code: int
) -> None:
    # The fixture `servers` fails if a server logged a record of level "error".
    with H2Client(server.grpc_port) as client:
        message = b"\x0a\x09\x0a\x07default"
        assert client.call(message, _STATUS, **more).status == code


def test_headers_of_calls_that_wait_are_bounded(server: ServerProcess) -> None:
    large = {f"x-{number}": "y" * 4000 for number in range(15)}
    with H2Client(server.grpc_port) as client:
        # Nine calls with 60 KB of headers each exceed the server's limit of 512 KB. The client sends no bodies.
        streams = [client.begin(_PREDICT, **large) for _ in range(9)]
        client.flush()
        last = client.answer(streams[-1])
        assert last.status == 14 and "metadata" in last.headers["grpc-message"]
        assert not any(client.answers[stream].is_over for stream in streams[:-1])
        client.send(streams[0], framed(b""))
        assert client.answer(streams[0]).status == 3
        # The limit on bytes of headers counts calls that wait, and one of the waiting calls has ended.
        assert client.call(b"", **large).status == 3
