"""A cookie gives its caller's rights until it ends, on each server with the secret."""

from __future__ import annotations

import os
from base64 import urlsafe_b64decode, urlsafe_b64encode
from hashlib import sha256
from pathlib import Path

import pytest

from service.access.access import create_access
from service.access.callers import Caller, Callers, Rule
from service.access.sessions import (
    MAX_CLOSED,
    MAX_SHOWN,
    SESSION_S,
    SecretError,
    Sessions,
    read_secrets,
)
from service.configuration.settings import StartError
from service.control.engine import Engine
from service.errors import PermissionDenied, Unauthenticated
from service.observe.metrics import Metrics
from service.versions.registry import Registry
from tests.conftest import Clock

TOKEN, OTHER = "a-token-of-the-reader", "a-token-of-another"
SECRETS = [bytes([65 + at]) * 32 for at in range(3)]


def caller(name: str, token: str) -> Caller:
    return Caller(name, (Rule(("m",), frozenset({"metadata"})),), (sha256(token.encode()).digest(),))


READER, ANOTHER = caller("reader", TOKEN), caller("another", OTHER)


def server(clock: Clock, *secrets: bytes, callers: Callers | None = None) -> Sessions:
    """Returns the sessions of one replica, with its own list of callers."""
    return Sessions(callers or Callers([READER, ANOTHER], ()), secrets or SECRETS[:1], clock)


@pytest.fixture
def callers() -> Callers:
    return Callers([READER, ANOTHER], ())


@pytest.fixture
def sessions(callers: Callers, clock: Clock) -> Sessions:
    return server(clock, callers=callers)


@pytest.mark.parametrize("token", ["", "wrong", TOKEN + "x", TOKEN * 1000, "\udcff"])
def test_a_wrong_token_opens_nothing(sessions: Sessions, token: str) -> None:
    with pytest.raises(Unauthenticated):
        sessions.open(token)


def test_a_cookie_reads_and_its_csrf_token_writes(sessions: Sessions) -> None:
    cookie, session = sessions.open(f" {TOKEN}\n")
    read = sessions.grant(cookie, None, is_read=True)
    assert read is not None and read.name == "reader" and read.rights("m") == {"metadata"}
    assert sessions.grant(cookie, session.csrf, is_read=False) == read
    for wrong in (None, "", session.csrf + "x", cookie, "\udcff", sessions.open(TOKEN)[1].csrf):
        with pytest.raises(PermissionDenied):
            sessions.grant(cookie, wrong, is_read=False)
    assert sessions.grant(cookie + "x", session.csrf, is_read=True) is None


def test_a_session_ends_in_time_by_sign_out_and_with_its_token(
    sessions: Sessions, callers: Callers, clock: Clock
) -> None:
    first, second, third = (sessions.open(TOKEN)[0] for _ in range(3))
    sessions.close(first)
    assert sessions.find(first) is None and sessions.find(second) is not None
    callers.replace([ANOTHER], ())
    assert sessions.find(second) is None
    callers.replace([ANOTHER, READER], ())
    found = sessions.find(second)
    assert found is not None and found[1].name == "reader" and sessions.find(first) is None
    clock.now_s += SESSION_S - 1
    assert sessions.find(second) is not None
    clock.now_s += 1
    assert sessions.find(second) is None and sessions.grant(third, None, is_read=True) is None


def test_the_core_knows_the_newest_sessions(sessions: Sessions, callers: Callers) -> None:
    opened = [sessions.open(TOKEN) for _ in range(MAX_SHOWN + 1)]
    for cookie, session in opened[:-1]:
        sessions.show_core(cookie, session.csrf)
    oldest = next(iter(callers.sessions))
    sessions.show_core(opened[-1][0], opened[-1][1].csrf)
    assert len(callers.sessions) == MAX_SHOWN and oldest not in callers.sessions
    # The oldest session goes on: the core asks for it again.
    assert sessions.find(opened[0][0]) is not None


def test_a_replica_with_the_secret_knows_the_session(clock: Clock) -> None:
    cookie, session = server(clock).open(TOKEN)
    found = server(clock).find(cookie)
    assert found is not None and found[0] == session
    assert server(clock).grant(cookie, session.csrf, is_read=False) is not None
    clock.now_s += SESSION_S + 1
    assert server(clock).find(cookie) is None


