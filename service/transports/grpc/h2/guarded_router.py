"""From a new stream's headers to the router of its caller."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from httpunk.http import HeaderMap

from service.core.access import Grant
from service.core.errors import Unauthenticated
from service.transports.grpc.guard import Guard, HealthFor
from service.transports.grpc.h2.connection import Connection
from service.transports.grpc.h2.metadata import error_head
from service.transports.grpc.h2.router import Router
from service.transports.grpc.h2.stream import Call, Stream
from service.transports.grpc.health import Health
from service.transports.grpc.refusals import Refusals
from service.transports.grpc.status_codes import STATUS_CODES
from service.transports.peer import NO_NAMES, names_of_transport


class KnownConnection(Connection):
    """A connection that remembers the names of its client's certificate."""

    names = NO_NAMES

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        self.names = names_of_transport(transport)
        super().connection_made(transport)


class GuardedRouter:
    """Has each caller a Router of its own, over the engine as that caller sees it. Event loop only.

    Args:
      make: a Router for a caller, from its grant and health as it sees it.
    """

    def __init__(self, guard: Guard, health: Health, make: Callable[[Grant, HealthFor], Router]) -> None:
        self._guard = guard
        self._health = health
        self._make = make
        self._refusals = Refusals()

    def open_call(
        self, connection: Connection, stream: Stream, method: str, path: str, headers: HeaderMap
    ) -> Call | None:
        """Returns the call of a stream; None where it was refused."""
        names = connection.names if isinstance(connection, KnownConnection) else NO_NAMES
        try:
            grant = self._guard.grant(path, headers.get_all("authorization"), names)
        except Unauthenticated as error:
            code, text = self._refusals(error)
            number: int = STATUS_CODES[code].value[0]
            stream.only_head(error_head(number, text))
            return None
        router = grant.keep("h2", lambda: self._make(grant, HealthFor(self._health, grant)))
        return router.open_call(connection, stream, method, path, headers)
