"""Checks that each client of a batch gets its own answer or its own error, whoever shares the batch."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Condition, Event
from typing import Any

import numpy as np
import pytest

from service.engine.batch_scheduler import Scheduler
from service.engine.batcher import Batcher
from service.engine.batching_parameters import BatchingParameters
from service.errors import (
    BackendFailure,
    DeadlineExceeded,
    InputMismatch,
    InvalidRequest,
    NotBatchable,
    NotReady,
    Overloaded,
)
from service.types import Array, RaggedNames, SignatureSpec, Tensors, TensorSpec
from tests.conftest import Clock
from tests.unit.engine.fakes import FakeBackend, predict_spec

SPEC = predict_spec()
TIMEOUT_S = 30


class RecordingBatches:
    """Records the calls of a batch observer in order."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.batches: list[tuple[int, int, int, list[float]]] = []
        self.errors: list[Exception] = []

    def arrived(self, *, rows: int) -> None:
        """See BatchObserver."""
        self.rows.append(rows)

    def processed(self, *, requests: int, rows: int, padding: int, queue_seconds: list[float]) -> None:
        """See BatchObserver."""
        self.batches.append((requests, rows, padding, queue_seconds))

    def rejected(self, *, error: Exception) -> None:
        """See BatchObserver."""
        self.errors.append(error)


class Bench:
    """A batcher whose clock stands still and whose threads are the test: what is asked waits until run_due.

    Each request that is enqueued asks for a thread; none is given, but it tells that the request now waits.
    """

    def __init__(
        self, clients: ThreadPoolExecutor, backend: Any = None, spec: SignatureSpec = SPEC, **parameters: Any
    ) -> None:
        self.clock = Clock()
        self.backend = backend or FakeBackend()
        self.observed = RecordingBatches()
        self._clients = clients
        self._changed = Condition()
        self._num_enqueued = 0
        self.scheduler = Scheduler(1000, clock=self.clock, start_thread=lambda name, work: self._count(1))
        made = BatchingParameters(**({"batch_timeout_micros": 1_000_000} | parameters))
        made.check()
        self._spec = spec
        self.batcher = Batcher(
            self.backend,
            {spec.name: spec},
            parameters=made,
            scheduler=self.scheduler,
            observer=self.observed,
        )

    def ask(
        self, *x: float, outputs: tuple[str, ...] = ("y",), deadline_s: float | None = None, shape: Any = -1
    ) -> Future[dict[str, Array]]:
        """Sends a request in a thread; returns its future as soon as the request waits in the queue."""
        return self.ask_with({"x": np.array(x, np.float32).reshape(shape)}, outputs, deadline_s)

    def ask_with(
        self, inputs: Tensors, outputs: tuple[str, ...] = ("y",), deadline_s: float | None = None
    ) -> Future[dict[str, Array]]:
        """Sends a request with any inputs, and waits until it waits in a batch or is over; returns its future."""
        before = self._num_enqueued
        future = self._clients.submit(self.batcher.run, self._spec.name, inputs, outputs, deadline_s)
        future.add_done_callback(lambda _: self._count(0))
        with self._changed:
            assert self._changed.wait_for(lambda: self._num_enqueued > before or future.done(), TIMEOUT_S)
        return future

    def run(self, *x: float, outputs: tuple[str, ...] = ("y",), deadline_s: float | None = None) -> dict[str, Array]:
        """Sends a request that is answered or refused at once; returns its outputs."""
        return self.ask(*x, outputs=outputs, deadline_s=deadline_s).result(TIMEOUT_S)

    def run_due(self) -> None:
        """Lets the timeout of every batch pass, and runs all batches that are due."""
        self.clock.now_s += 1
        while self.scheduler.run_ready():
            pass

    @property
    def fed(self) -> list[list[float]]:
        """Returns the inputs that the backend got, run by run."""
        return [inputs["x"].tolist() for _, inputs, _ in self.backend.runs]

    def _count(self, number: int) -> None:
        with self._changed:
            self._num_enqueued += number
            self._changed.notify_all()


