"""What answers plain requests for one signature in a wire's own bytes, without arrays in between."""

from __future__ import annotations

from typing import Any, Protocol

# What a shortcut keeps to, else it leaves a request to the general path: bytes of all outputs of the signature for as
# many rows, which is what others are refused by; bytes of the answer, as arrays; seconds that a run of a graph may
# take, as far as is known. A plain tuple, for each request makes one.
Limits = tuple[int, float, float]


class Shortcut(Protocol):
    """Answers one request at a time. Concurrency: any thread."""

    def answer(self, request: Any, limits: Limits) -> tuple[Any, int] | None:
        """Returns the answer as its wire wants it, and its rows; None where the request is not plain.

        Args:
          request: what the wire's reader made of the request.
        """
        ...


# A request that is begun, to whoever only hands it on. The first of it is how many bytes its lookups will write. A
# plain tuple, for each request makes one.
Begun = tuple[Any, ...]


class StagedShortcut(Shortcut, Protocol):
    """A shortcut that can leave lookups until other requests are there, to do them together."""

    def begin(self, request: Any, limits: Limits) -> Begun | None:
        """Does what comes before a request's lookups; None where it is not plain. See `answer`."""
        ...

    def finish(self, begun: Begun) -> tuple[Any, int] | None:
        """Returns what `answer` does of a request that the same thread has begun. To be called once."""
        ...
