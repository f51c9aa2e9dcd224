"""Delays before a worker is started again, on a clock turned by hand."""

from __future__ import annotations

from service.workers.backoff import Backoff


class Clock:
    """Seconds that a test sets."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def lives(backoff: Backoff, clock: Clock, *seconds: float) -> list[float]:
    """Returns the delay after each of several lives."""
    delays = []
    for life_s in seconds:
        backoff.listening()
        clock.now_s += life_s
        delays.append(backoff.ended())
    return delays


def test_one_that_ends_soon_again_and_again_waits_longer_and_longer() -> None:
    clock = Clock()
    backoff = Backoff(clock)
    assert lives(backoff, clock, *[1] * 10) == [0, 0.25, 0.5, 1, 2, 4, 8, 16, 30, 30]
    assert backoff.num_short == 10


def test_one_that_lived_is_started_at_once_and_counts_anew() -> None:
    clock = Clock()
    assert lives(Backoff(clock), clock, 1, 1, 10, 1, 1, 3600) == [0, 0.25, 0, 0, 0.25, 0]


def test_one_that_never_comes_up_waits_however_long_it_tries() -> None:
    clock = Clock()
    backoff = Backoff(clock)
    delays = []
    for _ in range(3):
        clock.now_s += 100
        delays.append(backoff.ended())
    assert delays == [0, 0.25, 0.5]


def test_the_delay_stays_finite() -> None:
    clock = Clock()
    assert lives(Backoff(clock), clock, *[0] * 3000)[-1] == 30
