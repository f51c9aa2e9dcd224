"""Declares the limits on requests in flight, the share of one model, and the observer of refused requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

# A model may hold up to this many times the bytes or rows that are still free. So one flooding model gets four fifths
# of the limit, and two flooding models get four ninths each. However many models flood, something stays free for
# another model. Source: Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory packet switches"
# (1998).
_SHARE = 4

# Why a request was refused. bytes, rows: too many are in flight; queue: too many requests wait; wait: the request would
# wait too long, or did; deadline: it passes before a thread is free; threads: the system can start no thread.
Reason = Literal["bytes", "rows", "queue", "wait", "deadline", "threads"]


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits on requests in flight, over all models together.

    bytes, rows: in flight. queued: requests that wait for one pool of threads. wait_s: the longest wait of one request.
    """

    bytes: int = 1 << 62
    rows: int = 1 << 62
    queued: int = 1 << 62
    wait_s: float = 1e9


class AdmissionObserver(Protocol):
    """The observer of refused and waiting requests. Concurrency: any thread; must not raise."""

    def refused(self, model: str, reason: Reason) -> None:
        """Counts a refused request by model and reason."""
        ...

    def waited(self, model: str, seconds: float) -> None:
        """Counts the time that a request waited for a thread."""
        ...


class Unobserved:
    """An AdmissionObserver that counts nothing."""

    def refused(self, model: str, reason: Reason) -> None:
        """Does nothing with a refused request."""

    def waited(self, model: str, seconds: float) -> None:
        """Does nothing with a request's waiting time."""


def has_share(mine: int, free: int) -> bool:
    """Says whether a model that holds `mine` bytes or rows may take more while `free` are left.

    >>> has_share(800, 200), has_share(804, 196), has_share(0, 0)
    (True, False, True)
    """
    return mine <= _SHARE * free