@pytest.fixture
def bench() -> Iterator[Callable[..., Bench]]:
    """Returns a function that makes benches; runs the requests that a failed test leaves waiting."""
    made: list[Bench] = []

    def make(backend: Any = None, spec: SignatureSpec = SPEC, **parameters: Any) -> Bench:
        made.append(Bench(clients, backend, spec, **parameters))
        return made[-1]

    with ThreadPoolExecutor(20) as clients:
        yield make
        for b in made:
            b.run_due()


def y(future: Future[dict[str, Array]]) -> list[float]:
    """Waits for a request; returns its output "y"."""
    answer: list[float] = future.result(TIMEOUT_S)["y"].tolist()
    return answer


def test_requests_that_wait_run_together_and_each_gets_its_own_rows(bench: Callable[..., Bench]) -> None:
    b = bench()
    first, second, third = b.ask(1), b.ask(2, 3), b.ask(4)
    assert not b.scheduler.run_ready(), "the batch is not due"
    b.run_due()
    assert (y(first), y(second), y(third)) == ([2], [4, 6], [8])
    assert b.fed == [[1, 2, 3, 4]]


def test_a_batch_that_is_full_does_not_wait(bench: Callable[..., Bench]) -> None:
    b = bench(max_batch_size=3)
    first, second, third = b.ask(1), b.ask(2, 3), b.ask(4)
    assert b.scheduler.run_ready()
    assert (y(first), y(second)) == ([2], [4, 6])
    assert not b.scheduler.run_ready(), "the third waits for company"
    b.run_due()
    assert y(third) == [8]


def test_a_request_that_does_not_fit_closes_the_batch_before_it(bench: Callable[..., Bench]) -> None:
    b = bench(max_batch_size=3)
    first, second = b.ask(1, 2), b.ask(3, 4)
    assert b.scheduler.run_ready()
    assert y(first) == [2, 4]
    b.run_due()
    assert (y(second), b.fed) == ([6, 8], [[1, 2], [3, 4]])


def test_without_timeout_a_lone_request_runs_in_its_own_thread(bench: Callable[..., Bench]) -> None:
    b = bench(batch_timeout_micros=0)
    assert b.run(1, 2)["y"].tolist() == [2, 4]
    assert b.observed.batches == [(1, 2, 0, [0.0])]


def test_with_timeout_so_does_one_that_is_a_full_batch(bench: Callable[..., Bench]) -> None:
    assert bench(max_batch_size=2).run(1, 2)["y"].tolist() == [2, 4]


def test_who_comes_while_every_place_is_taken_waits_for_one(bench: Callable[..., Bench]) -> None:
    began, may_end = Event(), Event()

    def slow(inputs: Tensors) -> dict[str, Array]:
        began.set()
        assert may_end.wait(TIMEOUT_S)
        return {"y": inputs["x"] * 2}

    backend, scheduler = FakeBackend(slow), Scheduler(1)
    batcher = Batcher(
        backend,
        {SPEC.name: SPEC},
        parameters=BatchingParameters(),
        scheduler=scheduler,
        observer=RecordingBatches(),
    )
    with ThreadPoolExecutor() as clients:
        futures = []
        for value in range(4):
            request = {"x": np.array([value], np.float32)}
            futures.append(clients.submit(batcher.run, SPEC.name, request, ("y",)))
            assert began.wait(TIMEOUT_S)
        assert len(backend.runs) == 1, "one place, and it is taken"
        may_end.set()
        assert [y(future) for future in futures] == [[0], [2], [4], [6]]
        scheduler.stop()


def test_outputs_asked_for_may_differ_within_a_batch(bench: Callable[..., Bench]) -> None:
    b = bench()
    first, second = b.ask(1, outputs=("z",)), b.ask(2, outputs=("y",))
    b.run_due()
    assert (list(first.result(TIMEOUT_S)), first.result()["z"].tolist()) == (["z"], [3])
    assert (list(second.result(TIMEOUT_S)), y(second)) == (["y"], [4])
    assert [(x["x"].tolist(), names) for _, x, names in b.backend.runs] == [([1, 2], ("y", "z"))]


def test_an_output_that_nobody_wants_is_not_run(bench: Callable[..., Bench]) -> None:
    b = bench()
    futures = [b.ask(1), b.ask(2)]
    b.run_due()
    assert [y(future) for future in futures] == [[2], [4]]
    assert b.backend.runs[0][2] == ("y",)


