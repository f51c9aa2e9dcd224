"""Keeps sessions of the console in signed cookies, so that each server with the same secret knows them.

A cookie holds the session's end, a random number, and a fingerprint of the caller's token. The fingerprint is an HMAC,
so without the secret nobody can use it to guess tokens. Each request looks the fingerprint up among the tokens of the
current list of callers, so removing a token ends its sessions on every server.
"""

from __future__ import annotations

import binascii
import hmac
import secrets
import struct
import threading
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from service.access.callers import Callers, Grant
from service.access.sessions import SESSION_S, Session, Sessions

# Minimum length of the --console_secret_file's secret: nobody can guess a random text of 32 characters.
MIN_SECRET_CHARS = 32
# Maximal number of sessions, closed before their end, whose cookies this server remembers and refuses.
MAX_CLOSED = 100_000
_MAX_FILE_BYTES = 64 << 10
# Content of a session's cookie, before its signature: version of this format, end of the session in seconds since 1970,
# random number, fingerprint of the caller's token.
_BODY = struct.Struct(">BQ16s32s")
_FORMAT = 1
_MAC_BYTES = 32
_COOKIE_CHARS = 4 * -(-(_BODY.size + _MAC_BYTES) // 3)


class SecretError(ValueError):
    """The error that the --console_secret_file can not be used; the error text contains no secret."""


def read_secrets(path: Path) -> tuple[bytes, ...]:
    """Reads secrets, one per line; raises SecretError if the file is unreadable, empty or too large, or a secret is too
    short.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise SecretError(str(error.strerror)) from error
    found = tuple(line.strip() for line in data.splitlines() if line.strip())
    if len(data) > _MAX_FILE_BYTES or not found:
        raise SecretError("expected a secret, or some, one a line")
    if any(len(one) < MIN_SECRET_CHARS for one in found):
        raise SecretError(f"a secret has fewer than {MIN_SECRET_CHARS} characters")
    return found


class _Keys(NamedTuple):
    """Keys derived from one secret, one for each use, so that an HMAC made for one use is invalid for another."""

    cookie: bytes
    token: bytes
    csrf: bytes

    @staticmethod
    def of(secret: bytes) -> _Keys:
        return _Keys(*(_mac(secret, b"embedding-server console 1 " + use) for use in (b"cookie", b"token", b"csrf")))


class SignedSessions(Sessions):
    """Sessions whose whole state is in their cookies, so that no server keeps sessions. Concurrency: any thread.

    Closing a session ends it on this server and in its browser. Other servers accept a copy of the cookie until its
    end.

    Args:
      found: the secrets; the first one signs cookies. Cookies that the others signed are valid, too.
    """

    def __init__(self, callers: Callers, found: Sequence[bytes], wall_clock: Callable[[], float] = time.time) -> None:
        super().__init__(callers, wall_clock)
        self._keys = tuple(map(_Keys.of, found))
        self._closing = threading.Lock()
        # Random number of a session that was closed before its end -> the session's end, in the order of closing.
        self._closed: dict[bytes, float] = {}
        # The number of the list of callers (its generation), and for that list a dict for each signing key: fingerprint
        # of a token -> the token's SHA-256.
        self._digests: tuple[int, tuple[dict[bytes, bytes], ...]] = (-1, ())

    def open(self, token: str) -> tuple[str, Session]:
        """Opens a console session for the caller of a token; returns the signed cookie and the session."""
        digest = self._digest_of(token)
        keys = self._keys[0]
        ends_s = int(self._clock()) + SESSION_S
        body = _BODY.pack(_FORMAT, ends_s, secrets.token_bytes(16), _mac(keys.token, digest))
        cookie = urlsafe_b64encode(body + _mac(keys.cookie, body)).decode()
        return cookie, Session(digest, _csrf(keys, body), float(ends_s))

    def find(self, cookie: str) -> tuple[Session, Grant] | None:
        """Returns the session that a signed cookie holds, and the grant of its caller; None if the session is over or
        the cookie is invalid.
        """
        read = self._read(cookie)
        if read is None:
            return None
        place, body = read
        version, ends_s, number, fingerprint = _BODY.unpack(body)
        if version != _FORMAT or ends_s <= self._clock() or number in self._closed:
            return None
        digest = self._digests_now()[place].get(fingerprint)
        grant = None if digest is None else self._callers.of_digest(digest)
        if digest is None or grant is None:
            return None
        return Session(digest, _csrf(self._keys[place], body), float(ends_s)), grant

    def _end(self, cookie: str) -> None:
        read = self._read(cookie)
        if read is None:
            return
        _, ends_s, number, _ = _BODY.unpack(read[1])
        now_s = self._clock()
        with self._closing:
            closed = {one: end_s for one, end_s in self._closed.items() if end_s > now_s}
            if ends_s > now_s:
                closed[number] = ends_s
            while len(closed) > MAX_CLOSED:
                del closed[next(iter(closed))]
            self._closed = closed

    def _read(self, cookie: str) -> tuple[int, bytes] | None:
        """Returns the index of the key that signed a session's cookie, and the signed bytes; None if no key signed the
        text.
        """
        if len(cookie) != _COOKIE_CHARS or not cookie.isascii():
            return None
        try:
            data = urlsafe_b64decode(cookie)
        except (binascii.Error, ValueError):
            return None
        body, mac = data[: _BODY.size], data[_BODY.size :]
        if len(data) != _BODY.size + _MAC_BYTES:
            return None
        for place, keys in enumerate(self._keys):
            if hmac.compare_digest(_mac(keys.cookie, body), mac):
                return place, body
        return None

    def _digests_now(self) -> tuple[dict[bytes, bytes], ...]:
        # The generation of the list of callers is read before the list: if a reload replaces the list in between, the
        # result is stored under the old generation, and the next request computes it again.
        generation = self._callers.generation
        if self._digests[0] != generation:
            digests = [digest for caller in self._callers.listed for digest in caller.digests]
            found = tuple({_mac(keys.token, digest): digest for digest in digests} for keys in self._keys)
            self._digests = generation, found
            return found
        return self._digests[1]


def _csrf(keys: _Keys, body: bytes) -> str:
    return urlsafe_b64encode(_mac(keys.csrf, body)).decode()


def _mac(key: bytes, data: bytes) -> bytes:
    return hmac.digest(key, data, sha256)
