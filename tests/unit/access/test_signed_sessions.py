"""Sessions in signed cookies are valid on each server with the secret, and only until their end."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from hashlib import sha256
from pathlib import Path

import pytest

from service.access.access import create_access
from service.access.callers import Caller, Callers, Rule
from service.access.sessions import MAX_CLOSED, SESSION_S, SecretError, SignedSessions, read_secrets
from service.configuration.settings import StartError
from service.engine.engine import Engine
from service.engine.registry import Registry
from service.errors import PermissionDenied, Unauthenticated
from service.observe.metrics import Metrics
from tests.conftest import Clock

TOKEN, OTHER = "a-token-of-the-reader", "a-token-of-another"
SECRETS = [bytes([65 + at]) * 32 for at in range(3)]


def caller(name: str, token: str) -> Caller:
    return Caller(name, (Rule(("m",), frozenset({"metadata"})),), (sha256(token.encode()).digest(),))


READER, ANOTHER = caller("reader", TOKEN), caller("another", OTHER)


def server(clock: Clock, *secrets: bytes, callers: Callers | None = None) -> SignedSessions:
    """Returns the sessions of one replica, with its own list of callers."""
    return SignedSessions(callers or Callers([READER, ANOTHER], ()), secrets or SECRETS[:1], clock)


def test_a_replica_with_the_secret_knows_the_session(clock: Clock) -> None:
    cookie, session = server(clock).open(f" {TOKEN}\n")
    found = server(clock).find(cookie)
    assert found is not None
    assert (found[0], found[1].name, found[1].rights("m")) == (session, "reader", {"metadata"})
    again = server(clock)
    assert again.grant(cookie, session.csrf, is_read=False) is not None
    for wrong in (None, "", session.csrf + "x", cookie, server(clock).open(TOKEN)[1].csrf):
        with pytest.raises(PermissionDenied):
            again.grant(cookie, wrong, is_read=False)


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


def test_a_session_ends_in_time_by_sign_out_and_with_its_token(clock: Clock) -> None:
    callers = Callers([READER, ANOTHER], ())
    sessions = server(clock, callers=callers)
    first, second = (sessions.open(TOKEN)[0] for _ in range(2))
    sessions.close(first)
    assert sessions.find(first) is None and sessions.find(second) is not None
    callers.replace([ANOTHER], ())
    assert sessions.find(second) is None
    callers.replace([ANOTHER, READER], ())
    found = sessions.find(second)
    assert found is not None and found[1].name == "reader" and sessions.find(first) is None
    clock.now_s += SESSION_S + 1
    assert sessions.find(second) is None
    assert server(clock).find(second) is None


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


@pytest.mark.parametrize("token", ["", "wrong", TOKEN + "x", TOKEN * 1000, "\udcff"])
def test_a_wrong_token_opens_nothing(clock: Clock, token: str) -> None:
    with pytest.raises(Unauthenticated):
        server(clock).open(token)


def test_secrets_are_lines_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_bytes(SECRETS[0] + b"\n\n  " + SECRETS[1] + b"\r\n")
    assert read_secrets(path) == (SECRETS[0], SECRETS[1])
    for content in (b"", b"\n \n", SECRETS[0][1:], SECRETS[0] + b"\nshort", b"x" * (1 << 17)):
        path.write_bytes(content)
        with pytest.raises(SecretError) as caught:
            read_secrets(path)
        assert "short" not in str(caught.value).split()
    with pytest.raises(SecretError, match="No such file"):
        read_secrets(tmp_path / "none")


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
    access = create_access(str(auth), str(secret), engine, metrics)
    assert access is not None and access.sessions.find(access.sessions.open(TOKEN)[0]) is not None
