"""Room for the bytes of one request, taken as they arrive and given back when nobody uses them any more."""

from __future__ import annotations

import threading

from service.core.admission.admission import Admission


class Room:
    """What one request holds. Concurrency: any thread; grown by one caller at a time.

    It is used by whoever made it, and by every thread that was handed the bytes; each calls done() once.
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
        """Which model's share it comes out of."""
        return self._model

    def check(self, size: int) -> None:
        """Raises Overloaded where a body of this size would find no room now."""
        self._admission.check_bytes(self._model, size)

    def grow(self, size: int) -> None:
        """Takes room for more bytes; raises Overloaded."""
        self._admission.take_bytes(self._model, size)
        self._size += size

    def use(self) -> None:
        """Says that one more holds the bytes."""
        with self._lock:
            self._users += 1

    def done(self) -> None:
        """Says that one holds them no more; the last gives the room back."""
        with self._lock:
            self._users -= 1
            is_last = self._users == 0
        if is_last and self._size:
            self._admission.give_back(self._model, 0, self._size)
