"""Reads the headers that the native core adds to forwarded requests; the core removes headers of these names that
clients send.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import unquote

from service.access.peer import NO_NAMES
from service.engine.request_context import NO_DRAWS, Draws

# The prefix and the endings of the headers that the native core adds to the requests that it forwards. The file
# native/src/edge/shared.rs has the same names.
_PREFIX = b"x-embedding-server-"
_SEAL, _NAMES, _LOG_DRAW, _TRACE_ID = b"seal", b"names", b"log-draw", b"trace-id"


@dataclass(frozen=True, slots=True)
class CoreHeaders:
    """The values of the native core's headers in one forwarded request.

    names: names of known callers in the client's verified certificate.
    """

    names: frozenset[str] = NO_NAMES
    draws: Draws = NO_DRAWS


_NOTHING = CoreHeaders()


class Forwarding:
    """The reader of the headers that the native core adds to forwarded requests. Concurrency: any thread.

    Args:
      seal: the secret in the core's requests; "": there is no core, and all such headers are ignored.
    """

    def __init__(self, seal: str = "") -> None:
        self._seal = seal.encode()

    def is_core(self, headers: Iterable[tuple[str, str | bytes]]) -> bool:
        """Says whether the metadata of a gRPC call has the core's secret; True if there is no core."""
        name = (_PREFIX + _SEAL).decode()
        found = next((value for key, value in headers if key == name), "")
        return hmac.compare_digest(found if isinstance(found, bytes) else found.encode(), self._seal)

    def read(self, headers: Iterable[tuple[bytes, bytes]]) -> CoreHeaders:
        """Returns the values of the native core's headers; empty ones if the secret in the headers is not the core's.

        Args:
          headers: pairs of a name in lower case and a value.
        """
        if not self._seal:
            return _NOTHING
        found = {name[len(_PREFIX) :]: value for name, value in headers if name.startswith(_PREFIX)}
        if not hmac.compare_digest(found.get(_SEAL, b""), self._seal):
            return _NOTHING
        names = found.get(_NAMES, b"").decode("ascii").split()
        draw = found.get(_LOG_DRAW)
        draws = Draws(None if draw is None else float(draw), int(found.get(_TRACE_ID, b"0"), 16))
        return CoreHeaders(frozenset(map(unquote, names)), draws)


NO_FORWARDING = Forwarding()
