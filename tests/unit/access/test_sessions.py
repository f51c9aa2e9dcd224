"""The console's sessions: a cookie gives its caller's rights, until it ends."""

from __future__ import annotations

from hashlib import sha256

import pytest

from service.access.callers import Caller, Callers, Rule
from service.access.sessions import MAX_SESSIONS, SESSION_S, Sessions
from service.errors import PermissionDenied, Unauthenticated
from tests.conftest import Clock

TOKEN = "a-token-of-the-reader"
READER = Caller("reader", (Rule(("m",), frozenset({"metadata"})),), (sha256(TOKEN.encode()).digest(),))


@pytest.fixture
def callers() -> Callers:
    return Callers([READER], ())


@pytest.fixture
def sessions(callers: Callers, clock: Clock) -> Sessions:
    return Sessions(callers, clock)


@pytest.mark.parametrize("token", ["", "wrong", TOKEN + "x", TOKEN * 1000, "\udcff"])
def test_a_wrong_token_opens_nothing(sessions: Sessions, token: str) -> None:
    with pytest.raises(Unauthenticated):
        sessions.open(token)


def test_a_cookie_reads_and_its_csrf_token_writes(sessions: Sessions) -> None:
    cookie, session = sessions.open(f" {TOKEN}\n")
    read = sessions.grant(cookie, None, is_read=True)
    assert read is not None and read.name == "reader" and read.rights("m") == {"metadata"}
    assert sessions.grant(cookie, session.csrf, is_read=False) is read
    for wrong in (None, "", session.csrf + "x", cookie, "\udcff"):
        with pytest.raises(PermissionDenied):
            sessions.grant(cookie, wrong, is_read=False)
    assert sessions.grant(cookie + "x", session.csrf, is_read=True) is None


def test_a_session_ends_in_time_by_sign_out_and_with_its_token(
    sessions: Sessions, callers: Callers, clock: Clock
) -> None:
    first, second, third = (sessions.open(TOKEN)[0] for _ in range(3))
    sessions.close(first)
    assert sessions.find(first) is None and sessions.find(second) is not None
    callers.replace([Caller("reader", READER.rules, (b"another",))], ())
    assert sessions.find(second) is None
    callers.replace([READER], ())
    assert sessions.find(second) is not None
    clock.now_s += SESSION_S
    assert sessions.find(second) is None and sessions.grant(third, None, is_read=True) is None


def test_one_session_too_many_ends_the_oldest(sessions: Sessions) -> None:
    cookies = [sessions.open(TOKEN)[0] for _ in range(MAX_SESSIONS + 1)]
    assert sessions.find(cookies[0]) is None
    assert all(sessions.find(cookie) is not None for cookie in cookies[1:])
