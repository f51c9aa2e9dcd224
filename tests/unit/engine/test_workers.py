"""Threads with a queue take turns between models, refuse jobs and drop some. The clock moves by hand."""

from __future__ import annotations

import functools
import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from service.engine.admission import Admission, Limits
from service.engine.searches import Job, Workers
from service.errors import DeadlineExceeded, NotReady, Overloaded, ServiceError
from tests.unit.engine.recording_admission import RecordingAdmission

PATIENCE_S = 60


class Pool:
    """Workers with one thread, held by a job until the test lets it go. ran: names of the jobs run since, in order."""

    def __init__(self, **limits: Any) -> None:
        self.now_s = 0.0
        self.observer = RecordingAdmission()
        self.workers = Workers(
            1, name="test", admission=Admission(Limits(**limits), self.observer), clock=lambda: self.now_s
        )
        self.ran: list[str] = []
        self.errors: list[ServiceError] = []
        self._gate = threading.Event()
        self._held: Job | None = None

    def hold(self) -> None:
        """Keeps the worker's thread busy until the test releases it."""
        begun = threading.Event()
        self._gate.clear()

        def wait(error: ServiceError | None) -> None:
            begun.set()
            assert self._gate.wait(PATIENCE_S)

        self._held = self.workers.submit("held", wait)
        assert begun.wait(PATIENCE_S)

    def let_go(self, *jobs: Job) -> None:
        """Lets the thread go on, and waits until these jobs are done."""
        self._gate.set()
        for job in jobs:
            job.exception(PATIENCE_S)

    def add(self, model: str, name: str = "", deadline_s: float | None = None) -> Job:
        """Queues a job that adds its name to `ran`, or its error to `errors`; returns it."""

        def work(error: ServiceError | None) -> str:
            if error is not None:
                self.errors.append(error)
                raise error
            self.ran.append(name or model)
            return name

        return self.workers.submit(model, work, deadline_s)

    def run_for(self, model: str, seconds: float, times: int) -> None:
        """Runs `times` jobs of a model that take `seconds` each, so that the pool learns their cost."""

        def work(error: ServiceError | None) -> None:
            self.now_s += seconds

        for _ in range(times):
            self.workers.submit(model, work).result(PATIENCE_S)


@pytest.fixture
def make() -> Iterator[Callable[..., Pool]]:
    """Returns a function that makes pools; ends their threads after the test."""
    pools: list[Pool] = []

    def make(**limits: Any) -> Pool:
        pools.append(Pool(**limits))
        return pools[-1]

    yield make
    for pool in pools:
        pool.let_go()
        pool.workers.close()


def test_a_result_and_an_error_reach_who_waits(make: Callable[..., Pool]) -> None:
    pool = make()
    assert pool.add("a", "one").result(PATIENCE_S) == "one"

    def fails(error: ServiceError | None) -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        pool.workers.submit("a", fails).result(PATIENCE_S)
    assert pool.add("a", "two").result(PATIENCE_S) == "two"


class Answer:
    """The answer of a job, to which a weak reference is possible."""


def test_an_idle_thread_keeps_nothing_of_its_last_job(make: Callable[..., Pool]) -> None:
    job = make().workers.submit("a", lambda error: Answer())
    freed = threading.Event()
    weakref.finalize(job.result(PATIENCE_S), freed.set)
    del job
    assert freed.wait(PATIENCE_S)


def test_a_waiting_thread_holds_no_job_that_is_done(make: Callable[..., Pool]) -> None:
    class Document:
        """A large part of a request."""

    def fail(error: ServiceError | None, document: Document) -> None:
        raise ValueError

    workers, document = make().workers, Document()
    seen = weakref.ref(document)
    with pytest.raises(ValueError):
        workers.submit("m", functools.partial(fail, document=document)).result(PATIENCE_S)
    del document
    end_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < end_s:
        # The error and its traceback refer to each other.
        gc.collect()
        if seen() is None:
            break
    assert seen() is None


def test_models_take_turns_whatever_they_queued(make: Callable[..., Pool]) -> None:
    pool = make()
    pool.hold()
    jobs = [pool.add("flood", f"flood {i}") for i in range(4)]
    jobs += [pool.add("b", "b 0"), pool.add("c", "c 0"), pool.add("b", "b 1")]
    pool.let_go(*jobs)
    assert pool.ran == ["flood 0", "b 0", "c 0", "flood 1", "b 1", "flood 2", "flood 3"]


def test_the_queue_is_bounded_and_a_flood_leaves_places_for_others(make: Callable[..., Pool]) -> None:
    pool = make(queued=10)
    pool.hold()
    for _ in range(9):
        pool.add("flood")
    with pytest.raises(Overloaded, match="9 requests wait for a thread"):
        pool.add("flood")
    pool.add("other")
    with pytest.raises(Overloaded):
        pool.add("other")
    assert pool.observer.refusals == [("flood", "queue"), ("other", "queue")]


