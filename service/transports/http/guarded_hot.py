"""Plain lookups in front of the application, for callers that are known: as HotAnswers and HotProtocol, and guarded.

Apart from them, so that a server that lets everybody in pays nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

from service.core.access import Callers, Grant
from service.core.errors import Unauthenticated
from service.transports.http.access import authorization_of, state_with_names
from service.transports.http.connection_guard import ConnectionGuard
from service.transports.http.hot_answers import Answer, Asked, Headers, HotAnswers
from service.transports.http.hot_protocol import HotProtocol
from service.transports.http.known_heads import KnownHeads
from service.transports.peer import names_of_transport
from service.transports.turns import Turns


class GrantedAsked(Asked):
    """A request whose caller is known. grant: what it may do."""

    grant: Grant


class GuardedHotAnswers(HotAnswers):
    """HotAnswers over an engine that asks who the current caller is; whoever is unknown is left to the general path.

    Concurrency: event loop only.
    """

    def __init__(self, *args: Any, callers: Callers, **options: Any) -> None:
        super().__init__(*args, **options)
        self.callers = callers

    def ask(self, path: bytes, headers: Headers, names: Collection[str] = ()) -> Asked | None:
        """See HotAnswers.

        Args:
          names: of the connection's verified client certificate.
        """
        asked = super().ask(path, headers)
        if asked is None:
            return None
        try:
            grant = self.callers.authenticate(authorization_of(headers), names)
        except Unauthenticated:
            return None
        granted = GrantedAsked(*asked)
        granted.grant = grant
        return granted

    def answer(self, asked: Asked, body: bytes) -> Answer | None:
        """See HotAnswers."""
        assert isinstance(asked, GrantedAsked)
        # As Callers.acting does, which costs as much as all the rest of this.
        current = self.callers.current
        token = current.set(asked.grant)
        try:
            return super().answer(asked, body)
        finally:
            current.reset(token)


class GuardedHeads(KnownHeads):
    """Heads whose callers are known still: a token that was taken back is forgotten with its head."""

    def __init__(self, callers: Callers) -> None:
        super().__init__()
        self._callers = callers

    def find(self, data: bytes) -> tuple[Asked, bytes] | None:
        """See KnownHeads."""
        found = super().find(data)
        if found is None:
            return None
        asked = found[0]
        return found if isinstance(asked, GrantedAsked) and self._callers.knows(asked.grant) else None


class GuardedHotProtocol(HotProtocol):
    """One connection, with what is known of the client by its certificate. Concurrency: event loop only."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        super().connection_made(transport)
        self.app_state = state_with_names(self.app_state, transport)
        names = names_of_transport(transport)
        if names:
            answers = self._answers
            assert isinstance(answers, GuardedHotAnswers)
            self._answers = _ForPeer(answers, names)  # type: ignore[assignment]
            # The same head means another caller on another connection.
            self._heads = GuardedHeads(answers.callers)


def hot_protocol(answers: HotAnswers, guard: ConnectionGuard) -> Callable[..., HotProtocol]:
    """Returns what makes connections that have these answers. guard: of all of them."""
    if isinstance(answers, GuardedHotAnswers):
        return partial(
            GuardedHotProtocol, answers=answers, heads=GuardedHeads(answers.callers), turns=Turns(), guard=guard
        )
    return partial(HotProtocol, answers=answers, heads=KnownHeads(), turns=Turns(), guard=guard)


class _ForPeer:
    """What HotProtocol needs of HotAnswers, for one client's names."""

    def __init__(self, answers: GuardedHotAnswers, names: Collection[str]) -> None:
        self._answers = answers
        self._names = names
        self.answer = answers.answer

    def ask(self, path: bytes, headers: Headers) -> Asked | None:
        return self._answers.ask(path, headers, self._names)
