"""Reads what the native core tells the reference servers of a request: headers that it takes away from its clients."""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import unquote

from service.core.request_context import NO_DRAWS, Draws
from service.transports.peer import NO_NAMES

# As in native/src/edge/shared.rs.
_PREFIX = b"x-embedding-server-"
_SEAL, _NAMES, _LOG_DRAW, _TRACE_ID = b"seal", b"names", b"log-draw", b"trace-id"


@dataclass(frozen=True, slots=True)
class Told:
    """What the core says of one request. names: of callers, in the client's verified certificate."""

    names: frozenset[str] = NO_NAMES
    draws: Draws = NO_DRAWS


_NOTHING = Told()


class Forwarding:
    """Reads the core's headers. Concurrency: any thread.

    Args:
      seal: the secret that the core's requests carry; "": no request is the core's.
    """

    def __init__(self, seal: str = "") -> None:
        self._seal = seal.encode()

    def read(self, headers: Iterable[tuple[bytes, bytes]]) -> Told:
        """Returns what the core tells; nothing where a client writes such headers by itself.

        Args:
          headers: names in lower case, and values.
        """
        if not self._seal:
            return _NOTHING
        found = {name[len(_PREFIX) :]: value for name, value in headers if name.startswith(_PREFIX)}
        if not hmac.compare_digest(found.get(_SEAL, b""), self._seal):
            return _NOTHING
        names = found.get(_NAMES, b"").decode("ascii").split()
        draw = found.get(_LOG_DRAW)
        draws = Draws(None if draw is None else float(draw), int(found.get(_TRACE_ID, b"0"), 16))
        return Told(frozenset(map(unquote, names)), draws)


NO_FORWARDING = Forwarding()
