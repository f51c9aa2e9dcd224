"""Changes how a request is sent: its method, path, headers, compression and framing, not its meaning."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator
from dataclasses import replace

from loadtest.replay.requests import BINARY_HEADER, Request, framed

Dress = Callable[[Request], Request]

_ANY_HEADERS = (
    ("authorization", "Bearer token"),
    ("x-request-id", "given-by-the-client"),
    ("x-request-id", "not a valid id \t"),
    ("x-request-id", "x" * 300),
    ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
    ("traceparent", "00-0-0-0"),
    ("tracestate", "vendor=value"),
    ("baggage", "a=b"),
    ("user-agent", "curl/8.5.0"),
    ("x-tensor-encoding", "content"),
    ("x-tensor-encoding", "nothing"),
    ("x-forwarded-for", "10.0.0.1, 10.0.0.2"),
    ("accept", "text/plain"),
    ("accept-language", "de"),
    ("cookie", "a=b; c=d"),
    ("x-unknown", "\u00e9"),
    ("cache-control", "no-cache"),
)
_HTTP_HEADERS = (
    *(("content-type", value) for value in ("application/json", "text/plain", "application/json; charset=latin-1", "")),
    ("content-type", "application/octet-stream"),
    *(("accept-encoding", value) for value in ("gzip", "br, gzip;q=0.5", "gzip;q=0", "identity", "*", "deflate", "")),
    *(("content-encoding", value) for value in ("gzip", "br", "identity", "GZIP", "gzip, gzip", "deflate", "")),
    ("expect", "100-continue"),
    ("expect", "200-ok"),
    ("connection", "close"),
    ("host", "example.org"),
    ("origin", "https://example.org"),
    ("if-none-match", "*"),
    ("range", "bytes=0-3"),
    *((BINARY_HEADER, value) for value in ("0", "1", "-1", "x", "99999999", "")),
)
_GRPC_HEADERS = (
    *(("grpc-encoding", value) for value in ("identity", "gzip", "deflate", "snappy")),
    *(("grpc-accept-encoding", value) for value in ("gzip", "identity,gzip", "deflate", "nothing")),
    *(("grpc-timeout", value) for value in ("1H", "999999999S", "x", "-1S", "1", "123456789S")),
    *(("content-type", value) for value in ("application/grpc+proto", "application/grpc-web", "application/json", "")),
    ("te", ""),
    ("binary-bin", "AAEC"),
    ("binary-bin", "***"),
    ("grpc-previous-rpc-attempts", "1"),
)
_METHODS = ("GET", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS")
_PATHS: tuple[Callable[[str], str], ...] = (
    lambda path: path + "?pretty=true",
    lambda path: path + "/",
    lambda path: path + "x",
    lambda path: path.replace("/models", "//models", 1),
    lambda path: path.replace("/v1", "/v3", 1),
    lambda path: path.upper(),
    lambda path: path.replace("e", "%65", 1),
    lambda path: path.replace(":", "%3A"),
    lambda path: path + "%00",
    lambda path: path.replace("/models/", "/models/%C3%A9", 1),
    lambda path: path.replace("/models/", "/models/../models/", 1),
)


def dresses(form: str) -> Iterator[tuple[str, Dress]]:
    """Yields all dresses for requests of a form, with a text that names each."""
    is_grpc = form.startswith("grpc")
    for name, value in _ANY_HEADERS + (_GRPC_HEADERS if is_grpc else _HTTP_HEADERS):
        if not (is_grpc and name == "accept" or value == "\u00e9" and is_grpc):
            yield f"{name}: {value[:40]}", lambda request, name=name, value=value: _with(request, (name, value))
    if is_grpc:
        yield from _framings()
        return
    for method in _METHODS:
        yield method, lambda request, method=method: replace(request, method=method)
    for number, change in enumerate(_PATHS):
        yield f"path {number}", lambda request, change=change: replace(request, path=change(request.path))
    yield "gzip body", _zipped
    yield "gzip body and answer", lambda request: _with(_zipped(request), ("accept-encoding", "gzip"))
    yield "gzip body twice", lambda request: _with(_zipped(_zipped(request)), ("content-encoding", "gzip, gzip"))
    yield "half a gzip body", lambda request: _cut(_zipped(request))
    yield "more after a gzip body", lambda request: replace(_zipped(request), body=_zipped(request).body + b"more")
    yield (
        "two gzip members",
        lambda request: replace(_zipped(request), body=gzip.compress(b" ", mtime=0) + _zipped(request).body),
    )
    yield "gzip bomb", lambda request: replace(_zipped(request), body=gzip.compress(bytes(1 << 24), mtime=0))
    yield "chunked", _chunked
    yield "no body", lambda request: replace(request, body=b"")
    yield "too large", lambda request: replace(request, body=request.body + b" " * (1 << 18))
    yield "byte order mark", lambda request: replace(request, body=b"\xef\xbb\xbf" + request.body)
    yield "many headers", lambda request: _with(request, *((f"x-{i}", "y" * 50) for i in range(60)))


def _framings() -> Iterator[tuple[str, Dress]]:
    yield "gzip message", _zipped_message
    yield "gzip message and answer", lambda request: _with(_zipped_message(request), ("grpc-accept-encoding", "gzip"))
    yield "compressed flag without a coding", lambda request: replace(_zipped_message(request), headers=request.headers)
    yield (
        "half a gzip message",
        lambda request: _with(
            replace(request, body=framed(gzip.compress(request.body[5:], mtime=0)[:-9], 1)), ("grpc-encoding", "gzip")
        ),
    )
    yield (
        "gzip bomb",
        lambda request: _with(
            replace(request, body=framed(gzip.compress(bytes(1 << 24), mtime=0), 1)), ("grpc-encoding", "gzip")
        ),
    )
    yield "two messages", lambda request: replace(request, body=request.body * 2)
    yield "no message", lambda request: replace(request, body=b"")
    yield "empty message", lambda request: replace(request, body=framed(b""))
    yield "half a prefix", lambda request: replace(request, body=request.body[:3])
    yield "half a message", _cut
    yield "flag 2", lambda request: replace(request, body=framed(request.body[5:], 2))
    yield "more after the message", lambda request: replace(request, body=request.body + b"mor")
    yield "too large", lambda request: replace(request, body=framed(bytes(1 << 18)))
    yield "unknown method", lambda request: replace(request, path=request.path + "x")
    yield "unknown service", lambda request: replace(request, path="/no.Service/Call")
    yield "path without a method", lambda request: replace(request, path="/nothing")


def _with(request: Request, *more: tuple[str, str]) -> Request:
    names = {name.lower() for name, _ in more}
    kept = tuple(pair for pair in request.headers if pair[0].lower() not in names)
    return replace(request, headers=kept + more)


def _zipped(request: Request) -> Request:
    return _with(replace(request, body=gzip.compress(request.body, mtime=0)), ("content-encoding", "gzip"))


def _zipped_message(request: Request) -> Request:
    body = framed(gzip.compress(request.body[5:], mtime=0), 1)
    return _with(replace(request, body=body), ("grpc-encoding", "gzip"))


def _cut(request: Request) -> Request:
    return replace(request, body=request.body[: len(request.body) // 2])


def _chunked(request: Request) -> Request:
    halves = [half for half in (request.body[:10], request.body[10:]) if half]
    body = b"".join(b"%x\r\n%s\r\n" % (len(half), half) for half in [*halves, b""])
    return _with(replace(request, body=body), ("Transfer-Encoding", "chunked"))
