"""Decides whether and when a failed call is sent again: only after retryable errors, with growing waits.

This module neither loops nor sleeps, so that the blocking and the asyncio client share it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from embedding_client.errors import EmbeddingError


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The client's rules for retries: how many there are, and how long the client waits before each.

    retries: tries after the first.
    first_wait_s: the wait before the first retry. Waits double up to max_wait_s. Each wait is shortened at random, by
        up to a half, so that clients that failed together do not retry together.
    """

    retries: int = 2
    first_wait_s: float = 0.05
    max_wait_s: float = 2.0

    def __post_init__(self) -> None:
        if self.retries < 0:
            raise ValueError(f"retries is {self.retries}: expected 0 or more")
        if not 0 <= self.first_wait_s <= self.max_wait_s:
            raise ValueError(f"first_wait_s is {self.first_wait_s}: expected 0 to max_wait_s, {self.max_wait_s}")


class Attempts:
    """Counter of the tries of one call; it also computes the waits between tries. Concurrency: one caller at a time.

    Args:
      timeout_s: the limit of all tries together, waits included.
      clock: returns monotonic seconds.
      random: returns a float of [0, 1).
    """

    __slots__ = ("_clock", "_deadline_s", "_number", "_policy", "_random")

    def __init__(
        self, policy: RetryPolicy, timeout_s: float, clock: Callable[[], float], random: Callable[[], float]
    ) -> None:
        if not timeout_s > 0:
            raise ValueError(f"timeout_s is {timeout_s}: expected more than 0")
        self._policy = policy
        self._clock = clock
        self._random = random
        self._deadline_s = clock() + timeout_s
        self._number = 0

    def start_try(self) -> float:
        """Counts a new try of the call; returns its timeout in seconds, 0 or less if timeout_s has passed."""
        self._number += 1
        return self._deadline_s - self._clock()

    def wait_s(self, error: EmbeddingError) -> float:
        """Returns the seconds to wait before the next try: the server's Retry-After, else a random, growing time.

        Raises:
          EmbeddingError: `error` itself, if it is not retryable, no retries are left, or the wait would exceed
          timeout_s.
        """
        error.attempts = self._number
        retry = self._number - 1
        if not error.is_retryable or retry >= self._policy.retries:
            raise error
        if error.retry_after_s is not None:
            wait_s = error.retry_after_s
        else:
            # The number of doublings of the wait is bounded, because 2.0**1024 raises OverflowError.
            longest_s = min(self._policy.first_wait_s * 2.0 ** min(retry, 64), self._policy.max_wait_s)
            wait_s = longest_s * (1 - self._random() / 2)
        if self._clock() + wait_s >= self._deadline_s:
            raise error
        return wait_s
