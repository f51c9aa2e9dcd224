"""Declares the recorder of a model's request log."""

from __future__ import annotations

from typing import Protocol


class Recorder(Protocol):
    """The recorder that writes answered requests to one model's request log.

    rate: the share of requests that the native core chooses for the log, 0 to 1.

    Concurrency: any thread; must not raise nor wait.
    """

    @property
    def rate(self) -> float: ...

    def answered(self, version: int, signature_name: str, answered_s: int, log: bytes) -> None:
        """Records a request that the native core has answered.

        Args:
          answered_s: seconds since 1970.
          log: a serialized PredictionLog that lacks its log_metadata.
        """
        ...

    def note_dropped(self, count: int) -> None:
        """Counts requests that the native core chose for the request log and dropped."""
        ...
