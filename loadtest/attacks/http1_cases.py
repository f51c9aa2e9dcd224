"""The attacks on HTTP/1.1 and on JSON bodies; the text of each attack describes the bytes that it sends."""

from __future__ import annotations

import itertools
import json
import time
import zlib
from collections.abc import Callable

from loadtest.attacks.attacker import Attacker, Cases, gzipped_zeros, repeated
from loadtest.attacks.targets import Target

CASES = Cases()
_SLOW_CONNECTIONS, _STEP_S = 200, 0.05
_JSON_BYTES = 4 << 20
_HALF_HEADS, _HALF_HEAD_BYTES = 500, 60_000
_CHUNKED = b"transfer-encoding: chunked"


def dribble(attacker: Attacker, opening: bytes, piece: bytes, *, is_raw: bool = False) -> None:
    """Opens many connections; on each, sends `opening` once and then `piece` again and again."""
    conns = attacker.connections(_SLOW_CONNECTIONS, is_raw=is_raw)
    for conn in conns:
        conn.send([opening], attacker.end_s)
    while not attacker.is_over and (left := [conn for conn in conns if not conn.closed]):
        for conn in left:
            conn.read()
            conn.send([piece], attacker.end_s)
        time.sleep(_STEP_S)


def _dribbled(name: str, what: str, opening: Callable[[Target], bytes], piece: bytes, least_s: float = 0.0) -> None:
    def attack(attacker: Attacker) -> None:
        dribble(attacker, opening(attacker.target), piece)

    CASES.row(name, f"200 connections, {what}", attack, "http1", least_s=least_s)


_dribbled("slow_head", "heads of requests byte by byte (slowloris)", lambda t: t.head(b"content-length: 10"), b"x")
_dribbled("slow_body", "bodies byte by byte", lambda t: t.head(b"content-length: 1000000") + b"\r\n{", b" ")
_dribbled("silent_connections", "and nothing on them", lambda t: b"", b"")
_dribbled(
    "expectations",
    "announcing bodies of 60 MB that wait for 100 Continue and never come",
    lambda t: t.head(b"expect: 100-continue", b"content-length: 60000000") + b"\r\n",
    b"",
    least_s=2.0,
)


def _flood(name: str, what: str, piece: bytes, opening: Callable[[Target], bytes] = lambda target: b"") -> None:
    """Adds an attack that sends `opening` once, and then `piece` again and again, on one connection."""

    def attack(attacker: Attacker) -> None:
        conn = attacker.connect()
        if conn is not None:
            conn.send([opening(attacker.target)], attacker.end_s)
            attacker.flood(repeated(piece), conn)

    CASES.row(name, what, attack, "http1")


def _chunks(beginning: bytes) -> Callable[[Target], bytes]:
    return lambda target: target.head(_CHUNKED) + b"\r\n" + beginning


_EXTENDED = b"1;" + b"x" * 4096 + b"\r\n \r\n"
_flood("byte_chunks", "an endless body in chunks of 1 byte", b"1\r\n \r\n", _chunks(b"1\r\n{\r\n"))
_flood("chunk_extensions", "chunks of 1 byte, each with an extension of 4 KB", _EXTENDED, _chunks(b""))
_flood("chunk_trailers", "endless trailers", b"x: " + b"y" * 4000 + b"\r\n", _chunks(b"1\r\n{\r\n0\r\n"))
_flood("empty_lines", "empty lines in place of a request", b"\r\n")
_flood("huge_head", "a header field that never ends", b"y" * 4096, lambda t: t.head() + b"x: ")


def _asked_again(name: str, what: str, request: Callable[[Target], bytes]) -> None:
    """Adds an attack that sends a request on one new connection after another."""
    CASES.row(name, what, lambda attacker: attacker.again_and_again(request(attacker.target)), "http1")


def _headed(name: str, what: str, *lines: bytes, host: bytes = b"host: localhost\r\n", has_length: bool = True) -> None:
    def request(target: Target) -> bytes:
        length = (b"content-length: %d" % len(target.body),) if has_length else ()
        return target.head(*length, *lines, host=host) + b"\r\n" + target.body

    _asked_again(name, f"requests {what}", request)


_MANY_HEADERS = [b"a: b"] * 20_000
_HUGE_PATH = b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\nhost: x\r\n\r\n"
_asked_again("many_headers", "20,000 fields", lambda t: t.head(*_MANY_HEADERS, b"content-length: 0") + b"\r\n")
_asked_again("huge_path", "requests with a path of 200 KB", lambda t: _HUGE_PATH)
_headed("no_host", "without Host", host=b"")
_headed("two_hosts", "with two Hosts", b"host: other")
_headed("two_lengths", "with two Content-Length headers", b"content-length: 1")
_headed("length_and_chunks", "with a Content-Length and a Transfer-Encoding", _CHUNKED)
_headed("odd_length", "whose Content-Length is not a number", b"content-length: +5", has_length=False)
_headed("space_in_name", "with a space before a header's colon", b"x : y")
_headed("bad_chunk", "with a chunk whose size is not a number", _CHUNKED + b"\r\n\r\nzz", has_length=False)


@CASES.add("http1", is_ended=False)
def pipelining(attacker: Attacker) -> None:
    """Sends small requests, pipelined without waiting for answers; the client reads the answers."""
    attacker.flood(repeated(attacker.target.whole()))


@CASES.add("http1")
def pipelining_unread(attacker: Attacker) -> None:
    """Sends small requests, pipelined without waiting for answers; the client reads no answers."""
    attacker.flood(repeated(attacker.target.whole()), attacker.connect(receive_bytes=4096), reads=False)


