"""Limits the bytes and rows of requests in flight, of the whole server and of each model."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass

from service.engine.admission_limits import AdmissionObserver, Limits, Reason, Unobserved, has_share
from service.errors import Overloaded, PayloadTooLarge


@dataclass(slots=True)
class Held:
    """The bytes and rows in flight that requests for one model have reserved."""

    bytes: int = 0
    rows: int = 0


class Admission:
    """The counter of bytes and rows in flight, which refuses requests beyond limits. Concurrency: any thread.

    A request that the event loop answers without waiting is not counted, because there is one at a time. Every request
    that waits for anything is counted, from its first byte until its answer is made.

    Args:
      observer: called for every refusal, also for those of thread pools that have this object's limits.
    """

    def __init__(self, limits: Limits | None = None, observer: AdmissionObserver | None = None) -> None:
        self.limits = limits or Limits()
        self.observer = observer or Unobserved()
        self._held: dict[str, Held] = {}
        self._bytes = 0
        self._rows = 0
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
            held = self._of(model)
            if size <= free and has_share(held.bytes, free):
                held.bytes += size
                self._bytes += size
                return
        self._refuse(model, "bytes", f"{self._bytes} bytes of requests and answers are in flight", self.limits.bytes)

    def check_bytes(self, model: str, size: int) -> None:
        """Raises Overloaded if reserve_bytes() would refuse these bytes now; reserves nothing."""
        free = self.limits.bytes - self._bytes
        held = self._held.get(model)
        if size > free or not has_share(held.bytes if held else 0, free):
            text = f"{self._bytes} bytes of requests and answers are in flight"
            self._refuse(model, "bytes", text, self.limits.bytes)

    def reserve(self, model: str, rows: int, size: int) -> None:
        """Counts the rows of a request and the bytes of its answer as in flight, until release() is called.

        Raises:
          PayloadTooLarge: the run exceeds a limit even on an idle server.
          Overloaded: the rows or bytes are not free now, or this model has more than its share.
        """
        if rows > self.limits.rows or size > self.limits.bytes:
            raise PayloadTooLarge(
                f"The request has {rows} rows and its answer {size} bytes; this server's limits on what is in flight "
                f"are {self.limits.rows} rows and {self.limits.bytes} bytes. Send fewer rows per request."
            )
        with self._lock:
            held = self._of(model)
            free_rows, free = self.limits.rows - self._rows, self.limits.bytes - self._bytes
            has_rows = rows <= free_rows and has_share(held.rows, free_rows)
            if has_rows and size <= free and has_share(held.bytes, free):
                held.rows += rows
                held.bytes += size
                self._rows += rows
                self._bytes += size
                return
        if has_rows:
            text = f"{self._bytes} bytes of requests and answers are in flight"
            self._refuse(model, "bytes", text, self.limits.bytes)
        self._refuse(model, "rows", f"{self._rows} rows are in flight", self.limits.rows)

    def release(self, model: str, rows: int, size: int) -> None:
        """Ends the reservation of rows and bytes that reserve() or reserve_bytes() made."""
        with self._lock:
            held = self._of(model)
            held.rows -= rows
            held.bytes -= size
            self._rows -= rows
            self._bytes -= size
            if not held.rows and not held.bytes:
                # The entry of a model without reserved rows and bytes is removed from _held, which would otherwise grow
                # with each new model name.
                del self._held[model]

    def held(self) -> Mapping[str, Held]:
        """Returns model -> bytes and rows that its requests in flight have reserved; idle models are left out."""
        with self._lock:
            return {model: Held(held.bytes, held.rows) for model, held in self._held.items()}

    def _of(self, model: str) -> Held:
        held = self._held.get(model)
        if held is None:
            held = self._held[model] = Held()
        return held

    def _refuse(self, model: str, reason: Reason, what: str, limit: int) -> None:
        self.observer.refused(model, reason)
        raise Overloaded(f"The server is overloaded: {what}, its limit is {limit}. Try again later.")


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
            self._admission.release(self._model, 0, self._size)
