"""Speaks HTTP/2 without asking (prior knowledge) to the HTTP port, as Envoy and service meshes do."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from h2.events import ConnectionTerminated, InformationalResponseReceived

from loadtest.attacks.frames import DATA, END_STREAM, GOAWAY, PING, frame
from tests.integration.h2_client import Answer, H2Client
from tests.integration.process import PATIENCE_S, ServerProcess, until
from tests.integration.raw_http import BODY, answer, connect, post, status
from tests.toy_model import write_toy_model

LOOKUP = "/v1/models/default:lookup"
ROWS = {"embeddings": {"user": [[1.0, 10.0], [2.0, 20.0]]}}
LIMIT = 16 << 20


@pytest.fixture(scope="module")
def server(toy_model: Path) -> Iterator[ServerProcess]:
    """Starts a server of the toy model."""
    with ServerProcess(
        model_base_path=toy_model,
        graph_signatures="off",
        max_request_bytes=LIMIT,
        rest_api_cors_origins="https://app.example",
    ) as server:
        yield server.ready()


def ask(client: H2Client, path: str, body: bytes | None = None, **more: str) -> int:
    """Sends a request of HTTP, not of gRPC, and returns its stream."""
    stream = client.begin(path, content_type="application/json", **{":method": "POST" if body else "GET"} | more)
    client.send(stream, body or b"")
    return stream


def asked(server: ServerProcess, path: str, body: bytes | None = None, **more: str) -> Answer:
    with H2Client(server.http_port) as client:
        return client.answer(ask(client, path, body, **more))


def test_a_client_gets_what_it_gets_over_http_1(server: ServerProcess) -> None:
    bad = json.dumps({"features": {"nothing": [1]}}).encode()
    large = json.dumps({"features": {"user": [1, 2] * 200_000}}).encode()
    for path, body in [
        ("/healthz", None),
        ("/v1/models/default", None),
        ("/v1/models/default/metadata", None),
        ("/nothing", None),
        (LOOKUP, BODY),
        (LOOKUP, bad),
        (LOOKUP, b"{"),
        (LOOKUP, large),
        ("/v1/models/absent:predict", BODY),
    ]:
        ours = asked(server, path, body)
        plain = {"Accept-Encoding": "identity"}
        same = server.http.request("POST" if body else "GET", path, content=body, headers=plain)
        assert (int(ours.headers[":status"]), ours.data) == (same.status_code, same.content), path
        # An answer may have two fields `vary`, of which one client shows the last and the other both.
        unlike = {"date", "x-request-id", "connection", "transfer-encoding", "vary"}
        assert {name: value for name, value in ours.headers.items() if name not in unlike | {":status"}} == {
            name: value for name, value in same.headers.items() if name not in unlike
        }, path


def test_requests_of_one_connection_run_at_the_same_time(server: ServerProcess) -> None:
    with H2Client(server.http_port) as client:
        streams = [ask(client, LOOKUP, BODY) for _ in range(100)]
        assert all(json.loads(client.answer(stream).data) == ROWS for stream in streams)


def test_a_head_request_has_no_body(server: ServerProcess) -> None:
    found = asked(server, "/v1/models/default", **{":method": "HEAD"})
    assert (found.headers[":status"], found.data) == ("200", b"")
    assert int(found.headers["content-length"]) > 0


def test_the_answers_to_pages_of_other_origins_name_what_they_may_read(server: ServerProcess) -> None:
    for found in (
        dict(server.http.post(LOOKUP, content=BODY, headers={"Origin": "https://app.example"}).headers),
        asked(server, LOOKUP, BODY, origin="https://app.example").headers,
    ):
        assert "X-Model-Version, X-Request-Id" in found["access-control-expose-headers"]
        assert "traceparent, tracestate, baggage" in found["access-control-allow-headers"]


def test_a_client_that_asks_for_it_is_told_to_go_on(server: ServerProcess) -> None:
    with H2Client(server.http_port) as client:
        stream = client.begin(LOOKUP, content_type="application/json", expect="100-continue")
        client.flush()
        client.until(lambda: bool(client.of_kind(InformationalResponseReceived)))
        client.send(stream, BODY)
        assert json.loads(client.answer(stream).data) == ROWS
        # A body that is too large is refused before it is sent.
        stream = client.begin(LOOKUP, content_length=str(LIMIT + 1), expect="100-continue")
        client.flush()
        client.until(lambda: client.answers[stream].headers.get(":status") == "413")


def test_requests_are_refused_as_over_http_1(server: ServerProcess) -> None:
    with H2Client(server.http_port) as client:
        client.h2.config.validate_outbound_headers = False
        assert client.answer(ask(client, "/healthz", host="other")).headers[":status"] == "400"
    assert asked(server, "/healthz?" + "x" * 9000).headers[":status"] == "414"
    assert asked(server, "/healthz", **{f"x-{number}": "1" for number in range(101)}).headers[":status"] == "431"
    assert asked(server, "/healthz", x="y" * (70 << 10)).headers[":status"] == "431"


def test_a_client_that_floods_is_told_so(server: ServerProcess) -> None:
    with H2Client(server.http_port) as client:
        for _ in range(2000):
            client.h2.ping(b"12345678")
        try:
            client.flush()
        except ConnectionError:
            pass
        while not client.is_closed:
            client.receive()
        ended = client.of_kind(ConnectionTerminated)
        assert [event.error_code for event in ended] == [11], ended


def first(frames: Iterator[bytes], kind: int) -> bytes:
    """Reads frames until one of this kind comes, and returns its payload."""
    return next(frame[9:] for frame in frames if frame[3] == kind)


def test_an_idle_connection_and_one_of_a_server_that_stops_get_goaway(tmp_path: Path) -> None:
    # The library h2 accepts no frame after GOAWAY, so frames are read and written by hand here.
    write_toy_model(tmp_path / "model" / "1")
    with ServerProcess(model_base_path=tmp_path / "model", graph_signatures="off", rest_api_keep_alive_s=2) as server:
        server.ready()
        with H2Client(server.http_port) as idle:
            idle.answer(ask(idle, LOOKUP, BODY))
            assert first(idle.frames(), GOAWAY)[4:8] == bytes(4)
        with H2Client(server.http_port) as client:
            # The request's body comes after the server has begun to stop, and is still answered.
            stream = client.begin(LOOKUP, content_type="application/json")
            client.h2.ping(b"received")
            client.flush()
            frames = client.frames()
            # The server answers the ping after it has read the frame before it.
            assert first(frames, PING) == b"received"
            server.signal(15)
            assert first(frames, GOAWAY)[4:8] == bytes(4)
            client.socket.sendall(frame(DATA, END_STREAM, stream, BODY))
            assert json.loads(first(frames, DATA)) == ROWS
        assert server.exit_code() == 0


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_speaks_it(server: ServerProcess) -> None:
    command = ["curl", "-sS", "--http2-prior-knowledge", "-w", "\n%{http_version} %{http_code}"]
    url = f"http://127.0.0.1:{server.http_port}"
    done = subprocess.run([*command, "-d", BODY.decode(), url + LOOKUP], capture_output=True, text=True, check=True)
    text, _, how = done.stdout.rpartition("\n")
    assert (json.loads(text), how) == (ROWS, "2 200")


NODE = """
const http2 = require('http2');
const client = http2.connect(process.argv[1]);
const ask = () => new Promise((resolve, reject) => {
  const stream = client.request({':method': 'POST', ':path': process.argv[2], 'content-type': 'application/json'});
  let text = '';
  stream.on('data', (part) => { text += part; }).on('end', () => resolve(text)).on('error', reject);
  stream.end(process.argv[3]);
});
Promise.all(Array.from({length: 50}, ask)).then((all) => { console.log(JSON.stringify(all)); client.close(); });
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_node_speaks_it(server: ServerProcess) -> None:
    url = f"http://127.0.0.1:{server.http_port}"
    done = subprocess.run(["node", "-e", NODE, url, LOOKUP, BODY.decode()], capture_output=True, text=True, check=True)
    answers = json.loads(done.stdout)
    assert len(answers) == 50 and all(json.loads(one) == ROWS for one in answers)


