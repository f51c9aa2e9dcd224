"""Limits the bytes of requests in flight, of the whole server and of each model."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from service.errors import Overloaded

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

    def refused(self, model: str, reason: Reason) -> None: ...

    def waited(self, model: str, seconds: float) -> None: ...


class Unobserved:
    """An AdmissionObserver that counts nothing."""

    def refused(self, model: str, reason: Reason) -> None:
        pass

    def waited(self, model: str, seconds: float) -> None:
        pass


def has_share(mine: int, free: int) -> bool:
    """Says whether a model whose requests hold `mine` bytes may reserve more while `free` are free.

    >>> has_share(800, 200), has_share(804, 196), has_share(0, 0)
    (True, False, True)
    """
    return mine <= _SHARE * free


class Admission:
    """The counter of bytes in flight, which refuses requests beyond limits. Concurrency: any thread.

    A request that the event loop answers without waiting is not counted, because there is one at a time. Every request
    that waits for anything is counted, from its first byte until its answer is made.

    Args:
      observer: called for every refusal, also for those of thread pools that have this object's limits.
    """

    def __init__(self, limits: Limits | None = None, observer: AdmissionObserver | None = None) -> None:
        self.limits = limits or Limits()
        self.observer = observer or Unobserved()
        self._held: dict[str, int] = {}
        self._bytes = 0
        # NOTE: keep the code under Admission's lock to a few lines: if the system preempts the thread that holds it,
        # all other requests wait.
        self._lock = threading.Lock()

    def reserve_bytes(self, model: str, size: int) -> None:
        """Counts the bytes of a request or of an answer as in flight, until release() is called.

        Args:
          model: a configured model's name, or "".

        Raises:
          Overloaded: the bytes are not free now, or this model has more than its share.
        """
        with self._lock:
            free = self.limits.bytes - self._bytes
            held = self._held.get(model, 0)
            if size <= free and has_share(held, free):
                self._held[model] = held + size
                self._bytes += size
                return
        self._refuse(model)

    def check_bytes(self, model: str, size: int) -> None:
        """Raises Overloaded if reserve_bytes() would refuse these bytes now; reserves nothing."""
        free = self.limits.bytes - self._bytes
        if size > free or not has_share(self._held.get(model, 0), free):
            self._refuse(model)

    def release(self, model: str, size: int) -> None:
        with self._lock:
            self._held[model] -= size
            self._bytes -= size
            if not self._held[model]:
                # The entry of a model without reserved bytes is removed, because _held would grow with each model name.
                del self._held[model]

    def held(self) -> Mapping[str, int]:
        """Returns model -> bytes that its requests in flight have reserved; idle models are left out."""
        with self._lock:
            return dict(self._held)

    def _refuse(self, model: str) -> None:
        self.observer.refused(model, "bytes")
        raise Overloaded(
            f"The server is overloaded: {self._bytes} bytes of requests and answers are in flight, its limit is "
            f"{self.limits.bytes}. Try again later."
        )


class Reservation:
    """The bytes in flight that one request has reserved. Concurrency: any thread; grow() by one caller at a time.

    The users of a reservation are its creator and every thread that was handed the bytes; each user calls drop_user()
    once.
    """

    __slots__ = ("_admission", "_model", "_size", "_users", "_lock")

    def __init__(self, admission: Admission, model: str) -> None:
        self._admission = admission
        self._model = model
        self._size = 0
        self._users = 1
        self._lock = threading.Lock()

    @property
    def model(self) -> str:
        """The name of the model for which the reserved bytes are counted; "" for no configured model."""
        return self._model

    def check(self, size: int) -> None:
        """Raises Overloaded if grow() would refuse a body of `size` bytes now; reserves nothing."""
        self._admission.check_bytes(self._model, size)

    def grow(self, size: int) -> None:
        """Reserves `size` more bytes in flight for the request; raises Overloaded if a limit is reached."""
        self._admission.reserve_bytes(self._model, size)
        self._size += size

    def add_user(self) -> None:
        """Counts one more user of the reserved bytes, such as a thread; they stay reserved until no user is left."""
        with self._lock:
            self._users += 1

    def drop_user(self) -> None:
        """Removes one user of the reserved bytes; when the last user is gone, the bytes are released."""
        with self._lock:
            self._users -= 1
            is_last = self._users == 0
        if is_last and self._size:
            self._admission.release(self._model, self._size)
