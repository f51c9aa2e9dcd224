"""Callers are recognized by their tokens or certificates, and get the rights that the file gives them."""

from __future__ import annotations

from hashlib import sha256

import pytest

from service.access.callers import Caller, Callers, Grant, Rule
from service.errors import PermissionDenied, Unauthenticated

PREDICT, ALL = frozenset({"predict"}), frozenset({"predict", "metadata", "admin"})
TOKEN = "a-token-of-many-letters"


def caller(name: str, token: str = TOKEN, *rules: Rule, certificates: tuple[str, ...] = ()) -> Caller:
    return Caller(name, rules, (sha256(token.encode()).digest(),), certificates)


@pytest.fixture
def callers() -> Callers:
    return Callers(
        [caller("a", TOKEN, certificates=("CN:a", "DNS:a.example")), caller("b", "another", certificates=("CN:b",))],
        ["health"],
    )


@pytest.mark.parametrize("value", [f"Bearer {TOKEN}", f"bearer {TOKEN}", f"BEARER   {TOKEN} "])
def test_a_token_is_taken_however_the_scheme_is_written(callers: Callers, value: str) -> None:
    # The token is checked twice, because the second result comes from a cache.
    assert [callers.authenticate(value.encode()).name for _ in range(2)] == ["a", "a"]


@pytest.mark.parametrize(
    "value",
    [
        "",
        "Bearer",
        "Bearer ",
        TOKEN,
        f"Basic {TOKEN}",
        f"Bearer {TOKEN}x",
        f"Bearer {TOKEN[:-1]}",
        f"Bearer {TOKEN} {TOKEN}",
        "Bearer " + "x" * 9000,
    ],
)
def test_anything_else_is_refused_with_one_text(callers: Callers, value: str) -> None:
    texts = set()
    for authorization in (value.encode(), None):
        with pytest.raises(Unauthenticated) as caught:
            callers.authenticate(authorization)
        texts.add(caught.value.message)
    assert len(texts) == 1
    assert TOKEN not in texts.pop()


def test_the_stored_hash_is_no_token(callers: Callers) -> None:
    with pytest.raises(Unauthenticated):
        callers.authenticate(b"Bearer " + sha256(TOKEN.encode()).hexdigest().encode())


def test_a_certificate_counts_where_no_token_came(callers: Callers) -> None:
    assert callers.authenticate(None, {"CN:a", "DNS:elsewhere"}).name == "a"
    assert callers.authenticate(None, {"CN:a", "DNS:a.example"}).name == "a"
    assert callers.authenticate(b"Bearer another", {"CN:a"}).name == "b"
    for authorization, names in (
        (b"Bearer wrong", {"CN:a"}),
        (None, {"CN:a", "CN:b"}),
        (None, {"DNS:a"}),
        (b"", {"CN:a"}),
    ):
        with pytest.raises(Unauthenticated):
            callers.authenticate(authorization, names)


def test_rules_add_up_and_a_star_stands_for_any_end() -> None:
    metadata = frozenset[object]({"metadata"})
    grant = Grant(
        "a",
        [
            Rule(("m", "news-*"), PREDICT),
            Rule(("news-eu",), frozenset({"metadata"})),
            Rule(("*",), frozenset({"admin"})),
        ],
    )
    assert grant.rights("m") == {"predict", "admin"}
    assert grant.rights("news-eu") == PREDICT | metadata | {"admin"}
    assert grant.rights("new") == grant.rights("m2") == grant.everywhere == {"admin"}
    grant.require_everywhere("admin")
    with pytest.raises(PermissionDenied, match='"a" needs the right "metadata"'):
        grant.require_everywhere("metadata")


def test_no_rule_is_no_right() -> None:
    assert Grant("a").rights("m") == Grant("a").rights("*") == Grant("a").everywhere == frozenset()
    # A star that is not the whole rule is a part of a name, and no model has this name.
    assert Grant("a", [Rule(("m",), ALL)]).rights("m*") == frozenset()


def test_a_new_list_holds_from_the_next_request_on(callers: Callers) -> None:
    callers.authenticate(f"Bearer {TOKEN}".encode())
    assert callers.is_open("health") and not callers.is_open("docs")
    callers.replace([caller("b", "another", Rule(("m",), PREDICT))], ["docs"])
    assert callers.generation == 1
    assert callers.is_open("docs") and not callers.is_open("health")
    with pytest.raises(Unauthenticated):
        callers.authenticate(f"Bearer {TOKEN}".encode())
    assert callers.authenticate(b"Bearer another").rights("m") == PREDICT


def test_what_runs_for_a_caller_knows_it_and_nothing_else_does(callers: Callers) -> None:
    grant = callers.authenticate(b"Bearer another")
    assert callers.current.get() is callers.nobody
    with callers.acting(grant):
        assert callers.current.get() is grant
    assert callers.current.get() is callers.nobody
    with pytest.raises(PermissionDenied):
        callers.require_everywhere("metadata", "metrics")
    callers.require_everywhere("metadata", "health")


def test_no_secret_shows_in_what_is_printed() -> None:
    text = repr(caller("a"))
    assert TOKEN not in text and sha256(TOKEN.encode()).hexdigest()[:8] not in text and "digests" not in text
