"""The reference servers trust the headers of requests with the native core's seal, and of no others."""

from __future__ import annotations

from service.native.forwarded import NO_FORWARDING, Forwarding

SEAL = "secret"
HEADERS = [(b"x-embedding-server-names", b"CN%3Aranker%20%C3%A9 DNS%3Aa%2Eexample"), (b"host", b"localhost")]


def test_the_core_is_believed() -> None:
    told = Forwarding(SEAL).names([*HEADERS, (b"x-embedding-server-seal", b"secret")])
    assert told == {"CN:ranker é", "DNS:a.example"}
    assert Forwarding(SEAL).names([(b"x-embedding-server-seal", b"secret")]) == frozenset()


def test_others_are_not() -> None:
    for seal in (b"", b"secre", b"secrets", b"\xff"):
        assert not Forwarding(SEAL).names([*HEADERS, (b"x-embedding-server-seal", seal)])
        assert not NO_FORWARDING.names([*HEADERS, (b"x-embedding-server-seal", seal)])
    assert not Forwarding(SEAL).names(HEADERS)
