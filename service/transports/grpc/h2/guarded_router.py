"""From a request's head to the route that its caller has."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from service.core.access import Grant
from service.core.errors import Unauthenticated
from service.transports.grpc.guard import Guard, HealthFor
from service.transports.grpc.h2.connection import Connection
from service.transports.grpc.h2.inbound import Budget
from service.transports.grpc.h2.request_head import RequestHead
from service.transports.grpc.h2.route import Route, refused
from service.transports.grpc.h2.router import Router
from service.transports.grpc.health import Health
from service.transports.peer import NO_NAMES, names_of_transport
from service.transports.turns import Turns


class GuardedRouter:
    """Has each caller a Router of its own, over the engine as that caller sees it. Event loop only.

    Args:
      make: a Router for a caller, from its grant and health as it sees it.
    """

    def __init__(self, guard: Guard, health: Health, make: Callable[[Grant, HealthFor], Router]) -> None:
        self._guard = guard
        self._health = health
        self._make = make
        self._nobodys = self._router(guard.callers.nobody)

    @property
    def generation(self) -> int:
        """See Routes: a route is of one list of callers."""
        return self._guard.callers.generation

    @property
    def nobodys(self) -> Router:
        """What a caller without rights has; its clock, budget and refusals are those of all."""
        return self._nobodys

    def route(self, head: RequestHead, names: frozenset[str]) -> Route:
        """Returns where a head leads; see Routes.

        Args:
          names: of the connection's verified client certificate.
        """
        value = head.headers.get(b"authorization")
        try:
            grant = self._guard.grant(head.path, [] if value is None else [value], names)
        except Unauthenticated as error:
            return refused(self._nobodys.refusal_block(error))
        return self._router(grant).route(head)

    def _router(self, grant: Grant) -> Router:
        return grant.keep("h2", lambda: self._make(grant, HealthFor(self._health, grant)))


class PeerRoutes:
    """Routes of one connection. names: of its client's certificate, once they are known."""

    def __init__(self, router: GuardedRouter) -> None:
        self._router = router
        self.names = NO_NAMES
        self.now = router.nobodys.now
        self.refusal_block = router.nobodys.refusal_block

    @property
    def generation(self) -> int:
        """See Routes."""
        return self._router.generation

    @property
    def most_quick_bytes(self) -> int:
        """See Routes."""
        return self._router.nobodys.most_quick_bytes

    @property
    def budget(self) -> Budget:
        """See Routes."""
        return self._router.nobodys.budget

    def route(self, head: RequestHead) -> Route:
        """See Routes."""
        return self._router.route(head, self.names)


class KnownConnection(Connection):
    """A connection that tells its routes who is at its other end."""

    def __init__(self, router: GuardedRouter, on_lost: Callable[[Connection], None], turns: Turns) -> None:
        self._peer_routes = PeerRoutes(router)
        super().__init__(self._peer_routes, on_lost, turns)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        self._peer_routes.names = names_of_transport(transport)
        super().connection_made(transport)
