"""Requests for a tower that arrive during a run share the next run; a request that is alone never waits."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from service.engine.servable import Servable
from service.errors import DeadlineExceeded, IdOutOfRange, InvalidRequest
from service.loading.loader import ServableLoader
from service.loading.tower_batching import TowerBatcher
from service.types import Array, SignatureSpec, Tensors, TensorSpec
from tests.conftest import Clock

SPEC = SignatureSpec(
    "double",
    "predict",
    "",
    {"x": TensorSpec("x", "int64", (None,))},
    {"y": TensorSpec("y", "int64", (None,))},
)


class Doubling:
    """A model that doubles numbers, refuses those below 0, and waits in a run until the test lets it go on."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.may_run = threading.Event()
        self.may_run.set()
        self.is_running = threading.Event()
        self.closed = 0

    def run(self, signature_name: str, inputs: Tensors, outputs: tuple[str, ...]) -> dict[str, Array]:
        """Returns y = 2 x."""
        self.rows.append(inputs["x"].size)
        self.is_running.set()
        assert self.may_run.wait(60)
        if (inputs["x"] < 0).any():
            raise IdOutOfRange(f"{inputs['x'].min()} is below 0")
        return {"y": inputs["x"] * 2}

    def close(self) -> None:
        """Counts."""
        self.closed += 1


@pytest.fixture
def backend() -> Doubling:
    """A backend that doubles its input, whose runs are batched."""
    return Doubling()


@pytest.fixture
def clock() -> Clock:
    """Returns the clock with which deadlines are compared."""
    return Clock()


@pytest.fixture
def batcher(backend: Doubling, clock: Clock) -> Iterator[TowerBatcher]:
    """Yields a batcher whose runs have at most 8 rows."""
    batcher = TowerBatcher(backend, {"double": SPEC}, 8, clock=clock)
    yield batcher
    backend.may_run.set()
    batcher.close()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    """Threads of requests."""
    with ThreadPoolExecutor(8) as pool:
        yield pool


def ask(batcher: TowerBatcher, *numbers: int, deadline_s: float | None = None) -> list[int]:
    """Sends one request."""
    found: list[int] = batcher.run("double", {"x": np.array(numbers)}, ("y",), deadline_s)["y"].tolist()
    return found


def until(condition: Callable[[], bool]) -> None:
    """Waits until other threads have made a condition true."""
    for _ in range(6000):
        if condition():
            return
        threading.Event().wait(0.01)
    raise AssertionError("it never came to that")


def num_waiting(batcher: TowerBatcher) -> int:
    """Returns how many requests wait for a run."""
    return sum(len(batch.tasks) for queue in batcher._queues.values() for batch in queue._batches)


def test_a_request_that_is_alone_runs_at_once(batcher: TowerBatcher, backend: Doubling) -> None:
    assert ask(batcher, 1, 2) == [2, 4]
    assert ask(batcher, 3) == [6]
    assert backend.rows == [2, 1]


def test_what_comes_during_a_run_is_the_next_one(
    batcher: TowerBatcher, backend: Doubling, pool: ThreadPoolExecutor
) -> None:
    backend.may_run.clear()
    first = pool.submit(ask, batcher, 1)
    assert backend.is_running.wait(60)
    others = [pool.submit(ask, batcher, 10 * n, n) for n in range(1, 4)]
    until(lambda: num_waiting(batcher) == 3)
    backend.may_run.set()
    assert first.result(60) == [2]
    assert [other.result(60) for other in others] == [[20, 2], [40, 4], [60, 6]]
    assert backend.rows == [1, 6]