def test_requests_of_unequal_inner_shapes_run_apart(bench: Callable[..., Bench]) -> None:
    b = bench()
    wide, narrow, wide_too = b.ask(1, 2, shape=(1, 2)), b.ask(3, shape=(1, 1)), b.ask(4, 5, shape=(1, 2))
    b.run_due()
    assert b.fed == [[[1, 2], [4, 5]], [[3]]]
    assert [future.result(TIMEOUT_S)["y"].tolist() for future in (wide, narrow, wide_too)] == [
        [[2, 4]],
        [[6]],
        [[8, 10]],
    ]


def test_with_padding_they_run_together(bench: Callable[..., Bench]) -> None:
    b = bench(pad_variable_length_inputs=True)
    wide, narrow = b.ask(1, 2, shape=(1, 2)), b.ask(3, shape=(1, 1))
    b.run_due()
    assert b.fed == [[[1, 2], [3, 3]]]
    assert wide.result(TIMEOUT_S)["y"].tolist() == [[2, 4]]
    assert narrow.result(TIMEOUT_S)["y"].tolist() == [[6, 6]], "the padding stays in the answer, as there"


def test_a_batch_is_padded_to_an_allowed_size_with_a_row_of_its_last_request(bench: Callable[..., Bench]) -> None:
    b = bench(max_batch_size=8, allowed_batch_sizes=(2, 5, 8))
    first, second = b.ask(1), b.ask(2, 3)
    b.run_due()
    assert b.fed == [[1, 2, 3, 2, 2]]
    assert (y(first), y(second)) == ([2], [4, 6])
    assert b.observed.batches == [(2, 3, 2, [1.0, 1.0])]


def test_a_lone_request_is_padded_too(bench: Callable[..., Bench]) -> None:
    b = bench(batch_timeout_micros=0, max_batch_size=4, allowed_batch_sizes=(4,))
    assert b.run(1)["y"].tolist() == [2]
    assert b.fed == [[1, 1, 1, 1]]


def test_a_request_larger_than_a_batch_is_refused(bench: Callable[..., Bench]) -> None:
    b = bench(max_batch_size=3)
    with pytest.raises(InputMismatch) as refused:
        b.run(1, 2, 3, 4)
    assert refused.value.message == "Task size 4 is larger than maximum input batch size 3"
    assert b.observed.errors == [refused.value]


def test_or_it_is_split_over_batches_and_put_together_again(bench: Callable[..., Bench]) -> None:
    b = bench(max_batch_size=10, enable_large_batch_splitting=True, max_execution_batch_size=3)
    first, large, last = b.ask(1, 2), b.ask(3, 4, 5, 6, 7), b.ask(8)
    b.run_due()
    assert b.fed == [[1, 2, 3], [4, 5, 6], [7, 8]]
    assert [y(future) for future in (first, large, last)] == [[2, 4], [6, 8, 10, 12, 14], [16]]
    with pytest.raises(InputMismatch, match="Task size 11 is larger than maximum input batch size 10"):
        b.run(*range(11))


def test_a_full_queue_refuses(bench: Callable[..., Bench]) -> None:
    b = bench(max_batch_size=2, max_enqueued_batches=2)
    waiting = [b.ask(1), b.ask(2, 3)]
    with pytest.raises(Overloaded) as refused:
        b.run(4)
    assert refused.value.message == (
        "The batch scheduling queue to which this task was submitted is full; currently 2 batches enqueued and "
        "max_enqueued_batches is 2"
    )
    assert b.observed.errors == [refused.value]
    b.run_due()
    assert [y(future) for future in waiting] == [[2], [4, 6]]
    again = b.ask(5)
    b.run_due()
    assert y(again) == [10], "there is room again"


