"""Lookups that are done together are answered as each is by itself, whatever becomes of the others."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from service.direct import thread_state
from service.direct.predict import DirectPredict

from service.core.engine import Engine
from service.core.registry import Registry
from service.core.types import ModelRef
from tests.conftest import RecordingObserver, serving
from tests.unit.direct.test_direct import INT64, request, tensor


class Served:
    """The toy model, looked up in rounds."""

    def __init__(self, base: Path) -> None:
        self.registry: Registry = serving(base, name="toy")
        self.observer = RecordingObserver()
        self.engine = Engine(self.registry, self.observer)
        self.predict = DirectPredict(self.engine, "grpc")

    def begin(self, data: bytes) -> tuple[object, ...] | None:
        """Begins a lookup."""
        return self.predict.begin(data, None, as_content=False)

    def alone(self, data: bytes) -> bytes | None:
        """Returns what a lookup by itself is answered."""
        return DirectPredict(self.engine, "grpc")(data, None, as_content=False)

    @property
    def num_leases(self) -> int:
        """How many requests hold the model."""
        return sum(loaded.num_leases for loaded in self.registry.loaded())

    def num_read(self) -> int:
        """How many rows of "user" have been read."""
        with self.registry.lease(ModelRef("toy")) as servable:
            return sum(counts.ids for counts in servable.table_counts().values())


@pytest.fixture
def served(toy_model: Path) -> Iterator[Served]:
    yield Served(toy_model)


def lookup(*ids: int) -> bytes:
    """Returns a PredictRequest of the toy model."""
    return request("toy", "lookup", {"user": tensor(np.array(ids, np.int64), INT64, is_content=False)})


def begun_all(served: Served, requests: list[bytes]) -> list[tuple[object, ...]]:
    """Begins lookups that all are plain."""
    found = [served.begin(data) for data in requests]
    assert all(found)
    return [one for one in found if one is not None]


@pytest.mark.parametrize("count", [1, 2, thread_state.MOST_JOBS, 3 * thread_state.MOST_JOBS + 5])
def test_they_may_be_finished_in_any_order(served: Served, count: int) -> None:
    random = np.random.default_rng(count)
    requests = [lookup(*random.integers(0, 3, 1 + i % 4).tolist()) for i in range(count)]
    alone = [served.alone(data) for data in requests]
    begun = begun_all(served, requests)
    assert served.num_leases == count
    for i in random.permutation(count):
        assert served.predict.finish(begun[i]) == alone[i]
    assert served.num_leases == 0
    assert len(served.observer.finished_requests) == 2 * count


def test_one_that_is_not_answered_is_left_to_the_general_path_alone(served: Served) -> None:
    good, bad = lookup(1, 2), lookup(1, -7)
    expected = served.alone(good)
    assert expected is not None and served.alone(bad) is None
    begun = begun_all(served, [good, bad, good])
    assert [served.predict.finish(one) for one in begun] == [expected, None, expected]
    assert served.num_leases == 0


def test_what_is_no_plain_request_does_not_join(served: Served) -> None:
    (first,) = begun_all(served, [lookup(2)])
    assert served.begin(b"rubbish") is None
    assert served.begin(request("absent", "lookup", {})) is None
    assert served.num_leases == 1
    assert served.predict.finish(first) == served.alone(lookup(2))


def test_one_that_does_not_wait_ends_the_round(served: Served) -> None:
    requests = [lookup(0), lookup(1), lookup(2)]
    alone = [served.alone(data) for data in requests]
    first, second = begun_all(served, requests[:2])
    assert served.predict(requests[2], None, as_content=False) == alone[2]
    (third,) = begun_all(served, requests[2:])
    assert [served.predict.finish(one) for one in (second, third, first)] == [alone[1], alone[2], alone[0]]


def test_rows_are_counted_once(served: Served) -> None:
    before = served.num_read()
    for one in begun_all(served, [lookup(0, 1), lookup(2)]):
        served.predict.finish(one)
    assert served.num_read() == before + 3


def test_memory_is_held_until_the_round_is_done(served: Served) -> None:
    # Nobody else holds the bytes of these requests and answers: begun and dropped, then done with a later one.
    for i in range(10):
        served.begin(lookup(*[i % 3] * 1000))
    (last,) = begun_all(served, [lookup(1)])
    assert served.predict.finish(last) == served.alone(lookup(1))


def test_threads_have_rounds_of_their_own(served: Served) -> None:
    requests = [lookup(i % 3, (i // 3) % 3) for i in range(9)]
    alone = [served.alone(data) for data in requests]
    wrong: list[object] = []

    def work(seed: int) -> None:
        random = np.random.default_rng(seed)
        for _ in range(200):
            chosen = random.integers(0, 9, random.integers(1, 8)).tolist()
            begun = begun_all(served, [requests[i] for i in chosen])
            answers = [served.predict.finish(one) for one in begun]
            if answers != [alone[i] for i in chosen]:
                wrong.append(chosen)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert served.num_leases == 0


def test_a_round_that_fails_says_so_once_and_leaves_the_others_to_the_general_path(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = begun_all(served, [lookup(1), lookup(2)])

    def fail(*_: int) -> bool:
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(thread_state.gather, "answer_all", fail)
        with pytest.raises(MemoryError):
            served.predict.finish(begun[0])
    (later,) = begun_all(served, [lookup(2)])
    assert served.predict.finish(begun[1]) is None
    assert served.predict.finish(later) == served.alone(lookup(2))
    assert served.num_leases == 0