@CASES.add("http1")
def unread_answers(attacker: Attacker) -> None:
    """Sends requests on one connection for answers of megabytes, and reads no byte of the answers."""
    request = attacker.target.whole(attacker.target.large_body)
    attacker.flood(repeated(request, 1), attacker.connect(receive_bytes=4096), reads=False)


@CASES.add("http2", is_ended=False)
@CASES.add("http1", is_ended=False)
def new_connections(attacker: Attacker) -> None:
    """Opens connections one after the other, and closes each at once, without a request."""
    attacker.open_and_close(is_raw=True)


@CASES.add("http1", is_ended=False)
def unknown_paths(attacker: Attacker) -> None:
    """Sends pipelined GET requests, each for another path that the server does not have."""
    paths = (b"GET /p%d HTTP/1.1\r\nhost: x\r\n\r\n" % number for number in itertools.count())
    attacker.flood(iter(lambda: b"".join(itertools.islice(paths, 1000)), b""))


@CASES.add("http1", least_s=3.0)
def half_heads(attacker: Attacker) -> None:
    """Sends 60 KB of a request's head on each of 500 connections, and never the end of the head."""
    attacker.hold(_HALF_HEADS, attacker.target.head() + b"x: " + b"y" * _HALF_HEAD_BYTES)


@CASES.add("json", is_ended=False)
def names(attacker: Attacker) -> None:
    """Sends requests that each have another model name, table name, host, request id, trace and user agent."""
    numbers = itertools.count()
    paths = itertools.cycle(
        (b"/v1/models/%s:lookup", b"/v1/models/%s/tables/%s:rows", b"/v2/models/%s/infer?%s=%s", b"/v1/models/%s")
    )
    body = attacker.target.body

    def request() -> bytes:
        name = b"n%d" % next(numbers)
        path = next(paths).replace(b"%s", name)
        lines = b"x-request-id: %s\r\ntraceparent: 00-%032x-%016x-01\r\nuser-agent: %s\r\n"
        head = b"POST %s HTTP/1.1\r\nhost: %s\r\n" % (path, name) + lines % (name, next(numbers), next(numbers), name)
        return head + b"content-length: %d\r\n\r\n" % len(body) + body

    attacker.flood(iter(lambda: b"".join(request() for _ in range(200)), b""))


@CASES.add("json", is_ended=False)
def metrics(attacker: Attacker) -> None:
    """Sends pipelined GET requests for the server's metrics."""
    attacker.flood(repeated(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n"))


@CASES.add("json", is_ended=False)
def searches(attacker: Attacker) -> None:
    """Sends searches of 256 rows for the 1000 nearest rows of each row."""
    document = json.dumps({"ids": list(range(256)), "k": 1000}).encode()
    target = attacker.target
    path = f"/v1/models/{target.model}/tables/{target.feature}:neighbors"
    attacker.flood(repeated(target.post(path, document, is_signed=False), 1))


def _bodies(name: str, what: str, body: Callable[[bytes], bytes], *lines: bytes, is_ended: bool = True) -> None:
    """Adds an attack that posts a body, made of the feature's name, on one connection, each after the answer before."""

    def attack(attacker: Attacker) -> None:
        request = attacker.target.whole(body(attacker.target.feature.encode()), *lines)
        conn = attacker.connect()
        while not attacker.is_over:
            if conn is None or conn.closed:
                conn = attacker.connect()
                continue
            answered = conn.statuses.total()
            conn.send([request], attacker.end_s)
            conn.answered(answered + 1, attacker.end_s)

    CASES.row(name, f"bodies {what}", attack, "json", is_ended=is_ended)


def _keys(feature: bytes) -> bytes:
    return b'{"features": {' + b"".join(b'"%06x":1,' % number for number in range(_JSON_BYTES // 11)) + b'"z": 1}}'


def _ids(begin: bytes, piece: bytes, end: bytes) -> Callable[[bytes], bytes]:
    """Returns a lookup of megabytes: pieces between a beginning and an end of a list of ids."""
    count = _JSON_BYTES // len(piece)
    return lambda feature: b'{"features": {"%s": ' % feature + begin + piece * count + end


_MEMBERS = zlib.compressobj(9, zlib.DEFLATED, 31).flush() * 50_000
_PAIRS = b"\\ud83d\\ude00"
_bodies("gzip_bomb", "of 60 KB that inflate to 60 MB", lambda f: gzipped_zeros(60), b"content-encoding: gzip")
_bodies("gzip_members", "of 50,000 empty gzip members", lambda f: _MEMBERS, b"content-encoding: gzip")
_bodies("json_keys", "of 4 MB with a key every 11 bytes", _keys)
_bodies("json_depth", "of 4 MB of opening brackets", _ids(b"", b"[", b""))
_bodies("json_digits", "with one number of 4 MB", _ids(b"[", b"9", b"]}}"))
_bodies("json_tokens", "of 4 MB of empty lists", _ids(b"[", b"[],", b"[]]}}"))
_bodies("json_strings", "with one string of 4 MB of escape sequences", _ids(b'["', b"\\u0041", b'"]}}'))
_bodies("json_surrogates", "with one string of 4 MB of surrogate pairs, to be quoted", _ids(b'["', _PAIRS, b'"]}}'))
# The answers would have hundreds of megabytes; those of short vectors are within the limit.
_bodies(
    "one_row",
    "that read one row a million times",
    lambda feature: b'{"features": {"%s": [1%s]}}' % (feature, b",1" * 999_999),
    is_ended=False,
)
