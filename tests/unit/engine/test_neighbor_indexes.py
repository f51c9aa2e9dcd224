"""Finds nearest rows with an index: with changed rows, in several versions, and where an index is not used."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.engine import low_priority
from service.engine.admission import NeighborLimits
from service.engine.engine import Engine
from service.engine.neighbor_indexes import BuildIndex, Indexing
from service.engine.neighbors import Named, NeighborAnswer, NeighborQuery
from service.engine.request_context import Call
from service.loading.loader import ServableLoader
from service.native.native_servable import compile_native
from service.tables.row_index import build_index, tune_index
from service.types import ModelRef
from tests.conftest import RecordingObserver
from tests.integration.process import PATIENCE_S, until
from tests.toy_model import toy_tables, write_toy_model
from tests.unit.deltas.conftest import Served

ROWS = 4000


@pytest.fixture(autouse=True)
def _usual_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    # Index builds run at normal priority here: on a busy machine, a thread of low priority gets a hundredth of a
    # processor or less.
    monkeypatch.setattr(low_priority, "_NICENESS", 0)


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


def find(engine: Engine, **more: Any) -> NeighborAnswer:
    """Searches for the nearest rows to (1, 1) in the table "user"."""
    asked = NeighborQuery(**({"vectors": np.ones((1, 2), np.float32), "metric": "l2", "k": 3} | more))
    return engine.neighbors(ModelRef("toy"), "user", asked, Call("http", "neighbors"))


def nearest(rows: np.ndarray) -> list[int]:
    return np.argsort(np.square(rows.astype(np.float64) - 1).sum(axis=1))[:3].tolist()


def until_indexed(engine: Engine) -> None:
    """Waits until the table has an index, and the index is tuned for searches by vectors."""
    find(engine)
    until(lambda: bool(engine.searches.indexes.all()))
    until(lambda: find(engine).recall is not None)


def test_an_index_answers_after_the_first_search_and_reads_fewer_rows(tmp_path: Path) -> None:
    rows = write_large(tmp_path / "1", 1)
    engine = engine_of(Served(tmp_path / "1", None))
    first = find(engine)
    assert (first.ids.tolist(), first.recall, first.rows_scanned) == ([nearest(rows)], None, ROWS)
    until_indexed(engine)
    found = find(engine)
    assert found.ids.tolist() == [nearest(rows)] and found.scores.tolist() == first.scores.tolist()
    assert found.recall is not None and found.recall >= 0.95 and found.rows_scanned < ROWS / 4
    (name,) = engine.searches.indexes.all()
    assert name == ("toy", 1, "user", "l2")
    # Searches that do not use the index: they compare all rows, or all rows that they allow.
    assert find(engine, exact=True).recall is None
    assert find(engine, allowed=Named(ids=np.arange(50))).rows_scanned == 50
    assert find(engine, k=101).recall is None
    # The search denies most of the rows that the index proposes. Too few are left, so it compares all rows.
    denied = Named(ids=np.argsort(np.square(rows - 1).sum(axis=1))[: ROWS // 2])
    assert find(engine, denied=denied).ids.tolist() == find(engine, denied=denied, exact=True).ids.tolist()


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
        found = find(engine)
        assert found.ids.tolist() == [nearest(rows)] and found.recall is not None


def test_another_version_is_searched_without_the_index_of_the_old_one(tmp_path: Path) -> None:
    write_large(tmp_path / "1", 3)
    newer = write_large(tmp_path / "2", 4)
    served = Served(tmp_path / "1", None)
    engine = engine_of(served)
    until_indexed(engine)
    (old,) = served.registry.holders()
    served.registry.start("toy", 2)
    served.registry.publish(ServableLoader(frozenset({"serve"}), "off", 1, compile_native)("toy", 2, tmp_path / "2"))
    found = find(engine)
    assert (found.version, found.ids.tolist(), found.recall) == (2, [nearest(newer)], None)
    old.retire()
    until(lambda: [name.version for name in engine.searches.indexes.all()][-1:] == [2])
    until(lambda: find(engine).recall is not None)


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
    find(engine)
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
        assert find(engine, metric="dot").recall is None
