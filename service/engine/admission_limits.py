"""How much may be in flight, how much of that one model may have, and who is told of what was refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

# A model may hold this many times what is left for all. One alone comes to four fifths; a second that floods, too, to
# four ninths each; and however many flood, there is room for one that holds nothing yet.
# Source: Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory packet switches" (1998).
_SHARE = 4

# Why a request was refused. bytes, rows: too many in flight; queue: too many wait; wait: it would wait too long, or
# did; deadline: that passes before a thread is free; threads: the system gives none.
Reason = Literal["bytes", "rows", "queue", "wait", "deadline", "threads"]


@dataclass(frozen=True, slots=True)
class Limits:
    """Over all models.

    bytes, rows: in flight. queued: requests that wait for one pool of threads. wait_s: how long one may.
    """

    bytes: int = 1 << 62
    rows: int = 1 << 62
    queued: int = 1 << 62
    wait_s: float = 1e9


class AdmissionObserver(Protocol):
    """Learns what becomes of requests before they are run. Concurrency: any thread; must not raise."""

    def refused(self, model: str, reason: Reason) -> None:
        """A request was refused."""
        ...

    def waited(self, model: str, seconds: float) -> None:
        """A request waited for a thread."""
        ...


class Unobserved:
    """Observes nothing."""

    def refused(self, model: str, reason: Reason) -> None:
        """See AdmissionObserver."""

    def waited(self, model: str, seconds: float) -> None:
        """See AdmissionObserver."""


def has_share(mine: int, free: int) -> bool:
    """Says whether a model that holds so much may have more while so much is left.

    >>> has_share(800, 200), has_share(804, 196), has_share(0, 0)
    (True, False, True)
    """
    return mine <= _SHARE * free
