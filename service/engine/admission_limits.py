"""Declares limits on requests in flight, the share of a limit that one model may use, and the observer of refusals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

# The requests of one model may hold up to this many times the bytes in flight that are still free. So one
# flooding model gets four fifths of the limit, and two flooding models get four ninths each. However many models flood,
# something stays free for another model. Source: Choudhury and Hahne, "Dynamic queue length thresholds for
# shared-memory packet switches" (1998).
_SHARE = 4

# Reasons for refusing a request. bytes: too many are in flight; queue: too many requests wait; wait: the request
# would wait too long, or did; deadline: the request's deadline passes before a thread is free; threads: the system can
# start no thread.
Reason = Literal["bytes", "queue", "wait", "deadline", "threads"]


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits on requests in flight, over all models together.

    bytes: in flight. queued: requests that wait for one pool of threads. wait_s: the longest wait of one request.
    """

    bytes: int = 1 << 62
    queued: int = 1 << 62
    wait_s: float = 1e9


@dataclass(frozen=True, slots=True)
class NeighborLimits:
    """The limits that a server puts on searches for nearest rows.

    k: most neighbours of a query. queries: most queries of a request. threads: searches that run at a time, and most
    threads of one search. index_rows: tables of at least this many rows get an index; 0: no table does.
    """

    k: int = 1000
    queries: int = 256
    threads: int = 1
    index_rows: int = 100_000


class AdmissionObserver(Protocol):
    """The observer that counts refused requests, and the time that requests wait.

    Concurrency: any thread; must not raise.
    """

    def refused(self, model: str, reason: Reason) -> None:
        """Counts a request that was refused, by its model and the reason."""
        ...

    def waited(self, model: str, seconds: float) -> None:
        """Counts the time for which a request waited until a thread was free."""
        ...


class Unobserved:
    """An AdmissionObserver that counts nothing."""

    def refused(self, model: str, reason: Reason) -> None:
        """Ignores a refused request."""

    def waited(self, model: str, seconds: float) -> None:
        """Ignores the time for which a request waited until a thread was free."""


def has_share(mine: int, free: int) -> bool:
    """Says whether a model whose requests hold `mine` bytes may reserve more while `free` are free.

    >>> has_share(800, 200), has_share(804, 196), has_share(0, 0)
    (True, False, True)
    """
    return mine <= _SHARE * free
