"""The reference servers trust the headers of requests with the native core's seal, and of no others."""

from __future__ import annotations

from service.engine.request_context import NO_DRAWS, Draws
from service.native.forwarded import NO_FORWARDING, CoreHeaders, Forwarding

SEAL = "secret"
HEADERS = [
    (b"x-embedding-server-names", b"CN%3Aranker%20%C3%A9 DNS%3Aa%2Eexample"),
    (b"x-embedding-server-log-draw", b"0.25"),
    (b"x-embedding-server-trace-id", b"0af7651916cd43dd8448eb211c80319c"),
    (b"host", b"localhost"),
]


def test_the_core_is_believed() -> None:
    told = Forwarding(SEAL).read([*HEADERS, (b"x-embedding-server-seal", b"secret")])
    assert told.names == {"CN:ranker é", "DNS:a.example"}
    assert told.draws == Draws(0.25, 0x0AF7651916CD43DD8448EB211C80319C)
    assert Forwarding(SEAL).read([(b"x-embedding-server-seal", b"secret")]) == CoreHeaders(frozenset(), NO_DRAWS)


def test_others_are_not() -> None:
    nothing = CoreHeaders(frozenset(), NO_DRAWS)
    for seal in (b"", b"secre", b"secrets", b"\xff"):
        assert Forwarding(SEAL).read([*HEADERS, (b"x-embedding-server-seal", seal)]) == nothing
        assert NO_FORWARDING.read([*HEADERS, (b"x-embedding-server-seal", seal)]) == nothing
    assert Forwarding(SEAL).read(HEADERS) == nothing
