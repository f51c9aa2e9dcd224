"""Keeps the sessions of the console: a browser shows a caller's token once, and a cookie from then on.

A session holds the digest of its token, and each request looks the digest up in the current list of callers. A token
that is taken back ends its sessions at once.
"""

from __future__ import annotations

import hmac
import secrets
import threading
import time
from collections.abc import Callable
from hashlib import sha256
from typing import NamedTuple

from service.access.callers import Callers, Grant, digest_of
from service.errors import PermissionDenied, Unauthenticated

# Name of the cookie whose value is the secret of a browser's console session.
COOKIE = "embedding_console"
# Header with the console session's CSRF token, which every request of the session needs, except reads.
CSRF_HEADER = "X-Console-Csrf"
# Maximum number of open console sessions; one more session ends the oldest one.
MAX_SESSIONS = 1000
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


class Sessions:
    """The open sessions of the console, in this process. Concurrency: any thread."""

    def __init__(self, callers: Callers, clock: Callable[[], float] = time.monotonic) -> None:
        self._callers = callers
        self._clock = clock
        self._lock = threading.Lock()
        # Digest of a console session's cookie -> the session, oldest first; with digests, a memory dump does not hold a
        # cookie that works.
        self._open: dict[bytes, Session] = {}

    def open(self, token: str) -> tuple[str, Session]:
        """Opens a session for the caller of a token; returns the cookie's value and the session.

        Raises:
          Unauthenticated: the token belongs to no caller.
        """
        digest = self._digest_of(token)
        cookie = secrets.token_urlsafe(32)
        session = Session(digest, secrets.token_urlsafe(32), self._clock() + SESSION_S)
        with self._lock:
            self._open = {key: one for key, one in self._open.items() if one.ends_s > self._clock()}
            while len(self._open) >= MAX_SESSIONS:
                del self._open[next(iter(self._open))]
            self._open[_key(cookie)] = session
        return cookie, session

    def _digest_of(self, token: str) -> bytes:
        data = token.encode("utf-8", "replace")
        digest = digest_of(data)
        if len(data) > _MAX_TOKEN_BYTES or self._callers.of_digest(digest) is None:
            raise Unauthenticated("This token belongs to no caller of --auth_config.")
        return digest

    def find(self, cookie: str) -> tuple[Session, Grant] | None:
        """Returns the session of a cookie and its caller's grant; None if the session ended or the caller is gone."""
        session = self._open.get(_key(cookie))
        if session is None or session.ends_s <= self._clock():
            return None
        grant = self._callers.of_digest(session.token_digest)
        return None if grant is None else (session, grant)

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
            while len(known) >= MAX_SESSIONS:
                del known[next(iter(known))]
            self._callers.sessions = {**known, credential: (found[0].token_digest, found[0].ends_s)}
        self._callers.on_change()

    def hide_from_core(self) -> None:
        """Makes the native core forget sessions that are over."""
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
        self._end(cookie)

    def _end(self, cookie: str) -> None:
        with self._lock:
            self._open.pop(_key(cookie), None)


def _credential(cookie: str, csrf: str) -> bytes:
    # native/src/edge/access.rs computes the same.
    return sha256(f"{cookie}\n{csrf}".encode("utf-8", "replace")).digest()


def _key(cookie: str) -> bytes:
    return sha256(cookie.encode("utf-8", "replace")).digest()
