"""A request is drawn once, whichever path answers it and whatever others are on their way."""

from __future__ import annotations

import threading

import pytest

pytest.importorskip("opentelemetry.sdk", reason="the extra [otel] is not installed")

from opentelemetry.context import Context
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, Decision, TraceIdRatioBased

from service.tracing.sampling import DrawnIds


def test_each_of_several_refusals_can_be_left_to_the_general_path() -> None:
    ids = DrawnIds()
    assert not any(ids.takes_new(ALWAYS_OFF, "r") for _ in range(3))
    for _ in range(3):
        ids.put_back()
    # Three requests have been drawn; a sampler that takes all is asked for the fourth.
    assert [ids.takes_new(ALWAYS_ON, "r") for _ in range(4)] == [False, False, False, True]


def test_nothing_is_left_of_a_request_that_its_sender_traces() -> None:
    ids = DrawnIds()
    assert not ids.takes_new(ALWAYS_OFF, "r")
    assert not ids.takes_child(ALWAYS_OFF, "r", Context(), 7)
    ids.put_back()
    assert ids.takes_new(ALWAYS_ON, "r")


def test_more_is_not_put_back_than_was_refused() -> None:
    ids = DrawnIds()
    assert not ids.takes_new(ALWAYS_OFF, "r")
    for _ in range(5):
        ids.put_back()
    assert [ids.takes_new(ALWAYS_ON, "r") for _ in range(2)] == [False, True]


def test_what_another_thread_was_refused_is_not_put_back() -> None:
    ids = DrawnIds()
    thread = threading.Thread(target=ids.takes_new, args=(ALWAYS_OFF, "r"))
    thread.start()
    thread.join()
    ids.put_back()
    assert ids.takes_new(ALWAYS_ON, "r")


def test_the_share_stays_what_it_is_where_all_are_put_back() -> None:
    ids, sampler = DrawnIds(), TraceIdRatioBased(0.25)
    taken = 0
    for _ in range(500):
        # Rounds of four, none of which is answered directly: the general path's spans have the ids that were drawn.
        told = [ids.takes_new(sampler, "r") for _ in range(4)]
        for is_sampled in told:
            if not is_sampled:
                ids.put_back()
        drawn = [sampler.should_sample(None, ids.generate_trace_id(), "r").decision for _ in range(4)]
        taken += sum(one is Decision.RECORD_AND_SAMPLE for one in drawn)
    assert 380 < taken < 620
