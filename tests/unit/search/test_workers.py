"""Threads take turns between models, bytes in flight are limited, and calls that hang are given up."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from service.admission import Admission, Limits, Reservation
from service.errors import DeadlineExceeded, NotReady, Overloaded, ServiceError
from service.search.searches import Job, Workers
from service.versions.loads import Attempt, TimeIsOver
from service.versions.poller import CompensatingPool

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


def filled(admission: Admission, model: str, size: int) -> int:
    """Reserves bytes in pieces until the admission refuses; returns how many pieces it got."""
    pieces = 0
    while True:
        try:
            admission.reserve_bytes(model, size)
        except Overloaded:
            return pieces
        pieces += 1


def test_a_model_alone_gets_four_fifths_and_the_next_ones_find_room() -> None:
    admission = Admission(Limits(bytes=1000))
    # A model may add a piece while it holds at most four times the free bytes: 800 <= 4 * 200 lets piece 81 in.
    assert filled(admission, "flood", 10) == 81
    # 190 bytes are free, and a model may add a piece while m <= 4 * (190 - m), which holds up to m = 152.
    assert filled(admission, "other", 10) == 16
    assert filled(admission, "third", 1) == 25
    assert sum(admission.held().values()) <= 1000


def test_a_refusal_names_the_limit_and_is_counted_with_model_and_reason() -> None:
    observer = RecordingAdmission()
    admission = Admission(Limits(bytes=100), observer)
    admission.reserve_bytes("a", 50)
    with pytest.raises(Overloaded, match="50 bytes of requests and answers are in flight, its limit is 100"):
        admission.reserve_bytes("b", 51)
    with pytest.raises(Overloaded, match="50 bytes"):
        admission.check_bytes("b", 51)
    assert observer.refusals == [("b", "bytes"), ("b", "bytes")]


def test_what_was_given_back_can_be_taken_again_and_leaves_nothing_behind() -> None:
    admission = Admission(Limits(bytes=100))
    for _ in range(3):
        admission.reserve_bytes("a", 100)
        assert admission.held() == {"a": 100}
        admission.release("a", 100)
    assert admission.held() == {}


def test_room_is_given_back_by_its_last_user() -> None:
    admission = Admission(Limits(bytes=100))
    reservation = Reservation(admission, "a")
    reservation.grow(30)
    reservation.grow(20)
    reservation.add_user()
    reservation.drop_user()
    assert admission.held() == {"a": 50}
    reservation.drop_user()
    assert admission.held() == {}


def test_room_that_is_refused_keeps_what_it_had() -> None:
    admission = Admission(Limits(bytes=100))
    reservation = Reservation(admission, "a")
    reservation.grow(60)
    with pytest.raises(Overloaded):
        reservation.grow(60)
    assert admission.held() == {"a": 60}
    reservation.drop_user()
    assert admission.held() == {}


class RecordingAdmission:
    """An AdmissionObserver that records refusals and waits."""

    def __init__(self) -> None:
        self.refusals: list[tuple[str, str]] = []
        self.waits: list[tuple[str, float]] = []

    def refused(self, model: str, reason: str) -> None:
        """Records a refusal."""
        self.refusals.append((model, reason))

    def waited(self, model: str, seconds: float) -> None:
        """Records a wait."""
        self.waits.append((model, seconds))


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