def test_a_replica_with_another_secret_does_not(clock: Clock) -> None:
    cookie, _ = server(clock).open(TOKEN)
    assert server(clock, SECRETS[1]).find(cookie) is None
    # A server still accepts cookies that its older secret signed, and signs new ones with its first secret.
    both = server(clock, SECRETS[1], SECRETS[0])
    assert both.find(cookie) is not None
    assert server(clock, SECRETS[1]).find(both.open(TOKEN)[0]) is not None
    assert server(clock).find(both.open(TOKEN)[0]) is None


def test_no_changed_cookie_is_good(clock: Clock) -> None:
    sessions = server(clock)
    cookie, _ = sessions.open(TOKEN)
    data = urlsafe_b64decode(cookie)
    for at in range(len(data)):
        changed = bytearray(data)
        changed[at] ^= 1
        assert sessions.find(urlsafe_b64encode(changed).decode()) is None, at
    wrong = ["", "x", cookie[:-1], cookie + "A", cookie[:-4] + "====", "é" * len(cookie), "\udcff" * len(cookie)]
    for text in [*wrong, "%" * len(cookie), " " * len(cookie)]:
        assert sessions.find(text) is None
        sessions.close(text)
    assert sessions.find(cookie) is not None


def test_closed_sessions_are_forgotten_after_their_end(clock: Clock) -> None:
    sessions = server(clock)
    for _ in range(3):
        sessions.close(sessions.open(TOKEN)[0])
    assert len(sessions._closed) == 3 <= MAX_CLOSED
    clock.now_s += SESSION_S + 1
    sessions.close(sessions.open(TOKEN)[0])
    assert len(sessions._closed) == 1


def test_a_cookie_does_not_show_the_token(clock: Clock) -> None:
    data = urlsafe_b64decode(server(clock).open(TOKEN)[0])
    assert READER.digests[0] not in data and TOKEN.encode() not in data


def test_secrets_are_lines_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_bytes(SECRETS[0] + b"\n\n  " + SECRETS[1] + b"\r\n")
    assert read_secrets(path) == (SECRETS[0], SECRETS[1])
    for content in (b"", b"\n \n", SECRETS[0][1:], SECRETS[0] + b"\nshort", b"x" * (1 << 17)):
        path.write_bytes(content)
        with pytest.raises(SecretError) as caught:
            read_secrets(path)
        assert "short" not in str(caught.value).split()
    os.mkfifo(tmp_path / "pipe")
    for other, why in (
        (tmp_path / "none", "No such file"),
        (Path("/dev/zero"), "a device"),
        (tmp_path / "pipe", "pipe"),
    ):
        with pytest.raises(SecretError, match=why):
            read_secrets(other)


def test_a_server_without_sessions_or_secrets_does_not_start(tmp_path: Path, clock: Clock) -> None:
    metrics = Metrics(list)
    engine = Engine(Registry(lambda model, status: None), metrics.requests, clock)
    assert create_access("", "", engine, metrics) is None
    with pytest.raises(StartError, match="only a server with --auth_config"):
        create_access("", str(tmp_path / "secret"), engine, metrics)
    auth, secret = tmp_path / "auth.toml", tmp_path / "secret"
    auth.write_text(
        f'[[caller]]\nname = "a"\ntoken_sha256 = ["{READER.digests[0].hex()}"]\n'
        '[[caller.allow]]\nmodels = ["*"]\nrights = ["predict"]\n'
    )
    secret.write_text("too short")
    with pytest.raises(StartError, match=f"--console_secret_file={secret}: a secret has fewer"):
        create_access(str(auth), str(secret), engine, metrics)
    secret.write_text("x" * 32)
    for path in (str(secret), ""):
        access, other = (create_access(str(auth), path, engine, metrics) for _ in range(2))
        assert access is not None and other is not None
        cookie, _ = access.sessions.open(TOKEN)
        assert access.sessions.find(cookie) is not None
        # Without a file, each process has a secret of its own.
        assert (other.sessions.find(cookie) is not None) == bool(path)
