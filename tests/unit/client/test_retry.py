"""The client decides which errors it tries again, when, and for how long."""

from __future__ import annotations

import pytest

from embedding_client.errors import EmbeddingError, error_of
from embedding_client.retry import Attempts, RetryPolicy
from tests.conftest import Clock

CODES = ["INVALID_ARGUMENT", "NOT_FOUND", "FAILED_PRECONDITION", "DEADLINE_EXCEEDED", "INTERNAL", "RESOURCE_EXHAUSTED"]


def unavailable(retry_after_s: float | None = None) -> EmbeddingError:
    """Returns an error of the one kind that is tried again."""
    return error_of("UNAVAILABLE", "no", retry_after_s)


def attempts(clock: Clock, *, timeout_s: float = 100, chance: float = 0, policy: RetryPolicy | None = None) -> Attempts:
    """Returns the attempts of one call, whose random numbers are all `chance`."""
    return Attempts(policy or RetryPolicy(3, 0.1, 0.3), timeout_s, clock, lambda: chance)


@pytest.mark.parametrize(("chance", "waits"), [(0.0, [0.1, 0.2, 0.3]), (0.5, [0.075, 0.15, 0.225])])
def test_waits_double_up_to_the_longest_and_are_cut_at_random(clock: Clock, chance: float, waits: list[float]) -> None:
    tries = attempts(clock, chance=chance)
    got = []
    for _ in waits:
        tries.start_try()
        got.append(tries.wait_s(unavailable()))
    assert got == pytest.approx(waits)


def test_after_the_last_retry_the_error_comes_out_with_its_count(clock: Clock) -> None:
    tries, last = attempts(clock), unavailable()
    for _ in range(3):
        tries.start_try()
        tries.wait_s(unavailable())
    tries.start_try()
    with pytest.raises(EmbeddingError) as caught:
        tries.wait_s(last)
    assert caught.value is last
    assert last.attempts == 4
    assert str(last) == "UNAVAILABLE: no (tried 4 times)"


@pytest.mark.parametrize("code", CODES)
def test_nothing_else_is_tried_again(clock: Clock, code: str) -> None:
    tries = attempts(clock)
    tries.start_try()
    with pytest.raises(EmbeddingError) as caught:
        tries.wait_s(error_of(code, "no"))
    assert caught.value.attempts == 1
    assert not caught.value.is_retryable


def test_no_retries_means_one_try(clock: Clock) -> None:
    tries = attempts(clock, policy=RetryPolicy(0))
    tries.start_try()
    with pytest.raises(EmbeddingError):
        tries.wait_s(unavailable())


def test_what_the_server_asks_for_goes_before_the_policy(clock: Clock) -> None:
    tries = attempts(clock)
    tries.start_try()
    assert tries.wait_s(unavailable(retry_after_s=7)) == 7


@pytest.mark.parametrize(("retry_after_s", "first_wait_s"), [(10, 0.1), (None, 10)])
def test_a_wait_that_ends_after_the_deadline_is_not_begun(
    clock: Clock, retry_after_s: float | None, first_wait_s: float
) -> None:
    tries = attempts(clock, timeout_s=10, policy=RetryPolicy(3, first_wait_s, 20))
    tries.start_try()
    with pytest.raises(EmbeddingError, match="UNAVAILABLE"):
        tries.wait_s(unavailable(retry_after_s))


def test_all_tries_share_one_deadline(clock: Clock) -> None:
    tries = attempts(clock, timeout_s=10)
    assert tries.start_try() == 10
    clock.now_s += 4
    assert tries.start_try() == 6


def test_many_retries_overflow_nothing(clock: Clock) -> None:
    tries = attempts(clock, timeout_s=1e9, policy=RetryPolicy(5000, 0.1, 2))
    for _ in range(5000):
        tries.start_try()
        assert tries.wait_s(unavailable()) <= 2


@pytest.mark.parametrize("timeout_s", [0, -1, float("nan")])
def test_a_timeout_is_positive(clock: Clock, timeout_s: float) -> None:
    with pytest.raises(ValueError, match="timeout_s"):
        attempts(clock, timeout_s=timeout_s)


@pytest.mark.parametrize("policy", [(-1, 0.1, 1), (1, -0.1, 1), (1, 2, 1)])
def test_a_policy_makes_sense(policy: tuple[int, float, float]) -> None:
    with pytest.raises(ValueError, match="expected 0"):
        RetryPolicy(*policy)