def test_a_full_queue_refuses_what_is_to_be_split(bench: Callable[..., Bench]) -> None:
    b = bench(max_batch_size=4, max_enqueued_batches=2, enable_large_batch_splitting=True, max_execution_batch_size=2)
    first = b.ask(1, 2, 3)
    with pytest.raises(Overloaded) as refused:
        b.ask(4, 5).result(TIMEOUT_S)
    assert refused.value.message == (
        "The batch scheduling queue to which this task was submitted is full; task size is 2 but scheduling capacity "
        "is only 1 (num_enqueued_batches=2, max_enqueued_batches=2, open_batch_size=1, max_execution_batch_size=2)"
    )
    b.run_due()
    assert y(first) == [2, 4, 6]


def refusing(value: float) -> FakeBackend:
    """Returns a backend that refuses each batch with this value in it."""

    def answer(inputs: Tensors) -> dict[str, Array]:
        if value in inputs["x"]:
            raise InvalidRequest(f"no {value:g}, please")
        return {"y": inputs["x"] * 2}

    return FakeBackend(answer)


def test_an_error_of_one_request_is_its_own(bench: Callable[..., Bench]) -> None:
    b = bench(refusing(13))
    good, bad, good_too = b.ask(1), b.ask(13), b.ask(2)
    b.run_due()
    assert (y(good), y(good_too)) == ([2], [4])
    with pytest.raises(InvalidRequest, match="no 13, please"):
        bad.result(TIMEOUT_S)


def test_a_split_request_fails_as_a_whole_and_what_is_left_of_it_is_not_run(bench: Callable[..., Bench]) -> None:
    b = bench(refusing(13), max_batch_size=6, enable_large_batch_splitting=True, max_execution_batch_size=2)
    bad = b.ask(13, 1, 2, 3, 4)
    b.run_due()
    with pytest.raises(InvalidRequest, match="no 13, please"):
        bad.result(TIMEOUT_S)
    assert b.fed == [[13, 1]]


def test_a_fault_of_the_server_is_everybodys(bench: Callable[..., Bench]) -> None:
    def answer(inputs: Tensors) -> dict[str, Array]:
        raise BackendFailure("hidden")

    b = bench(FakeBackend(answer))
    futures = [b.ask(1), b.ask(2)]
    b.run_due()
    errors = [future.exception(TIMEOUT_S) for future in futures]
    assert [(type(error), str(error)) for error in errors] == [(BackendFailure, "hidden")] * 2
    assert errors[0] is not errors[1], "threads that raise the same error write into one traceback"
    assert len(b.backend.runs) == 1


def test_a_bug_answers_everybody_too(bench: Callable[..., Bench]) -> None:
    def answer(inputs: Tensors) -> dict[str, Array]:
        raise ZeroDivisionError("a bug")

    b = bench(FakeBackend(answer))
    futures = [b.ask(1), b.ask(2)]
    b.run_due()
    for future in futures:
        error = future.exception(TIMEOUT_S)
        assert isinstance(error, RuntimeError)
        assert isinstance(error.__cause__, ZeroDivisionError)


@pytest.mark.parametrize(
    ("output", "text"),
    [
        (np.float32(1), "Batched output tensor has 0 dimensions"),
        (
            np.zeros(7),
            (
                "Batched output tensor's 0th dimension does not equal the sum of the 0th dimension sizes of the input "
                "tensors"
            ),
        ),
    ],
)
def test_an_output_without_the_batchs_rows_is_refused_to_who_wants_it(
    bench: Callable[..., Bench], output: Any, text: str
) -> None:
    b = bench(FakeBackend(lambda inputs: {"y": inputs["x"] * 2, "z": np.asarray(output)}))
    good, bad = b.ask(1), b.ask(2, outputs=("y", "z"))
    b.run_due()
    assert y(good) == [2]
    error = bad.exception(TIMEOUT_S)
    assert isinstance(error, NotBatchable)
    assert (error.message, error.code) == (text, "FAILED_PRECONDITION")
    alone = bench(b.backend, batch_timeout_micros=0)
    with pytest.raises(NotBatchable):
        alone.run(1, outputs=("z",))


