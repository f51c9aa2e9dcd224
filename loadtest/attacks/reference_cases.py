"""The attacks on the reference servers in Python, which answer status pages, administration and refused callers.

The victim asks for a model's status, which a reference server answers, too. The server has an --auth_config file, and
the target knows the token of a caller with all rights. Each attack uses four connections.
"""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable
from typing import Any

from loadtest.attacks.attacker import Attacker, Cases
from loadtest.attacks.targets import DIM, Target

CASES = Cases()
_CONNECTIONS = 4
_HALF_REQUESTS = 500
# Number of requests that an attack encodes in advance and repeats, and of requests in each chunk that it sends.
_DIFFERENT, _AT_ONCE = 500, 10
_JSON = b"content-type: application/json"

# Encodes a request to a target, from the request's number.
Request = Callable[[Target, int], bytes]


def _flood(name: str, what: str, *requests: Request, is_admin: bool = False, **more: Any) -> None:
    """Adds an attack that sends pipelined requests on all connections, of each kind in turn, and reads the answers.

    Args:
      is_admin: attacks the admin port.
    """

    def attack(attacker: Attacker) -> None:
        makers = itertools.cycle(requests)
        encoded = [next(makers)(attacker.target, number) for number in range(_DIFFERENT)]
        # The requests are encoded before the attack connects, because the server closes silent ones after 1 s.
        chunks = [b"".join(encoded[at : at + _AT_ONCE]) for at in range(0, _DIFFERENT, _AT_ONCE)]
        conns = attacker.connections(_CONNECTIONS, is_admin=is_admin)
        senders = [threading.Thread(target=conn.send, args=(itertools.cycle(chunks), attacker.end_s)) for conn in conns]
        for sender in senders:
            sender.start()
        for sender in senders:
            sender.join()

    CASES.row(name, what, attack, "reference", **more)


def _path(target: Target, path: str) -> str:
    model = f"/v1/models/{target.model}"
    return path.format(model=model, table=f"{model}/tables/{target.feature}")


def _get(path: str, *lines: bytes, method: bytes = b"GET") -> Request:
    return lambda target, number: target.get(_path(target, path), *lines).replace(b"GET", method, 1)


def _post(path: str, document: object) -> Request:
    body = json.dumps(document).encode()
    return lambda target, number: target.post(_path(target, path), body)


def _refused(number: int) -> bytes:
    return b"authorization: Bearer wrong%d" % number