def test_rows_of_a_run_are_bounded_and_larger_requests_go_alone(
    batcher: TowerBatcher, backend: Doubling, pool: ThreadPoolExecutor
) -> None:
    backend.may_run.clear()
    first = pool.submit(ask, batcher, 1)
    assert backend.is_running.wait(60)
    others = [pool.submit(ask, batcher, *range(5)) for _ in range(3)]
    until(lambda: num_waiting(batcher) == 3)
    large = pool.submit(ask, batcher, *range(9))
    until(lambda: 9 in backend.rows)
    backend.may_run.set()
    assert [len(request.result(60)) for request in (first, *others, large)] == [1, 5, 5, 5, 9]
    assert sorted(backend.rows) == [1, 5, 5, 5, 9]


def test_an_error_reaches_the_request_that_it_is_about(
    batcher: TowerBatcher, backend: Doubling, pool: ThreadPoolExecutor
) -> None:
    backend.may_run.clear()
    first = pool.submit(ask, batcher, 1)
    assert backend.is_running.wait(60)
    good, bad = pool.submit(ask, batcher, 4), pool.submit(ask, batcher, -7)
    until(lambda: num_waiting(batcher) == 2)
    backend.may_run.set()
    assert first.result(60) == [2] and good.result(60) == [8]
    with pytest.raises(InvalidRequest, match="-7 is below 0"):
        bad.result(60)


def test_a_request_that_is_late_is_not_run(
    batcher: TowerBatcher, backend: Doubling, pool: ThreadPoolExecutor, clock: Clock
) -> None:
    backend.may_run.clear()
    first = pool.submit(ask, batcher, 1)
    assert backend.is_running.wait(60)
    late = pool.submit(ask, batcher, 5, deadline_s=clock() + 3600)
    until(lambda: num_waiting(batcher) == 1)
    clock.now_s += 3601
    backend.may_run.set()
    assert first.result(60) == [2]
    with pytest.raises(DeadlineExceeded):
        late.result(60)
    assert backend.rows == [1]


def test_closing_closes_the_backend_and_ends_the_thread(backend: Doubling, pool: ThreadPoolExecutor) -> None:
    batcher = TowerBatcher(backend, {"double": SPEC}, 8)
    before = set(threading.enumerate())
    backend.may_run.clear()
    first = pool.submit(ask, batcher, 1)
    assert backend.is_running.wait(60)
    second = pool.submit(ask, batcher, 2)
    until(lambda: num_waiting(batcher) == 1)
    backend.may_run.set()
    assert (first.result(60), second.result(60)) == ([2], [4])
    batcher.close()
    assert backend.closed == 1
    until(lambda: not any(t.name.startswith("tower") and t.is_alive() for t in set(threading.enumerate()) - before))


@pytest.fixture(scope="module")
def servable(tower_version: Path) -> Iterator[Servable]:
    """A model with towers, whose requests run together."""
    servable = ServableLoader(frozenset({"serve"}), "auto", 2, tower_batch_rows=64)("m", 1, tower_version)
    yield servable
    servable.close()


@pytest.mark.tf
def test_only_towers_whose_rows_are_independent_are_batched(servable: Servable) -> None:
    found = {name for name, backend in servable.backends.items() if isinstance(backend, TowerBatcher)}
    # Left out are signatures whose answer to one row depends on other rows, or whose graph the batcher can not join:
    # "share" divides by a sum over all rows, "with_extra" asserts something of all rows, "keyed" runs twice, "largest"
    # and "odd" go on with ragged values of their own.
    assert found == {"serving_default", "rows", "matrix"}


@pytest.mark.tf
def test_requests_that_run_together_are_answered_as_they_are_apart(servable: Servable) -> None:
    random = np.random.default_rng(1)
    requests = [{"user": random.integers(0, 4, rows)} for rows in (1, 2, 3, 5) * 10]
    backend = servable.backends["rows"]

    def run(request: dict[str, Array]) -> Array:
        return backend.run("rows", request, ("rows",))["rows"]

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(run, requests))
    table = np.arange(8, dtype=np.float32).reshape(4, 2)
    for request, answer in zip(requests, answers, strict=True):
        np.testing.assert_array_equal(answer, table[request["user"]])
