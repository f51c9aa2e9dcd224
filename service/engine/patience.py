"""Runs a function that may hang, such as a read from a mount whose server is gone, and waits for it with a timeout."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class TimeIsOver(Exception):
    """The error that a function has not returned within its timeout; the daemon thread that runs it goes on."""


class Attempt(Generic[T]):
    """A function call in a daemon thread, which does not keep the process from ending. Concurrency: any thread.

    Args:
      on_late: called if a given-up call ends, with the call's result, or None if the call raised. Must not raise.
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
        # Lock that makes the result reach exactly one receiver: the caller of result(), or on_late after the timeout.
        self._deciding = threading.Lock()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    @property
    def is_over(self) -> bool:
        """Says whether the function that runs in the daemon thread has returned or raised an error."""
        return self._is_over.is_set()

    def result(self, timeout_s: float) -> T:
        """Waits until the daemon thread's function ends; returns its result or raises its error; timeout_s 0: for ever.

        Raises:
          TimeIsOver: the call still runs and is given up; only on_late gets its result.
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
                # Breaks the reference cycle between the error and this frame, so that files in the traceback's frames
                # are closed now.
                del error
        result, self._result = self._result, None
        return result  # type: ignore[return-value]  # it is what the call returned

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
        # Breaks the reference cycle between the error and this frame, as result() does for its own frame.
        del error
        if is_late:
            self._on_late(result)
