"""From header blocks to routes; blocks that came before are not decoded again."""

from __future__ import annotations

from service.core.errors import PayloadTooLarge
from service.transports.grpc.h2.header_decoder import HeaderDecoder, HeadersTooLarge
from service.transports.grpc.h2.inbound import HEADER_BYTES
from service.transports.grpc.h2.request_head import check_trailers, read_request_head
from service.transports.grpc.h2.route import Route, Routes, refused

# Blocks are remembered up to this number; real clients have a handful.
_MAX_KNOWN = 64


class KnownRoutes:
    """The header blocks of one connection, in order. Event loop only."""

    __slots__ = ("_routes", "_generation", "_decoder", "_known")

    def __init__(self, routes: Routes) -> None:
        self._routes = routes
        self._generation = routes.generation
        self._decoder = HeaderDecoder(HEADER_BYTES)
        self._known: dict[bytes, Route] = {}

    def known(self) -> dict[bytes, Route]:
        """Returns the routes of blocks that came before, as long as they say the same; ask again for each read."""
        if self._routes.generation != self._generation:
            self._generation = self._routes.generation
            self._known.clear()
        return self._known

    def find(self, block: bytes) -> tuple[Route, int | None]:
        """Returns where a request's headers lead, and the length of the request where they say it.

        Raises:
          ConnectionFault: it is no header block.
          StreamFault: the headers are malformed.
        """
        route = self._known.get(block)
        if route is not None:
            return route, None
        changes = self._decoder.changes
        try:
            head = read_request_head(self._decoder.decode(block))
        except HeadersTooLarge:
            error = PayloadTooLarge(f"The headers are larger than {HEADER_BYTES} bytes.")
            return refused(self._routes.refusal_block(error)), None
        finally:
            if self._decoder.changes != changes:
                # Other blocks may name what has moved in the table.
                self._known.clear()
        route = self._routes.route(head)
        if self._decoder.changes == changes and head.content_length is None and len(self._known) < _MAX_KNOWN:
            self._known[block] = route
        return route, head.content_length

    def read_trailers(self, block: bytes) -> None:
        """Reads what a client sends behind a request, for what it does to the table; see find for errors."""
        changes = self._decoder.changes
        try:
            check_trailers(self._decoder.decode(block))
        except HeadersTooLarge:
            pass
        finally:
            if self._decoder.changes != changes:
                self._known.clear()
