"""A search sees one version while others change it, with the rows that it had when the search began."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.engine.admission import NeighborLimits
from service.engine.engine import Engine
from service.engine.neighbors import Named, NeighborAnswer, NeighborQuery
from service.engine.request_context import Call
from service.errors import DataLoss, DeadlineExceeded, IdsTooMany
from service.loading.loader import ServableLoader
from service.native.native_servable import compile_native
from service.native_tables import core_tables
from service.tables.guarded_files import GuardedFiles
from service.types import ModelRef
from tests.conftest import Clock, RecordingObserver, serving
from tests.toy_model import write_toy_model
from tests.unit.deltas.conftest import Served

REF = ModelRef("toy")


def query(*ids: int, **more: Any) -> NeighborQuery:
    """Returns a query for the neighbours of the rows with these ids."""
    return NeighborQuery(rows=Named(ids=np.array(ids)), **more)


def find(engine: Engine, asked: NeighborQuery, deadline_s: float | None = None) -> NeighborAnswer:
    """Searches the nearest rows in the table "user"."""
    return engine.neighbors(REF, "user", asked, Call("http", "neighbors", deadline_s=deadline_s))


class Gate:
    """Stops the next search just before it compares rows, until the test lets it go on."""

    def __init__(self, real: Callable[..., bool]) -> None:
        self._real = real
        self.reached, self.opened = threading.Event(), threading.Event()

    def __call__(self, *arguments: Any) -> bool:
        """Stands for the core's search, and holds its first call up until the test lets it go on."""
        if not self.reached.is_set():
            self.reached.set()
            assert self.opened.wait(20)
        return self._real(*arguments)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    """Returns a gate that holds the next search."""
    made = Gate(core_tables().neighbors)
    monkeypatch.setattr(core_tables(), "neighbors", made)
    return made


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    """Yields a pool of two threads for searches."""
    with ThreadPoolExecutor(2) as pool:
        yield pool


def begun(threads: ThreadPoolExecutor, gate: Gate, engine: Engine) -> Future[NeighborAnswer]:
    """Starts a search for the neighbours of [1, 0], and returns once it waits at the gate."""
    search = threads.submit(find, engine, NeighborQuery(vectors=np.array([[1, 0]], np.float32), k=2))
    assert gate.reached.wait(20)
    return search


def test_a_search_ends_on_the_version_where_it_began(tmp_path: Path, gate: Gate, threads: ThreadPoolExecutor) -> None:
    for version, scale in ((1, 1), (2, -1)):
        write_toy_model(tmp_path / str(version), scale=scale)
    registry = serving(tmp_path)
    engine = Engine(registry, RecordingObserver())
    search = begun(threads, gate, engine)
    (holder,) = registry.holders()
    registry.start("toy", 2)
    registry.publish(ServableLoader(frozenset({"serve"}), "off", 1, compile_native)("toy", 2, tmp_path / "2"))
    holder.retire()
    assert not holder.is_free
    gate.opened.set()
    # Rows of version 1 are [i, 10 i], and of version 2 [-i, -10 i].
    old = search.result(20)
    assert (old.version, old.ids.tolist(), old.scores.tolist()) == (1, [[4, 3]], [[4.0, 3.0]])
    assert holder.is_free
    new = find(engine, NeighborQuery(vectors=np.array([[1, 0]], np.float32), k=2))
    assert (new.version, new.ids.tolist(), new.scores.tolist()) == (2, [[0, 1]], [[0.0, -1.0]])


def test_a_changed_row_is_seen_by_the_next_search(tmp_path: Path, gate: Gate, threads: ThreadPoolExecutor) -> None:
    write_toy_model(tmp_path / "1")
    served = Served(tmp_path / "1", None)
    served.drop(1, "user", [0], [[9, 9]])
    assert served.look()
    search = begun(threads, gate, served.engine)
    served.drop(2, "user", [0, 2], [[0, 0], [7, 7]])
    assert served.look()
    gate.opened.set()
    assert search.result(20).ids.tolist() == [[0, 4]]
    assert find(served.engine, query(1, k=2)).ids.tolist() == [[4, 3]]
    assert find(served.engine, NeighborQuery(vectors=np.array([[1, 0]], np.float32), k=2)).ids.tolist() == [[2, 4]]


def test_a_search_is_counted_with_its_rows(toy_engine: Engine, observer: RecordingObserver) -> None:
    found = find(toy_engine, query(1, 2))
    assert found.rows_scanned == 5
    assert find(toy_engine, query(1, allowed=Named(ids=np.array([2, 3, 3, 77])))).rows_scanned == 2
    assert toy_engine.searches.rows_scanned() == {"toy": 7}
    assert [one["rows"] for one in observer.finished_requests] == [2, 1]


def test_limits_are_those_that_were_given(toy_model: Path, observer: RecordingObserver) -> None:
    engine = Engine(serving(toy_model), observer, neighbor_limits=NeighborLimits(k=2, queries=1))
    assert find(engine, query(1, k=2)).ids.shape == (1, 2)
    for asked, text in ((query(1, k=3), '"k" is 3, the limit is 2'), (query(1, 2, k=1), '"queries" is 2, the limit')):
        with pytest.raises(IdsTooMany, match=text):
            find(engine, asked)


def test_the_width_of_an_answer_is_bounded_by_the_table(toy_engine: Engine) -> None:
    assert find(toy_engine, query(1, k=1000)).ids.tolist() == [[4, 3, 2, 0, -1]]


def test_a_passed_deadline_ends_a_search(toy_engine: Engine, clock: Clock) -> None:
    with pytest.raises(DeadlineExceeded):
        find(toy_engine, query(1), clock.now_s - 1)


def test_damaged_files_give_no_neighbors(toy_engine: Engine) -> None:
    registry = toy_engine._registry
    (holder,) = registry.holders()
    files = holder.servable.files
    assert isinstance(files, GuardedFiles)
    files.damaged("a test")
    with pytest.raises(DataLoss):
        find(toy_engine, query(1))


def test_threads_are_shared_by_the_searches_that_run(toy_model: Path, gate: Gate, threads: ThreadPoolExecutor) -> None:
    engine = Engine(serving(toy_model), RecordingObserver(), neighbor_limits=NeighborLimits(threads=4))
    seen: list[int] = []
    real = gate._real
    gate._real = lambda *arguments: seen.append(arguments[10]) or real(*arguments)
    search = begun(threads, gate, engine)
    find(engine, query(1))
    gate.opened.set()
    search.result(20)
    assert seen == [2, 4]
