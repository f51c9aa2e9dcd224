"""Declares the recorder of a model's request log, and chooses at random the requests to record."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Protocol

from service.engine.inference import Classification, Regression
from service.types import Array, SignatureSpec


class Draw:
    """The random choice whether a request is recorded in a model's request log. Concurrency: any thread.

    Args:
      rate: the share of requests that is chosen, 0 to 1.
      source: returns numbers from 0 to below 1.
    """

    __slots__ = ("rate", "_source")

    def __init__(self, rate: float, source: Callable[[], float] = random.random) -> None:
        self.rate = rate
        self._source = source

    def is_chosen(self) -> bool:
        """Says whether the current request is to be recorded in the model's request log."""
        return self._source() < self.rate


class Recorder(Protocol):
    """The recorder that writes answered requests to one model's request log.

    Concurrency: any thread; must not raise nor wait.
    """

    @property
    def draw(self) -> Draw: ...

    def inferred(
        self, spec: SignatureSpec, version: int, *, examples: Array, result: Classification | Regression
    ) -> None:
        """Records a request with serialized tf.Examples that was chosen for the request log, and its answer."""
        ...

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
