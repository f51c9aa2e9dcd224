"""What batching tells of itself."""

from __future__ import annotations

from typing import Protocol


class BatchObserver(Protocol):
    """Learns of requests and batches. Concurrency: any thread; must not raise."""

    def arrived(self, *, rows: int) -> None:
        """A request of so many rows came to be batched."""
        ...

    def processed(self, *, requests: int, rows: int, padding: int, queue_seconds: list[float]) -> None:
        """A batch was begun: requests, or parts of them, of so many rows together, padded by so many more rows.

        queue_seconds: how long each of them waited.
        """
        ...

    def rejected(self, *, error: Exception) -> None:
        """A request was turned away before any work: too large, the queue full, or late."""
        ...
