"""Searches see one version, with an index and without; the projection finds principal components."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.control.engine import Engine
from service.control.request_context import Call
from service.control.table_view import MAX_MAPS, KeptMaps, ids_on_map, project
from service.core.native_servable import compile_native
from service.errors import DeadlineExceeded, IdOutOfRange, IdsTooMany, Overloaded
from service.loading.loader import ServableLoader
from service.native_tables import core_tables
from service.search.neighbor_indexes import BuildIndex, Indexing
from service.tables.row_index import build_index, tune_index
from service.types import Array, ModelRef
from service.versions.neighbors import Named, NeighborAnswer, NeighborLimits, NeighborQuery
from tests.conftest import Clock, RecordingObserver, serving
from tests.integration.process import PATIENCE_S, until
from tests.toy_model import toy_tables, write_toy_model
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
    registry.publish(ServableLoader(frozenset({"serve"}), "off", compile_native)("toy", 2, tmp_path / "2"))
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


def test_a_search_has_limits(toy_engine: Engine) -> None:
    many = query(*[1] * 257, k=1)
    for asked, text in ((query(1, k=1001), '"k" is 1001, the limit is 1000'), (many, "vectors. is 257, the limit is")):
        with pytest.raises(IdsTooMany, match=text):
            find(toy_engine, asked)


def test_the_width_of_an_answer_is_bounded_by_the_table(toy_engine: Engine) -> None:
    assert find(toy_engine, query(1, k=1000)).ids.tolist() == [[4, 3, 2, 0, -1]]


def test_a_passed_deadline_ends_a_search(toy_engine: Engine, clock: Clock) -> None:
    with pytest.raises(DeadlineExceeded):
        find(toy_engine, query(1), clock.now_s - 1)


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


ROWS = 4000


@pytest.fixture(autouse=True)
def _usual_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    # Index builds run at normal priority here: on a busy machine, a thread of low priority gets a hundredth of a
    # processor or less.
    monkeypatch.setattr("service.versions.threads._NICENESS", 0)


def write_large(folder: Path, seed: int) -> np.ndarray:
    """Writes a version whose table "user" has ROWS rows of two numbers; returns these rows."""
    rows = np.random.default_rng(seed).normal(size=(ROWS, 2)).astype(np.float32)

    def edit(manifest: dict[str, Any]) -> None:
        manifest["tables"]["user"]["vocabulary_size"] = ROWS

    write_toy_model(folder, tables=toy_tables() | {"user": rows}, edit_manifest=edit)
    return rows


def engine_of(served: Served, build: BuildIndex = build_index) -> Engine:
    """Returns an engine that builds an index for tables of 1,000 rows and more."""
    return Engine(
        served.registry,
        RecordingObserver(),
        neighbor_limits=NeighborLimits(index_rows=1000),
        indexing=Indexing(build, tune_index),
    )


def find_near(engine: Engine, **more: Any) -> NeighborAnswer:
    """Searches for the nearest rows to (1, 1) in the table "user"."""
    asked = NeighborQuery(**({"vectors": np.ones((1, 2), np.float32), "metric": "l2", "k": 3} | more))
    return engine.neighbors(ModelRef("toy"), "user", asked, Call("http", "neighbors"))


def nearest(rows: np.ndarray) -> list[int]:
    return np.argsort(np.square(rows.astype(np.float64) - 1).sum(axis=1))[:3].tolist()


def until_indexed(engine: Engine) -> None:
    """Waits until the table has an index, and the index is tuned for searches by vectors."""
    find_near(engine)
    until(lambda: bool(engine.searches.indexes.all()))
    until(lambda: find_near(engine).recall is not None)


def test_an_index_answers_after_the_first_search_and_reads_fewer_rows(tmp_path: Path) -> None:
    rows = write_large(tmp_path / "1", 1)
    engine = engine_of(Served(tmp_path / "1", None))
    first = find_near(engine)
    assert (first.ids.tolist(), first.recall, first.rows_scanned) == ([nearest(rows)], None, ROWS)
    until_indexed(engine)
    found = find_near(engine)
    assert found.ids.tolist() == [nearest(rows)] and found.scores.tolist() == first.scores.tolist()
    assert found.recall is not None and found.recall >= 0.95 and found.rows_scanned < ROWS / 4
    (name,) = engine.searches.indexes.all()
    assert name == ("toy", 1, "user", "l2")
    # Searches that do not use the index: they compare all rows, or all rows that they allow.
    assert find_near(engine, exact=True).recall is None
    assert find_near(engine, allowed=Named(ids=np.arange(50))).rows_scanned == 50
    assert find_near(engine, k=101).recall is None
    # The search denies most of the rows that the index proposes. Too few are left, so it compares all rows.
    denied = Named(ids=np.argsort(np.square(rows - 1).sum(axis=1))[: ROWS // 2])
    assert find_near(engine, denied=denied).ids.tolist() == find_near(engine, denied=denied, exact=True).ids.tolist()


def test_a_changed_row_is_found_where_it_is_now(tmp_path: Path) -> None:
    rows = write_large(tmp_path / "1", 2)
    served = Served(tmp_path / "1", None)
    engine = engine_of(served)
    until_indexed(engine)
    far, near = int(np.square(rows - 1).sum(axis=1).argmax()), nearest(rows)[0]
    for sequence, changed in enumerate(([[1.0, 1.0], [-50.0, -50.0]], [[1.0, 1.5], [-60.0, -60.0]]), start=1):
        served.drop(sequence, "user", [far, near], changed)
        assert served.look()
        rows[[far, near]] = changed
        found = find_near(engine)
        assert found.ids.tolist() == [nearest(rows)] and found.recall is not None


def test_another_version_is_searched_without_the_index_of_the_old_one(tmp_path: Path) -> None:
    write_large(tmp_path / "1", 3)
    newer = write_large(tmp_path / "2", 4)
    served = Served(tmp_path / "1", None)
    engine = engine_of(served)
    until_indexed(engine)
    (old,) = served.registry.holders()
    served.registry.start("toy", 2)
    served.registry.publish(ServableLoader(frozenset({"serve"}), "off", compile_native)("toy", 2, tmp_path / "2"))
    found = find_near(engine)
    assert (found.version, found.ids.tolist(), found.recall) == (2, [nearest(newer)], None)
    old.retire()
    until(lambda: [name.version for name in engine.searches.indexes.all()][-1:] == [2])
    until(lambda: find_near(engine).recall is not None)


@pytest.mark.parametrize("is_closed", [True, False])
def test_an_index_is_given_up_if_the_server_ends_or_its_version_goes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, is_closed: bool
) -> None:
    write_large(tmp_path / "1", 5)
    served = Served(tmp_path / "1", None)
    reached, opened, ended = threading.Event(), threading.Event(), threading.Event()

    def build(read: Callable[[np.ndarray], np.ndarray], *others: Any) -> Any:
        reached.set()
        assert opened.wait(PATIENCE_S)
        try:
            return build_index(read, *others)
        finally:
            ended.set()

    engine = engine_of(served, build)
    find_near(engine)
    assert reached.wait(PATIENCE_S)
    with caplog.at_level(logging.INFO):
        if is_closed:
            engine.searches.indexes.close()
        else:
            served.registry.drop(["toy"])
            served.registry.unload("toy", 1)
        opened.set()
        assert ended.wait(PATIENCE_S)
        until(lambda: "index of nearest rows is given up" in caplog.text)
    assert not engine.searches.indexes.all()
    if is_closed:
        assert find_near(engine, metric="dot").recall is None


def reading(table: Array) -> Callable[[Array], Array]:
    """Returns a function that reads rows of a table."""
    return lambda ids: table[ids]


@pytest.mark.parametrize(("rows", "dim"), [(500, 16), (40, 64), (9000, 3)])
def test_places_are_those_of_the_principal_components(rows: int, dim: int) -> None:
    random = np.random.default_rng(rows)
    table = (random.standard_normal((rows, dim)) * (0.7 ** np.arange(dim)) + 5).astype(np.float32)
    found = project(reading(table), rows)
    centred = table.astype(np.float64) - table.mean(axis=0, dtype=np.float64)
    _, lengths, axes = np.linalg.svd(centred, full_matrices=False)
    axes = axes[:2] * np.sign(axes[np.arange(2), np.abs(axes[:2]).argmax(axis=1)])[:, None]
    assert found.ids.tolist() == list(range(rows))
    assert np.abs(found.places - centred @ axes.T).max() < 2e-2 * lengths[0] / np.sqrt(rows)
    assert np.allclose(found.explained, lengths[:2] ** 2 / np.square(centred).sum(), rtol=1e-3)
    assert np.allclose(found.norms, np.linalg.norm(table, axis=1), rtol=1e-6)


def test_a_large_table_is_sampled_the_same_each_time() -> None:
    table = np.random.default_rng(1).standard_normal((5000, 4)).astype(np.float32)
    first, second = (project(reading(table), 5000, max_points=300) for _ in range(2))
    assert len(first.ids) == 300 == len(np.unique(first.ids)) and (np.diff(first.ids) > 0).all()
    assert first.ids[0] < 500 and first.ids[-1] > 4500
    assert (first.ids == second.ids).all() and (first.places == second.places).all()
    assert (ids_on_map(5000, max_points=300) == first.ids).all()


@pytest.mark.parametrize("dim", [1, 2])
def test_tables_of_few_numbers_equal_rows_and_odd_numbers_have_a_map(dim: int) -> None:
    table = np.full((6, dim), 3, np.float32)
    equal = project(reading(table), 6)
    assert not equal.places.any() and equal.explained == (0.0, 0.0)
    table[:, 0] = [0, 1, 2, 3, np.nan, np.inf]
    odd = project(reading(table), 6)
    assert np.isfinite(odd.places).all() and not odd.places[4:].any()
    assert np.isnan(odd.norms[4]) and np.isinf(odd.norms[5])
    assert np.argsort(odd.places[:4, 0]).tolist() in ([0, 1, 2, 3], [3, 2, 1, 0])
    assert len(project(reading(table[:1]), 1).ids) == 1


def waited(maps: KeptMaps[int], key: object, of: object, make: Callable[[], int]) -> int:
    """Asks for a map until it has been made; returns it."""
    while (found := maps.get(key, of, make)) is None:
        threading.Event().wait(0.001)
    return found


def test_a_map_is_made_once_and_again_for_another_object() -> None:
    maps: KeptMaps[int] = KeptMaps()
    made: list[int] = []
    first, second = object(), object()

    def make() -> int:
        made.append(1)
        return len(made)

    assert [waited(maps, "key", of, make) for of in (first, first, second, second)] == [1, 1, 2, 2]
    maps.close()


def test_a_failure_is_told_once_and_tried_again() -> None:
    maps: KeptMaps[int] = KeptMaps()

    def fail() -> int:
        raise IdOutOfRange("gone")

    with pytest.raises(IdOutOfRange):
        waited(maps, "key", maps, fail)
    assert waited(maps, "key", maps, lambda: 7) == 7
    maps.close()


def test_maps_that_wait_and_maps_that_are_kept_are_limited() -> None:
    maps: KeptMaps[int] = KeptMaps()
    gate = threading.Event()

    def slow() -> int:
        gate.wait(20)
        return 1

    for key in range(MAX_MAPS):
        assert maps.get(key, maps, slow) is None
    with pytest.raises(Overloaded):
        maps.get("one more", maps, slow)
    gate.set()
    for key in range(3 * MAX_MAPS):
        assert waited(maps, key, maps, lambda: 2) in (1, 2)
    # The first maps were dropped, because more maps were asked for than are kept, so they are computed again.
    assert waited(maps, 0, maps, lambda: 3) == 3
    maps.close()