def test_what_would_wait_too_long_is_refused_at_once(make: Callable[..., Pool]) -> None:
    pool = make(wait_s=1.0)
    # The mean time of a run of model a is then just under 0.4 s.
    pool.run_for("a", 0.4, 100)
    pool.hold()
    for _ in range(3):
        pool.add("a")
    # Three waiting requests of 0.4 s each precede the fourth, which would wait more than 1 s.
    with pytest.raises(Overloaded):
        pool.add("a")
    # Models take turns, so only one of a's requests runs before the first request of model b.
    pool.add("b")
    assert pool.observer.refusals == [("a", "wait")]


def test_one_long_run_does_not_make_the_next_ones_be_refused(make: Callable[..., Pool]) -> None:
    pool = make(wait_s=1.0)
    pool.run_for("a", 300.0, 1)
    pool.hold()
    jobs = [pool.add("a") for _ in range(5)]
    pool.let_go(*jobs)
    assert pool.ran == ["a"] * 5


def test_however_slow_its_runs_are_a_thread_has_one_waiting(make: Callable[..., Pool]) -> None:
    pool = make(wait_s=0.1)
    pool.run_for("a", 10.0, 200)
    pool.hold()
    pool.add("a")
    with pytest.raises(Overloaded):
        pool.add("a")


def test_a_deadline_that_can_not_be_kept_is_told_at_once(make: Callable[..., Pool]) -> None:
    pool = make(wait_s=100.0)
    pool.run_for("a", 0.4, 100)
    pool.hold()
    for _ in range(3):
        pool.add("a")
    with pytest.raises(Overloaded):
        pool.add("a", deadline_s=pool.now_s + 1.0)
    pool.add("a", deadline_s=pool.now_s + 2.0)
    assert pool.observer.refusals == [("a", "deadline")]


def test_work_whose_deadline_passed_while_it_waited_is_not_begun(make: Callable[..., Pool]) -> None:
    pool = make()
    pool.hold()
    late, fine = pool.add("a", "late", deadline_s=5.0), pool.add("a", "fine", deadline_s=7.0)
    pool.now_s = 5.0
    pool.let_go(late, fine)
    assert pool.ran == ["fine"]
    assert isinstance(late.exception(), DeadlineExceeded)
    assert pool.observer.refusals == [("a", "deadline")]


def test_work_that_waited_far_too_long_is_not_begun_while_there_is_other(make: Callable[..., Pool]) -> None:
    pool = make(wait_s=1.0)
    pool.hold()
    stale, fresh = pool.add("a", "stale"), pool.add("a", "fresh")
    pool.now_s = 4.5
    pool.let_go(stale, fresh)
    assert isinstance(stale.exception(), Overloaded)
    assert pool.ran == ["fresh"]


def test_a_cancelled_job_leaves_its_place_and_is_never_called(make: Callable[..., Pool]) -> None:
    pool = make(queued=2)
    pool.hold()
    first, second = pool.add("a", "first"), pool.add("b", "second")
    assert first.cancel()
    assert pool.workers.num_waiting == 1
    third = pool.add("a", "third")
    pool.let_go(second, third)
    assert pool.ran == ["second", "third"]
    assert not second.cancel()


def test_what_waits_when_the_pool_closes_is_cancelled_and_nothing_more_is_taken(make: Callable[..., Pool]) -> None:
    pool = make()
    pool.hold()
    job = pool.add("a")
    pool.workers.close()
    assert job.cancelled()
    with pytest.raises(NotReady):
        pool.add("a")


def test_waits_of_what_ran_are_told(make: Callable[..., Pool]) -> None:
    pool = make()
    pool.hold()
    job = pool.add("a")
    pool.now_s = 0.25
    pool.let_go(job)
    assert ("a", 0.25) in pool.observer.waits


def test_where_the_system_gives_no_thread_work_is_refused_until_it_does(
    make: Callable[..., Pool], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    pool = make()
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        for _ in range(3):
            with pytest.raises(Overloaded):
                pool.add("a", "refused")
    assert pool.workers.num_waiting == 0
    assert pool.add("a", "one").result(PATIENCE_S) == "one"
    # The pool's first thread runs all jobs if no further thread can start.
    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert pool.add("a", "two").result(PATIENCE_S) == "two"


def test_a_thread_that_memory_runs_out_for_is_replaced(
    make: Callable[..., Pool], monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[BaseException | None] = []
    monkeypatch.setattr(threading, "excepthook", lambda told: ended.append(told.exc_value))

    def fail(job: Job) -> None:
        raise MemoryError

    pool = make()
    with monkeypatch.context() as patched:
        patched.setattr(pool.workers, "_do", fail)
        pool.add("a", "lost")
        pool.workers.join()
    assert [type(error) for error in ended] == [MemoryError]
    assert pool.add("a", "one").result(PATIENCE_S) == "one"


def test_a_closed_pool_lets_its_threads_go(make: Callable[..., Pool]) -> None:
    pool = make()
    assert pool.add("a", "one").result(PATIENCE_S) == "one"
    pool.workers.close()
    pool.workers.join()
