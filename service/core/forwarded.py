"""Reads the headers that the native core adds to forwarded requests; the core removes headers of these names that
clients send.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from urllib.parse import unquote

# The prefix and the endings of the headers that the native core adds to the requests that it forwards. The file
# native/src/edge/shared.rs has the same names.
_PREFIX = b"x-embedding-server-"
_SEAL, _NAMES, _CLIENT = b"seal", b"names", b"client"


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

    def names(self, headers: Iterable[tuple[bytes, bytes]]) -> frozenset[str]:
        """Returns the names of known callers in the client's verified certificate; none if the headers lack the core's
        secret.

        Args:
          headers: pairs of a name in lower case and a value.
        """
        return frozenset(map(unquote, self._told(headers, _NAMES).split()))

    def client(self, headers: Iterable[tuple[bytes, bytes]]) -> str:
        return self._told(headers, _CLIENT)

    def _told(self, headers: Iterable[tuple[bytes, bytes]], ending: bytes) -> str:
        found = {name[len(_PREFIX) :]: value for name, value in headers if name.startswith(_PREFIX)}
        is_sealed = self._seal and hmac.compare_digest(found.get(_SEAL, b""), self._seal)
        return found.get(ending, b"").decode("ascii") if is_sealed else ""


NO_FORWARDING = Forwarding()
