"""Sends requests one below each limit, at the limit, and one above it, over HTTP/1.1, HTTP/2 and gRPC."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from service.versions.neighbors import MAX_K, MAX_QUERIES
from tests.integration.h2_client import PREDICT, H2Client, framed
from tests.integration.process import ServerProcess
from tests.integration.raw_http import BODY, LOOKUP, answer, connect, post, status
from tests.toy_model import write_toy_model

CLOSE = b"connection: close"
HEAD_BYTES, URL_BYTES, REQUEST_BYTES = 64 << 10, 8 << 10, 2 << 20
HEADERS, HEADER_LIST_BYTES, KEYS, LISTS, DEPTH = 100, 64 << 10, 1 << 18, 1 << 19, 64
STATUS = "/tensorflow.serving.ModelService/GetModelStatus"
ROWS = b"POST /v1/models/default/tables/user:rows HTTP/1.1\r\nhost: x\r\n"
CLASSIFY = LOOKUP.replace(b":lookup", b":classify")
NEIGHBORS = ROWS.replace(b":rows", b":neighbors")
INFER = b"POST /v2/models/default/infer HTTP/1.1\r\nhost: x\r\n"


@pytest.fixture(scope="module")
def server(toy_model: Path) -> Iterator[ServerProcess]:
    """Starts a server of the toy model with a small limit on requests."""
    settings: dict[str, object] = {
        "model_base_path": toy_model,
        "graph_signatures": "off",
        "max_request_bytes": REQUEST_BYTES,
    }
    with ServerProcess(**settings) as server:
        yield server.ready()


def _head(size: int) -> bytes:
    """Returns a lookup whose request line and headers, with the empty line after them, have `size` bytes."""
    request = post(BODY, CLOSE, b"x: ")
    return post(BODY, CLOSE, b"x: " + b"y" * (size - len(request) + len(BODY)))


def _url(size: int) -> bytes:
    """Returns a GET request whose path and query have `size` bytes."""
    return b"GET /" + b"a" * (size - 3) + b"?b HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"


def _headers(count: int) -> bytes:
    """Returns the bytes of a lookup with this many headers."""
    return post(BODY, CLOSE, *[b"a: b"] * (count - 3))


def _padded(size: int) -> bytes:
    return BODY[:-1] + b" " * (size - len(BODY)) + b"}"


def _body(size: int, start: bytes = LOOKUP) -> bytes:
    return post(_padded(size), CLOSE, start=start)


def _chunked(size: int) -> bytes:
    body = _padded(size)
    chunks = (body[at : at + 50_000] for at in range(0, size, 50_000))
    return (
        LOOKUP
        + b"connection: close\r\ntransfer-encoding: chunked\r\n\r\n"
        + b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks)
        + b"0\r\n\r\n"
    )


def _inflated(size: int) -> bytes:
    return post(gzip.compress(_padded(size), 1), CLOSE, b"content-encoding: gzip")


def _binary(size: int) -> bytes:
    """Returns an inference request whose body, JSON and binary tensor together, has `size` bytes."""
    count = 1000
    tensor = {"name": "user", "datatype": "INT64", "shape": [count], "parameters": {"binary_data_size": 8 * count}}
    document = json.dumps({"parameters": {"signature_name": "lookup"}, "inputs": [tensor]}).encode()
    document += b" " * (size - len(document) - 8 * count)
    return post(document + bytes(8 * count), CLOSE, b"inference-header-content-length: %d" % len(document), start=INFER)


def _keys(count: int) -> bytes:
    """Returns a lookup with `count` keys, one of which no lookup has."""
    return post(b'{"x":{%s},"features":{"user":[1]}}' % b",".join([b'"":1'] * (count - 3)), CLOSE)


def _lists(count: int) -> bytes:
    """Returns a lookup with `count` lists and objects, most of them under a key that no lookup has."""
    return post(b'{"x":[%s],"features":{"user":[1]}}' % b",".join([b"[]"] * (count - 4)), CLOSE)


def _depth(depth: int) -> bytes:
    """Returns a predict request over HTTP whose JSON input has `depth` dimensions."""
    inputs = b"[" * depth + b"1" + b"]" * depth
    body = b'{"signature_name": "lookup", "inputs": {"user": %s}}' % inputs
    return post(body, CLOSE, start=LOOKUP.replace(b":lookup", b":predict"))


def _neighbors(k: int, queries: int) -> bytes:
    return post(json.dumps({"ids": [1] * queries, "k": k}).encode(), CLOSE, start=NEIGHBORS)


# Name of a limit -> its value, a function that makes a request of a size or number, and the statuses just below, at and
# just above the limit.
HTTP: dict[str, tuple[int, Callable[[int], bytes], tuple[int, int, int]]] = {
    "head": (HEAD_BYTES, _head, (200, 200, 431)),
    "URL": (URL_BYTES, _url, (404, 404, 414)),
    "headers": (HEADERS, _headers, (200, 200, 431)),
    "body": (REQUEST_BYTES, _body, (200, 200, 413)),
    "body in chunks": (REQUEST_BYTES, _chunked, (200, 200, 413)),
    "inflated body": (REQUEST_BYTES, _inflated, (200, 200, 413)),
    "body that is forwarded": (REQUEST_BYTES, lambda size: _body(size, CLASSIFY), (400, 400, 413)),
    "body with binary data": (REQUEST_BYTES, _binary, (200, 200, 413)),
    "keys": (KEYS, _keys, (400, 400, 413)),
    "lists and objects": (LISTS, _lists, (400, 400, 413)),
    "neighbours": (MAX_K, lambda k: _neighbors(k, 1), (200, 200, 400)),
    "queries": (MAX_QUERIES, lambda queries: _neighbors(1, queries), (200, 200, 400)),
}


@pytest.mark.parametrize("more", [-1, 0, 1])
@pytest.mark.parametrize("name", HTTP)
def test_http_answers_up_to_the_limit_and_refuses_one_more(server: ServerProcess, name: str, more: int) -> None:
    limit, request, expected = HTTP[name]
    data = answer(server, request(limit + more))
    assert status(data) == expected[more + 1], data[:300]


@pytest.mark.parametrize("start", [LOOKUP, CLASSIFY, ROWS, INFER, b"POST /nothing HTTP/1.1\r\nhost: x\r\n"])
def test_a_client_is_not_asked_for_a_body_above_the_limit(server: ServerProcess, start: bytes) -> None:
    expects = start + b"expect: 100-continue\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
    with connect(server) as sock:
        sock.sendall(expects % REQUEST_BYTES)
        assert status(sock.recv(1 << 16)) == 100
    assert status(answer(server, expects % (REQUEST_BYTES + 1))) == (404 if b"nothing" in start else 413)


def test_the_body_of_a_connect_is_no_request(server: ServerProcess) -> None:
    body = b"\r\n" * 2000 + b"GET /v2 HTTP/1.1\r\nhost: x\r\n\r\n"
    data = answer(server, post(body, start=b"CONNECT /v1/models/default HTTP/1.1\r\nhost: x\r\n"))
    assert status(data) == 400
    assert data.count(b"HTTP/1.1 ") == 1
    # The next requests, which share the reference server's connections, get their own answers.
    for _ in range(20):
        data = answer(server, b"GET /v1/models/default HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        assert b"model_version_status" in data


def test_a_sign_in_above_the_limit_of_a_small_server_is_refused(tmp_path: Path) -> None:
    write_toy_model(tmp_path / "model" / "1")
    settings = {"model_base_path": tmp_path / "model", "graph_signatures": "off", "max_request_bytes": 1024}
    start = b"POST /console/session HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    with ServerProcess(**settings) as server:
        server.ready()
        assert status(answer(server, post(b" " * 1025, CLOSE, start=start))) == 413


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_json_lists_are_read_up_to_a_depth(server: ServerProcess, more: int) -> None:
    data = answer(server, _depth(DEPTH + more))
    assert status(data) == 400
    assert (b"nested over 64 deep" in data) == (more > 0), data


def _message(size: int) -> bytes:
    """Returns a valid PredictRequest of `size` bytes: an unknown field fills it up."""
    known = b"\x0a\x11\x0a\x07default\x1a\x06lookup"
    left = size - len(known) - 2 - 3
    filler = b"\xfa\x01" + bytes([left & 127 | 128, left >> 7 & 127 | 128, left >> 14]) + bytes(left)
    return known + filler


@pytest.mark.parametrize("more", [-1, 0, 1])
@pytest.mark.parametrize("path", [PREDICT, STATUS], ids=["core", "forwarded"])
@pytest.mark.parametrize("is_packed", [False, True], ids=["plain", "compressed"])
def test_a_grpc_message_is_read_up_to_the_limit(server: ServerProcess, path: str, is_packed: bool, more: int) -> None:
    message = _message(REQUEST_BYTES + more)
    assert len(message) == REQUEST_BYTES + more
    packed = gzip.compress(message, 1)
    with H2Client(server.grpc_port) as client:
        stream = client.begin(path, grpc_encoding="gzip")
        client.send(stream, b"\1" + len(packed).to_bytes(4) + packed if is_packed else framed(message))
        found = client.answer(stream)
    assert (found.status == 8) == (more > 0), found


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_a_header_list_below_the_limit_is_read(server: ServerProcess, more: int) -> None:
    # RFC 9113, 6.5.2: each field counts its name, its value and 32 bytes. The library h2 refuses a header list whose
    # size equals the limit.
    with H2Client(server.grpc_port) as client:
        base = {
            ":method": "POST",
            ":scheme": "http",
            ":path": PREDICT,
            ":authority": "test",
            "te": "trailers",
            "content-type": "application/grpc",
        }
        used = sum(len(name) + len(value) + 32 for name, value in base.items())
        filler = {f"x-{number:02d}": "y" * 8000 for number in range(8)}
        left = HEADER_LIST_BYTES - used - sum(len(name) + len(value) + 32 for name, value in filler.items())
        filler["x-99"] = "y" * (left - 4 - 32 + more)
        stream = client.begin(PREDICT, **filler)
        client.send(stream, framed(b""))
        found = client.answer(stream)
    assert found.headers[":status"] == ("200" if more < 0 else "431"), found