_CHANGED = ("{model}/labels/attack", "{model}:pin", "/v1/config:reload")
_flood(
    "refused_changes",
    "Sends changes of labels, pins and lists of models to the admin port, with wrong tokens.",
    lambda t, n: t.post(_path(t, _CHANGED[n % 3]), b'{"version": 1}', _refused(n), is_signed=False),
    is_admin=True,
)
_flood(
    "changes",
    "Sends changes of labels, pins and lists of models to the admin port, valid and invalid, with a right token.",
    *(_post(path, {"version": version}) for path in _CHANGED[:2] for version in (1, 77)),
    *(_post(_CHANGED[0], "no version"), _post(_CHANGED[2], "no list")),
    is_admin=True,
    is_ended=False,
)
_flood(
    "upserts",
    "Sends upserts to the admin port with a right token: two valid ones, of 1 and of 1,000 rows, and invalid ones.",
    *(
        _post("{table}:upsert", document)
        for document in (
            {"ids": [1], "rows": [[1.0] * DIM]},
            {"ids": list(range(1, 1001)), "rows": [[1.0] * DIM] * 1000},
            {"ids": [1], "rows": [[1.0]]},
            {"ids": [1, 1], "rows": [[1.0] * DIM] * 2},
            "no rows",
        )
    ),
    is_admin=True,
    is_ended=False,
)
_flood(
    "sign_ins",
    "Signs in to the console with wrong tokens.",
    lambda t, n: t.post("/console/session", b'{"token": "wrong%d"}' % n, _JSON, is_signed=False),
)
_flood(
    "wrong_tokens",
    "Asks for a model's status, each time with another wrong token or another wrong cookie of the console.",
    lambda t, n: t.get(t.path, _refused(n), is_signed=False),
    lambda t, n: t.get("/console/overview", b"cookie: embedding_console=w%d" % n, is_signed=False),
)
_flood(
    "pages",
    "Asks for the status page, the metrics, the API's description, the console, and pages of a table.",
    *map(_get, ("/v1/statusz", "/metrics", "/openapi.json", "/docs", "/console", "/console/overview")),
    *map(_get, ("{model}/metadata", "{table}:hot?k=1000", "{table}:page?count=1000", "{table}:row?id=1")),
    is_ended=False,
)
_flood(
    "comparisons",
    "Asks for nearest rows, for the map of a table and its drift, and for the differences of two versions.",
    _post("{table}:neighbors", {"ids": list(range(1, 33)), "k": 100}),
    *map(_get, ("{table}:projection", "{table}:drift?from=1", "{table}:keys", "{model}/versions/1:diff?to=1")),
    is_ended=False,
    # Computing the first map of a table loads libraries, and the server caches the map.
    cached_mib=64.0,
)
_UPGRADE = b"connection: upgrade"
_TRACED = (b"traceparent: 00-" + b"1" * 32 + b"-" + b"2" * 16 + b"-01",)
_TRACED += (b"tracestate: " + b",".join(b"a%d=b" % number for number in range(5000)),)
_flood(
    "methods",
    "Sends HEAD, OPTIONS, preflight and upgrade requests, and requests with long lists of codings and traces.",
    _get("{model}", method=b"HEAD"),
    _get("{model}:lookup", b"origin: http://a", b"access-control-request-method: POST", method=b"OPTIONS"),
    _get("{model}", _UPGRADE, b"upgrade: websocket", b"sec-websocket-version: 13"),
    _get("{model}", _UPGRADE + b", http2-settings", b"upgrade: h2c", b"http2-settings: AAMAAABk"),
    _get("{model}", *_TRACED),
    _get("{model}", b"accept-encoding: " + b",".join([b"gzip;q=0.1"] * 5000)),
    is_ended=False,
)
_flood(
    "long_urls",
    "Sends URLs of 50 KB: with thousands of parameters, of escapes, and of colons.",
    *map(_get, ("{table}:page?" + "a=1&" * 12_000, "{table}:page?" + "a=%C3%A4&" * 5000)),
    *map(_get, ("{model}" + "%41" * 16_000, "{model}" + ":" * 50_000)),
)
_flood(
    "large_answers",
    "Sends lookups of 8,000 rows for which the client accepts only a compressed answer.",
    lambda t, n: t.post(
        _path(t, "{model}:lookup"),
        json.dumps({"features": {t.feature: [1] * 8_000}}).encode(),
        b"accept-encoding: gzip, identity;q=0",
    ),
    is_ended=False,
)


@CASES.add("reference", is_ended=False)
def admin_connections(attacker: Attacker) -> None:
    """Opens 500 connections to the admin port, and sends half of a request's head on each."""
    attacker.hold(_HALF_REQUESTS, attacker.target.get("/healthz")[:-2], is_admin=True)


@CASES.add("reference")
def admin_heads(attacker: Attacker) -> None:
    """Sends requests to the admin port whose head never ends."""
    attacker.again_and_again(attacker.target.get("/healthz")[:-2] + b"x: " + b"y" * 200_000, is_admin=True)


@CASES.add("reference")
def connects(attacker: Attacker) -> None:
    """Sends CONNECT requests whose bodies consist of requests, on new connections without end.

    A server that forwards them, and takes the body for requests, could send the answers to other clients.
    """
    target = attacker.target
    inner = target.get(target.path + "/versions/1") * 20
    attacker.again_and_again(target.post("localhost:80", inner).replace(b"POST", b"CONNECT", 1))
