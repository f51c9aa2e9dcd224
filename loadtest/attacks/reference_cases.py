"""The attacks on the reference servers in Python, which answer status pages, administration and refused callers.

The victim asks for a model's status, which a reference server answers, too. The server has an --auth_config file, and
the target knows the token of a caller with all rights. Each attack uses four connections.
"""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable

from loadtest.attacks.attacker import Attacker, Cases
from loadtest.attacks.targets import DIM

CASES = Cases()
_CONNECTIONS = 4
_HALF_REQUESTS = 500
# Number of requests that an attack encodes in advance and repeats, and of requests in each chunk that it sends.
_DIFFERENT, _AT_ONCE = 500, 10
_JSON = b"content-type: application/json"


def _flood(attacker: Attacker, *requests: Callable[[int], bytes], is_admin: bool = False) -> None:
    """Sends pipelined requests on all connections and reads the answers.

    Args:
      requests: functions that encode one request each, from its number; the attack calls them in turn.
      is_admin: attacks the admin port.
    """
    makers = itertools.cycle(requests)
    encoded = [next(makers)(number) for number in range(_DIFFERENT)]
    # The requests are encoded before the attack connects, because the server closes silent ones after 1 s.
    chunks = [b"".join(encoded[at : at + _AT_ONCE]) for at in range(0, _DIFFERENT, _AT_ONCE)]
    conns = attacker.connections(_CONNECTIONS, is_admin=is_admin)
    senders = [threading.Thread(target=conn.send, args=(itertools.cycle(chunks), attacker.end_s)) for conn in conns]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join()


def _one_by_one(attacker: Attacker, request: bytes, *, is_admin: bool = False) -> None:
    """Sends a request on one new connection after another; waits until the server closes each."""
    while not attacker.is_over:
        conn = attacker.connect(is_admin=is_admin)
        if conn is not None:
            conn.send([request], attacker.end_s)
            conn.wait(attacker.end_s)
            conn.end()


def _model(attacker: Attacker) -> str:
    """Returns the path of the attacked model."""
    return f"/v1/models/{attacker.target.model}"


def _get(attacker: Attacker, path: str, *lines: bytes) -> Callable[[int], bytes]:
    request = attacker.target.get(path, *lines)
    return lambda number: request


def _post(attacker: Attacker, path: str, document: object, *lines: bytes) -> Callable[[int], bytes]:
    body = json.dumps(document).encode()
    request = attacker.target.post(path, body, *lines)
    return lambda number: request


def _refused(number: int) -> bytes:
    return b"authorization: Bearer wrong%d" % number


@CASES.add("reference")
def refused_changes(attacker: Attacker) -> None:
    """Sends changes of labels, pins and lists of models to the admin port, with wrong tokens."""
    target, model = attacker.target, _model(attacker)
    paths = [f"{model}/labels/attack", f"{model}:pin", "/v1/config:reload"]
    body = b'{"version": 1}'
    _flood(
        attacker,
        lambda number: target.post(paths[number % 3], body, _refused(number), is_signed=False),
        is_admin=True,
    )


@CASES.add("reference", is_ended=False)
def changes(attacker: Attacker) -> None:
    """Sends changes of labels, pins and lists of models to the admin port, valid and invalid, with a right token."""
    model = _model(attacker)
    _flood(
        attacker,
        _post(attacker, f"{model}/labels/attack", {"version": 1}),
        _post(attacker, f"{model}/labels/attack", {"version": 77}),
        _post(attacker, f"{model}/labels/attack", "no version"),
        _post(attacker, f"{model}:pin", {"version": 1}),
        _post(attacker, f"{model}:pin", {"version": 77}),
        _post(attacker, "/v1/config:reload", "no list"),
        is_admin=True,
    )


@CASES.add("reference", is_ended=False)
def upserts(attacker: Attacker) -> None:
    """Sends upserts to the admin port with a right token: two valid ones, of 1 and of 1,000 rows, and invalid ones."""
    path = f"{_model(attacker)}/tables/{attacker.target.feature}:upsert"
    many = {"ids": list(range(1, 1001)), "rows": [[1.0] * DIM] * 1000}
    _flood(
        attacker,
        _post(attacker, path, {"ids": [1], "rows": [[1.0] * DIM]}),
        _post(attacker, path, many),
        _post(attacker, path, {"ids": [1], "rows": [[1.0]]}),
        _post(attacker, path, {"ids": [1, 1], "rows": [[1.0] * DIM] * 2}),
        _post(attacker, path, "no rows"),
        is_admin=True,
    )


@CASES.add("reference", is_ended=False)
def admin_connections(attacker: Attacker) -> None:
    """Opens 500 connections to the admin port, and sends half of a request's head on each."""
    half = attacker.target.get("/healthz")[:-2]
    conns = attacker.connections(_HALF_REQUESTS, is_admin=True)
    for conn in conns:
        conn.send([half], attacker.end_s)
    attacker.until_closed(conns)