def test_a_request_that_waited_too_long_is_dropped_before_any_work(bench: Callable[..., Bench]) -> None:
    b = bench()
    late, good = b.ask(1, deadline_s=1000.5 + TIMEOUT_S), b.ask(2)
    b.clock.now_s += TIMEOUT_S
    b.run_due()
    assert y(good) == [4]
    with pytest.raises(DeadlineExceeded) as dropped:
        late.result(TIMEOUT_S)
    assert dropped.value.message == "Run() timeout exceeded while waiting in batching queue"
    assert b.fed == [[2]]
    assert [type(error) for error in b.observed.errors] == [DeadlineExceeded]


def test_a_batch_of_late_requests_only_is_not_run(bench: Callable[..., Bench]) -> None:
    b = bench()
    late = b.ask(1, deadline_s=1000.5 + TIMEOUT_S)
    b.clock.now_s += TIMEOUT_S
    b.run_due()
    assert isinstance(late.exception(TIMEOUT_S), DeadlineExceeded)
    assert b.fed == []


def test_a_client_whose_deadline_passes_does_not_wait_for_a_thread(bench: Callable[..., Bench]) -> None:
    b = bench()
    late = b.ask(1, deadline_s=1000.01)
    assert isinstance(late.exception(TIMEOUT_S), DeadlineExceeded)
    b.run_due()
    assert b.fed == []


def test_a_deadline_beyond_what_a_lock_can_wait_is_none(bench: Callable[..., Bench]) -> None:
    b = bench()
    patient = b.ask(1, deadline_s=1e18)
    b.run_due()
    assert y(patient) == [2]


def test_no_rows_run_by_themselves(bench: Callable[..., Bench]) -> None:
    b = bench(max_batch_size=2, allowed_batch_sizes=(2,))
    assert b.run()["y"].shape == (0,)
    assert b.observed.rows == []


def test_a_request_that_can_not_be_batched_says_why(bench: Callable[..., Bench]) -> None:
    b = bench()
    with pytest.raises(InputMismatch, match=r"Batching Run\(\) input tensors must have at least one dimension"):
        b.batcher.run(SPEC.name, {"x": np.array(1, np.float32)}, ("y",))


def test_when_the_server_stops_nothing_new_is_taken_and_what_waits_is_answered(bench: Callable[..., Bench]) -> None:
    b = bench()
    waiting = b.ask(1)
    b.scheduler.stop()
    with pytest.raises(NotReady, match="shutting down"):
        b.run(2)
    b.run_due()
    assert y(waiting) == [2]


def test_closing_closes_the_backend(bench: Callable[..., Bench]) -> None:
    b = bench()
    b.batcher.close()
    assert b.backend.closed == 1


def test_a_closed_batcher_is_freed_without_the_garbage_collector() -> None:
    gc.disable()
    try:
        backend = FakeBackend()
        freed = weakref.ref(backend)
        batcher = Batcher(
            backend,
            {SPEC.name: SPEC},
            parameters=BatchingParameters(),
            scheduler=Scheduler(1),
            observer=RecordingBatches(),
        )
        batcher.close()
        del backend, batcher
        assert freed() is None
    finally:
        gc.enable()


def test_ragged_features_are_batched_and_padded(bench: Callable[..., Bench]) -> None:
    inputs = {name: TensorSpec(name, "int64", (None,)) for name in ("g__values", "g__row_splits")}
    outputs = {"y": TensorSpec("y", "int64", (None,))}
    spec = SignatureSpec("s", "predict", "", inputs, outputs, ragged_names=(RaggedNames.by_suffix("g"),))
    # Each row's answer is the sum of its ids, so row splits that are not shifted by the ids of the request before give
    # wrong sums.
    sums = FakeBackend(lambda x: {"y": np.add.reduceat(x["g__values"], x["g__row_splits"][:-1])})
    b = bench(sums, spec, max_batch_size=4, allowed_batch_sizes=(4,))
    first = b.ask_with({"g__values": np.array([1, 2, 4]), "g__row_splits": np.array([0, 2, 3])})
    second = b.ask_with({"g__values": np.array([8, 16]), "g__row_splits": np.array([0, 2])})
    b.run_due()
    assert (y(first), y(second)) == ([3, 4], [24])
    ((_, fed, _),) = sums.runs
    assert fed["g__values"].tolist() == [1, 2, 4, 8, 16, 8, 16]
    assert fed["g__row_splits"].tolist() == [0, 2, 3, 5, 7]
