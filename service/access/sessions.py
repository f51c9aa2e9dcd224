"""Opens and finds the sessions of the console: a browser shows a caller's token once, and a signed cookie from then on.

A cookie holds the session's end, a random number, and a fingerprint of the caller's token, so that each server with the
same secret knows the session. The fingerprint is an HMAC, so without the secret nobody can use it to guess tokens. Each
request looks the fingerprint up among the tokens of the current list of callers, so removing a token ends its sessions
on every server.
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

from service.access.callers import Callers, Grant, digest_of
from service.artifact.files import read_plain_file
from service.errors import PermissionDenied, Unauthenticated

# Name of the cookie whose value is the secret of a browser's console session.
COOKIE = "embedding_console"
# Header with the console session's CSRF token, which every request of the session needs, except reads.
CSRF_HEADER = "X-Console-Csrf"
# Maximum number of sessions that the native core knows; one more makes it ask for the oldest one again.
MAX_SHOWN = 1000
# Lifetime in seconds of a browser's session in the admin console, counted from its sign-in.
SESSION_S = 43_200
_MAX_TOKEN_BYTES = 4096


class Session(NamedTuple):
    """One browser that is signed in to the console.

    ends_s: on the clock of Sessions. csrf: value that CSRF_HEADER must have.
    """

    token_digest: bytes
    csrf: str
    ends_s: float


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
        data = read_plain_file(path, _MAX_FILE_BYTES)
    except OSError as error:
        raise SecretError(str(error.strerror)) from error
    found = tuple(line.strip() for line in data.splitlines() if line.strip())
    if not found:
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


class Sessions:
    """The sessions of the console, whose whole state is in their cookies. Concurrency: any thread.

    Closing a session ends it on this server and in its browser. Other servers accept a copy of the cookie until its
    end.

    Args:
      found: the secrets; the first one signs cookies. Cookies that the others signed are valid, too.
    """

    def __init__(self, callers: Callers, found: Sequence[bytes], wall_clock: Callable[[], float] = time.time) -> None:
        self._callers = callers
        self._clock = wall_clock
        self._lock = threading.Lock()
        self._keys = tuple(map(_Keys.of, found))
        # Random number of a session that was closed before its end -> the session's end, in the order of closing.
        self._closed: dict[bytes, float] = {}
        # The number of the list of callers (its generation), and for that list a dict for each signing key: fingerprint
        # of a token -> the token's SHA-256.
        self._digests: tuple[int, tuple[dict[bytes, bytes], ...]] = (-1, ())

    def open(self, token: str) -> tuple[str, Session]:
        """Opens a session for the caller of a token; returns the signed cookie, too. Raises Unauthenticated."""
        data = token.encode("utf-8", "replace")
        digest = digest_of(data)
        if len(data) > _MAX_TOKEN_BYTES or self._callers.of_digest(digest) is None:
            raise Unauthenticated("This token belongs to no caller of --auth_config.")
        keys = self._keys[0]
        ends_s = int(self._clock()) + SESSION_S
        body = _BODY.pack(_FORMAT, ends_s, secrets.token_bytes(16), _mac(keys.token, digest))
        cookie = urlsafe_b64encode(body + _mac(keys.cookie, body)).decode()
        return cookie, Session(digest, _csrf(keys, body), float(ends_s))

    def find(self, cookie: str) -> tuple[Session, Grant] | None:
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

    def grant(self, cookie: str, csrf: str | None, *, is_read: bool) -> Grant | None:
        """Returns the grant of a request with a session's cookie; None if there is no such session.

        Args:
          csrf: value of CSRF_HEADER; None without that header. is_read: the request is a GET or a HEAD.

        Raises:
          PermissionDenied: the request is no read, and has not the session's CSRF token.
        """
        found = self.find(cookie)
        if found is None:
            return None
        session, grant = found
        if not is_read and not hmac.compare_digest((csrf or "").encode("utf-8", "replace"), session.csrf.encode()):
            raise PermissionDenied(f"A request with a session's cookie needs the session's token in {CSRF_HEADER}.")
        return grant

    def show_core(self, cookie: str, csrf: str) -> None:
        """Tells the native core of a session, so that it answers its data requests.

        The session must be open, and the CSRF token be the session's.
        """
        found = self.find(cookie)
        credential = _credential(cookie, csrf)
        with self._lock:
            if found is None or credential in self._callers.sessions:
                return
            now_s = self._clock()
            known = {key: one for key, one in self._callers.sessions.items() if one[1] > now_s}
            while len(known) >= MAX_SHOWN:
                del known[next(iter(known))]
            self._callers.sessions = {**known, credential: (found[0].token_digest, found[0].ends_s)}
        self._callers.on_change()

    def hide_from_core(self) -> None:
        now_s = self._clock()
        with self._lock:
            known = {key: one for key, one in self._callers.sessions.items() if one[1] > now_s}
            if len(known) == len(self._callers.sessions):
                return
            self._callers.sessions = known
        self._callers.on_change()

    def close(self, cookie: str) -> None:
        if (found := self.find(cookie)) is not None:
            credential = _credential(cookie, found[0].csrf)
            with self._lock:
                is_known = self._callers.sessions.pop(credential, None) is not None
            if is_known:
                self._callers.on_change()
        read = self._read(cookie)
        if read is None:
            return
        _, ends_s, number, _ = _BODY.unpack(read[1])
        now_s = self._clock()
        with self._lock:
            closed = {one: end_s for one, end_s in self._closed.items() if end_s > now_s}
            if ends_s > now_s:
                closed[number] = ends_s
            while len(closed) > MAX_CLOSED:
                del closed[next(iter(closed))]
            self._closed = closed

    def _read(self, cookie: str) -> tuple[int, bytes] | None:
        """Returns the index of the key that signed a cookie, and the signed bytes; None if no key did."""
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


def _credential(cookie: str, csrf: str) -> bytes:
    # native/src/edge/access.rs computes the same.
    return sha256(f"{cookie}\n{csrf}".encode("utf-8", "replace")).digest()


def _csrf(keys: _Keys, body: bytes) -> str:
    return urlsafe_b64encode(_mac(keys.csrf, body)).decode()


def _mac(key: bytes, data: bytes) -> bytes:
    return hmac.digest(key, data, sha256)
