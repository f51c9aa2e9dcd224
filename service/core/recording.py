"""What keeps some of a model's requests, and how one is chosen without a cost for those that are not."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import Protocol

from service.core.inference import Classification, Regression
from service.core.types import Array, SignatureSpec, Tensors

# Far more than requests can be on their way from one path to the other.
_MAX_DRAWN = 10_000


class Draw:
    """Chooses requests at random, each of them once, whatever paths it tries.

    A request that is chosen leaves the direct path, which knows bytes only, for the general one, which has the tensors.
    What was drawn for it waits meanwhile for whoever asks next: then that request is kept in its place, and a draw made
    for it, so that as many are kept as were chosen.

    Concurrency: any thread; a deque's append and popleft are atomic.

    Args:
      rate: the share of requests that is chosen, 0 to 1.
      source: numbers from 0 to below 1.
    """

    __slots__ = ("rate", "_source", "_drawn")

    def __init__(self, rate: float, source: Callable[[], float] = random.random) -> None:
        self.rate = rate
        self._source = source
        self._drawn: deque[bool] = deque(maxlen=_MAX_DRAWN)

    def take(self) -> bool:
        """Says whether a request is chosen."""
        try:
            return self._drawn.popleft()
        except IndexError:
            return self._source() < self.rate

    def put_back(self, is_chosen: bool) -> None:
        """Leaves what was drawn to another path."""
        self._drawn.append(is_chosen)


class Recorder(Protocol):
    """Keeps requests of one model that were answered. Concurrency: any thread; must not raise nor wait."""

    @property
    def draw(self) -> Draw: ...

    def predicted(
        self,
        spec: SignatureSpec,
        version: int,
        *,
        inputs: Tensors,
        output_filter: tuple[str, ...],
        outputs: dict[str, Array],
    ) -> None:
        """Takes a chosen request as it came, and its answer; the arrays must not change any more."""
        ...

    def inferred(
        self, spec: SignatureSpec, version: int, *, examples: Array, result: Classification | Regression
    ) -> None:
        """Takes a chosen request of serialized Examples, and its answer."""
        ...
