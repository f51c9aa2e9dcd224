"""What an HTTP connection may cost: bytes, time, and how many of them there are."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from service.core.admission.admission import Admission

# A client that sends, or reads, less is taken for one that stands still.
BYTES_PER_S = 1024
# Requests that one connection may have sent ahead of their answers.
MAX_PIPELINED = 128


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Limits of each HTTP connection.

    connections: how many there may be. head_bytes: of a request line with its headers, or of what comes between parts
    of a body. body_bytes: the largest body that is taken. head_timeout_s: until a head is whole, or a first one begins.
    stall_timeout_s: in which some of a body must arrive, or of an answer be read.
    """

    connections: int = 1 << 30
    head_bytes: int = 64 << 10
    body_bytes: int = 1 << 62
    head_timeout_s: float = 10.0
    stall_timeout_s: float = 20.0


class Swept(Protocol):
    """A connection that can be looked at."""

    def sweep(self, now_s: float) -> None:
        """Cuts the connection where its client takes too long."""
        ...


@dataclass(frozen=True, slots=True)
class ConnectionGuard:
    """What all connections of a server share. Concurrency: event loop only.

    admission: where answers count that their clients have not read. on_drop: told why a connection was cut.
    """

    limits: ConnectionLimits
    admission: Admission
    on_drop: Callable[[str], None] = lambda reason: None

    def sweep(self, connections: Iterable[Swept], now_s: float) -> None:
        """Looks at all connections: one timer for each would cost every request."""
        for connection in list(connections):
            connection.sweep(now_s)


@dataclass(slots=True)
class Progress:
    """Whether a number changes by BYTES_PER_S at least, seen from looks at it once in a while.

    since_s: when it was looked at first, or last had come so far; negative: it was not.
    """

    mark: int = 0
    since_s: float = -1.0

    def restart(self) -> None:
        """Forgets what was seen."""
        self.since_s = -1.0

    def is_stalled(self, number: int, now_s: float, timeout_s: float) -> bool:
        """Looks at the number; says whether it has stood still, or nearly, for the timeout.

        >>> body = Progress()
        >>> [body.is_stalled(n, t, 4.0) for n, t in ((0, 1.0), (4096, 3.0), (4097, 6.0), (4098, 8.0))]
        [False, False, False, True]
        """
        if self.since_s < 0 or abs(number - self.mark) >= BYTES_PER_S * timeout_s:
            self.mark, self.since_s = number, now_s
            return False
        return now_s - self.since_s > timeout_s