def over_limit(server: ServerProcess, command: list[str], tmp_path: Path, *, size: int) -> str:
    file = tmp_path / "body"
    file.write_bytes(b" " * size)
    url = f"http://127.0.0.1:{server.http_port}{LOOKUP}"
    done = subprocess.run(
        [part.format(url=url, file=file) for part in command], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


CURL = ["curl", "-sS", "-H", "Expect:", "--data-binary", "@{file}", "-w", " %{{http_code}}", "{url}"]


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.parametrize("more", [[], ["--http2-prior-knowledge"], ["-H", "Transfer-Encoding: chunked"]], ids=str)
def test_curl_reads_the_refusal_of_a_body_of_one_byte_too_many(
    server: ServerProcess, tmp_path: Path, more: list[str]
) -> None:
    text = over_limit(server, [*CURL, *more], tmp_path, size=LIMIT + 1)
    assert text.endswith(" 413") and "over the limit" in text


def test_a_client_that_reads_only_after_it_has_sent_all_gets_the_refusal(server: ServerProcess) -> None:
    # Python's http.client, and so requests and urllib3, sends the whole body first.
    import http.client

    for size in (LIMIT + 1, 2 * LIMIT):
        client = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=PATIENCE_S)
        client.request("POST", LOOKUP, b" " * size, {"content-type": "application/json"})
        refusal = client.getresponse()
        assert refusal.status == 413 and b"over the limit" in refusal.read()
        client.close()


def test_a_body_that_is_far_too_large_is_not_read_to_its_end(server: ServerProcess) -> None:
    size = 8 * LIMIT
    with connect(server) as sock:
        sock.sendall(post(b"").replace(b"content-length: 0", b"content-length: %d" % size))
        sent = 0

        def send() -> None:
            nonlocal sent
            try:
                while sent < size:
                    sent += sock.send(b" " * (1 << 16))
            except OSError:
                pass

        sender = threading.Thread(target=send, daemon=True)
        sender.start()
        sender.join(PATIENCE_S)
    assert not sender.is_alive() and sent < size


def test_a_refused_body_on_a_stream_leaves_the_connection_usable(server: ServerProcess) -> None:
    with H2Client(server.http_port) as client:
        stream = client.begin(LOOKUP, content_type="application/json")
        client.send(stream, b" " * (LIMIT + 1))
        refusal = client.answer(stream)
        assert (refusal.headers[":status"], refusal.reset) == ("413", None)
        assert json.loads(client.answer(ask(client, LOOKUP, BODY)).data) == ROWS


def test_http_1_is_answered_as_before(server: ServerProcess) -> None:
    assert status(answer(server, post(BODY, b"connection: close"))) == 200
    assert status(answer(server, b"PRI * HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")) in (400, 404, 405)
    until(lambda: server.http.get("/healthz").status_code == 200)
