"""Calls that hang are given up, and threads of loads have a lower priority."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from concurrent.futures import Future

import pytest

from service.versions.loads import Attempt, TimeIsOver
from service.versions.poller import CompensatingPool


def test_a_call_in_time_returns_or_raises_what_it_did() -> None:
    late: list[object] = []
    assert Attempt("call", lambda: 7, late.append).result(60) == 7
    failing: Attempt[int] = Attempt("call", lambda: int("x"), late.append)
    with pytest.raises(ValueError, match="invalid literal"):
        failing.result(0)
    assert failing.is_over
    assert late == []


@pytest.mark.parametrize(("call", "thrown_away"), [(lambda: 7, 7), (lambda: int("x"), None)])
def test_what_comes_back_late_is_thrown_away(call: object, thrown_away: int | None) -> None:
    go, done = threading.Event(), threading.Event()
    late: list[int | None] = []

    def slow() -> int:
        go.wait()
        return call()  # type: ignore[operator, no-any-return]

    def throw_away(result: int | None) -> None:
        late.append(result)
        done.set()

    attempt = Attempt("call", slow, throw_away)
    with pytest.raises(TimeIsOver):
        attempt.result(0.01)
    assert not attempt.is_over
    go.set()
    assert done.wait(60)
    assert attempt.is_over
    assert late == [thrown_away]


class Tables:
    """The tables of a version that is loaded; a class of its own, to which a weak reference is possible."""


def test_a_failed_call_keeps_none_of_its_variables_without_the_garbage_collector() -> None:
    seen: list[weakref.ref[Tables]] = []

    def load() -> Tables:
        tables = Tables()
        seen.append(weakref.ref(tables))
        raise ValueError("its graph does not fit")

    gc.disable()
    try:
        with pytest.raises(ValueError, match="does not fit") as raised:
            Attempt("call", load).result(60)
        for thread in threading.enumerate():
            if thread.name == "call":
                thread.join()
        del raised
        assert seen[0]() is None
    finally:
        gc.enable()


def test_threads_of_loads_and_threads_that_they_start_have_a_lower_priority() -> None:
    own = os.getpriority(os.PRIO_PROCESS, os.getpid())
    found: Future[tuple[int, int]] = Future()

    def niceness() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    def job() -> None:
        of_child: list[int] = []
        child = threading.Thread(target=lambda: of_child.append(niceness()))
        child.start()
        child.join()
        # A job that submits a job lowers no priority twice.
        pool.submit(lambda: found.set_result((niceness(), of_child[0])))

    pool = CompensatingPool("niceness", 2)
    pool.submit(job)
    expected = min(own + 3, 19)
    assert found.result(60) == (expected, expected)
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == own
