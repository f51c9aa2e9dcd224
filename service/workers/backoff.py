"""When a worker that ended is started again: at once, and later and later where it keeps ending soon."""

from __future__ import annotations

from collections.abc import Callable

# One that listened for so long did not fail to start, however long the start itself took.
_STEADY_S = 10.0
_FIRST_DELAY_S = 0.25
_LONGEST_DELAY_S = 30.0


class Backoff:
    """Delays for the starts of one worker. Concurrency: one caller at a time.

    >>> now_s = iter([0, 100, 100, 101, 101.25, 102]).__next__
    >>> backoff = Backoff(now_s)
    >>> [(backoff.listening(), backoff.ended())[1] for _ in range(3)]
    [0.0, 0.0, 0.25]
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._listening_s: float | None = None
        self._num_short = 0

    @property
    def num_short(self) -> int:
        """How many of its lives in a row were short."""
        return self._num_short

    def listening(self) -> None:
        """It is up since now."""
        self._listening_s = self._clock()

    def ended(self) -> float:
        """It ended now; returns after how many seconds it is to be started again."""
        since_s, self._listening_s = self._listening_s, None
        if since_s is not None and self._clock() - since_s >= _STEADY_S:
            self._num_short = 0
            return 0.0
        self._num_short += 1
        if self._num_short == 1:
            return 0.0
        # The exponent is bounded too: a float is not for ever.
        return float(min(_FIRST_DELAY_S * 2 ** min(self._num_short - 2, 20), _LONGEST_DELAY_S))