@CASES.add("reference")
def admin_heads(attacker: Attacker) -> None:
    """Sends requests to the admin port whose head never ends."""
    piece = attacker.target.get("/healthz")[:-2] + b"x: " + b"y" * 200_000
    _one_by_one(attacker, piece, is_admin=True)


@CASES.add("reference")
def sign_ins(attacker: Attacker) -> None:
    """Signs in to the console with wrong tokens."""
    post = attacker.target.post
    _flood(attacker, lambda n: post("/console/session", b'{"token": "wrong%d"}' % n, _JSON, is_signed=False))


@CASES.add("reference")
def wrong_tokens(attacker: Attacker) -> None:
    """Asks for a model's status, each time with another wrong token or another wrong cookie of the console."""
    target = attacker.target
    _flood(
        attacker,
        lambda number: target.get(target.path, _refused(number), is_signed=False),
        lambda n: target.get("/console/overview", b"cookie: embedding_console=w%d" % n, is_signed=False),
    )


@CASES.add("reference", is_ended=False)
def pages(attacker: Attacker) -> None:
    """Asks for the status page, the metrics, the API's description, the console, and pages of a table."""
    model = _model(attacker)
    tables = f"{model}/tables/{attacker.target.feature}"
    paths = ["/v1/statusz", "/metrics", "/openapi.json", "/docs", "/console", "/console/overview", f"{model}/metadata"]
    paths += [f"{tables}:hot?k=1000", f"{tables}:page?count=1000", f"{tables}:row?id=1"]
    _flood(attacker, *(_get(attacker, path) for path in paths))


# Computing the first map of a table loads libraries, and the server caches the map.
@CASES.add("reference", is_ended=False, cached_mib=64.0)
def comparisons(attacker: Attacker) -> None:
    """Asks for nearest rows, for the map of a table and its drift, and for the differences of two versions."""
    model = _model(attacker)
    table = f"{model}/tables/{attacker.target.feature}"
    paths = [f"{table}:projection", f"{table}:drift?from=1", f"{table}:keys", f"{model}/versions/1:diff?to=1"]
    nearest = _post(attacker, f"{table}:neighbors", {"ids": list(range(1, 33)), "k": 100})
    _flood(attacker, nearest, *(_get(attacker, path) for path in paths))


@CASES.add("reference")
def connects(attacker: Attacker) -> None:
    """Sends CONNECT requests whose bodies consist of requests, on new connections without end.

    A server that forwards them, and takes the body for requests, could send the answers to other clients.
    """
    target = attacker.target
    inner = target.get(target.path + "/versions/1") * 20
    request = target.post("localhost:80", inner).replace(b"POST", b"CONNECT", 1)
    _one_by_one(attacker, request)


@CASES.add("reference", is_ended=False)
def methods(attacker: Attacker) -> None:
    """Sends HEAD, OPTIONS, preflight and upgrade requests, and requests with long lists of codings and traces."""
    target, model = attacker.target, _model(attacker)
    get = target.get(model)
    members = b",".join(b"a%d=b" % number for number in range(5000))
    requests = [
        get.replace(b"GET", b"HEAD", 1),
        target.get(f"{model}:lookup", b"origin: http://a", b"access-control-request-method: POST").replace(
            b"GET", b"OPTIONS", 1
        ),
        target.get(model, b"connection: upgrade", b"upgrade: websocket", b"sec-websocket-version: 13"),
        target.get(model, b"connection: upgrade, http2-settings", b"upgrade: h2c", b"http2-settings: AAMAAABk"),
        target.get(model, b"traceparent: 00-" + b"1" * 32 + b"-" + b"2" * 16 + b"-01", b"tracestate: " + members),
        target.get(model, b"accept-encoding: " + b",".join([b"gzip;q=0.1"] * 5000)),
    ]
    _flood(attacker, lambda number: requests[number % len(requests)])


@CASES.add("reference")
def long_urls(attacker: Attacker) -> None:
    """Sends URLs of 50 KB: with thousands of parameters, of escapes, and of colons."""
    model = _model(attacker)
    page = f"{model}/tables/{attacker.target.feature}:page?"
    paths = [page + "a=1&" * 12_000, page + "a=%C3%A4&" * 5000, model + "%41" * 16_000, model + ":" * 50_000]
    _flood(attacker, *(_get(attacker, path) for path in paths))


@CASES.add("reference", is_ended=False)
def large_answers(attacker: Attacker) -> None:
    """Sends lookups of 8,000 rows for which the client accepts only a compressed answer."""
    document = {"features": {attacker.target.feature: [1] * 8_000}}
    accepted = b"accept-encoding: gzip, identity;q=0"
    _flood(attacker, _post(attacker, f"{_model(attacker)}:lookup", document, accepted))
