"""Calls that may never come back, such as reads of a mount whose server is gone: waited for, but not for ever."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class TimeIsOver(Exception):
    """A call has not come back in its time; its thread goes on waiting."""


class Attempt(Generic[T]):
    """One call in a thread of its own, which does not keep the process from ending. Concurrency: any thread.

    Args:
      on_late: called with the result of a call that came back after it was given up, None where it raised. Must not
        raise.
    """

    def __init__(
        self, name: str, call: Callable[[], T], on_late: Callable[[T | None], object] = lambda result: None
    ) -> None:
        self._call = call
        self._on_late = on_late
        self._result: T | None = None
        self._error: BaseException | None = None
        self._is_given_up = False
        self._is_over = threading.Event()
        # Held while it is decided whether the waiter has the result.
        self._deciding = threading.Lock()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    @property
    def is_over(self) -> bool:
        """Whether the call has come back."""
        return self._is_over.is_set()

    def result(self, timeout_s: float) -> T:
        """Waits for the call and returns or raises what it did; 0: for ever.

        Raises:
          TimeIsOver: it goes on; the result is not to be had any more.
        """
        self._is_over.wait(timeout_s or None)
        with self._deciding:
            if not self.is_over:
                self._is_given_up = True
                raise TimeIsOver
        error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                # No cycle of it and this frame: files that its frames hold are closed now.
                del error
        return self._result  # type: ignore[return-value]  # it is what the call returned

    def _run(self) -> None:
        result: T | None = None
        error: BaseException | None = None
        try:
            result = self._call()
        except BaseException as raised:
            error = raised
        with self._deciding:
            is_late = self._is_given_up
            if not is_late:
                self._result, self._error = result, error
            self._is_over.set()
        if is_late:
            self._on_late(result)
