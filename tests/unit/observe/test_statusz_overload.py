"""Checks the overload part of the status document, from counters with requests in them."""

from __future__ import annotations

from service.engine.admission import Limits
from service.observe.request_metrics import AdmissionCounter
from service.observe.statusz import overload


def test_each_model_with_what_it_holds_and_why_it_was_refused() -> None:
    counted = AdmissionCounter(lambda: 0.0)
    for model, reason in (("a", "wait"), ("a", "wait"), ("a", "bytes"), ("b", "queue")):
        counted.refused(model, reason)
    for seconds in [0.004] * 99 + [0.09]:
        counted.waited("c", seconds)
    counted.connection_dropped("connections")
    counted.held_by_core({"a": 5})
    found = overload({"a": 10}, Limits(bytes=100, queued=3, wait_s=0.2), counted)
    a, b, c = found["models"]
    assert a == {
        "model": "a",
        "in_flight_bytes": 15,
        "refused": {"bytes": 1, "wait": 2},
        "p99_thread_wait_ms": None,
    }
    assert (b["model"], b["in_flight_bytes"], b["refused"]) == ("b", 0, {"queue": 1})
    assert c["model"] == "c" and 4 <= c["p99_thread_wait_ms"] < 90
    assert found["limits"] == {"bytes": 100, "queued": 3, "wait_ms": 200.0}
    assert found["connections_dropped"] == {"connections": 1}
