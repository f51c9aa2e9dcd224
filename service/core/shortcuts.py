"""What answers plain requests for one signature in a wire's own bytes, without arrays in between."""

from __future__ import annotations

from typing import Any, Protocol


class Shortcut(Protocol):
    """Answers one request at a time. Concurrency: any thread."""

    def answer(self, request: Any, max_bytes: int, max_s: float) -> tuple[Any, int] | None:
        """Returns the answer as its wire wants it, and its rows; None where the request is not plain.

        Args:
          request: what the wire's reader made of the request.
          max_bytes: of the answer, as arrays.
          max_s: what a run of a graph may take, as far as is known; infinity: whatever it takes.
        """
        ...


# A request that is begun, to whoever only hands it on. The first of it is how many bytes its lookups will write. A
# plain tuple, for each request makes one.
Begun = tuple[Any, ...]


class StagedShortcut(Shortcut, Protocol):
    """A shortcut that can leave lookups until other requests are there, to do them together."""

    def begin(self, request: Any, max_bytes: int, max_s: float) -> Begun | None:
        """Does what comes before a request's lookups; None where it is not plain. See `answer`."""
        ...

    def finish(self, begun: Begun) -> tuple[Any, int] | None:
        """Returns what `answer` does of a request that the same thread has begun. To be called once."""
        ...
