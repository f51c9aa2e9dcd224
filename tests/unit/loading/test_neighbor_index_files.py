"""Indexes in files are found after a restart, and ignored if they are damaged, foreign, or of other tables."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.control.engine import Engine
from service.loading.kept_files import NeighborIndexFiles
from service.search.neighbor_indexes import Indexing
from service.tables.row_index import RowLists, build_index, tune_index
from service.versions.neighbors import NeighborLimits
from tests.conftest import RecordingObserver
from tests.integration.process import until
from tests.unit.deltas.conftest import Served
from tests.unit.search.test_searches import ROWS, find_near, nearest, write_large

pytestmark = pytest.mark.slow


class Restarted:
    """A server of version 1 that has searched until it has an index. was_built: it built the index, did not read it."""

    def __init__(self, base: Path, served: Served | None = None, metric: str = "l2") -> None:
        self.was_built = False
        self.served = served or Served(base / "1", None)

        def build(*arguments: Any) -> RowLists | None:
            self.was_built = True
            return build_index(*arguments)

        self.engine = Engine(
            self.served.registry,
            RecordingObserver(),
            neighbor_limits=NeighborLimits(index_rows=1000),
            indexing=Indexing(
                build, tune_index, NeighborIndexFiles(base / "kept", lambda model, version: base / str(version))
            ),
        )
        find_near(self.engine, metric=metric)
        until(lambda: bool(self.engine.searches.indexes.all()))
        until(lambda: find_near(self.engine, metric=metric).recall is not None)
        # Searches use an index from the moment after its file is written; close() ends the thread that does both.
        self.engine.searches.indexes.close()
        (self.index,) = self.engine.searches.indexes.all().values()


def kept(base: Path) -> Path:
    """Returns the only file in the folder of kept indexes."""
    (path,) = (path for path in (base / "kept").rglob("*") if path.is_file())
    return path


@pytest.mark.parametrize("metric", ["l2", "cosine", "dot"])
def test_a_restart_finds_the_index(tmp_path: Path, metric: str) -> None:
    rows = write_large(tmp_path / "1", 1)
    before = Restarted(tmp_path, metric=metric)
    after = Restarted(tmp_path, metric=metric)
    assert (before.was_built, after.was_built) == (True, False)
    queries = rows[:50]
    found = [one.index.candidates(queries) for one in (before, after)]
    assert all(np.array_equal(old, new) for old, new in zip(*found, strict=True))
    for name in ("recall", "seconds", "num_lists", "probes", "nbytes"):
        assert getattr(before.index, name) == getattr(after.index, name)
    answers = [find_near(one.engine, metric=metric, k=10) for one in (before, after)]
    assert answers[0].ids.tolist() == answers[1].ids.tolist() and answers[1].recall == answers[0].recall
    # The name of an index file has the metric, because each metric has its own index.
    assert kept(tmp_path).name.startswith(f"1-{metric}-")


def test_rows_that_were_changed_before_the_build_are_found_without_their_deltas(tmp_path: Path) -> None:
    rows = write_large(tmp_path / "1", 2)
    served = Served(tmp_path / "1", None)
    near = nearest(rows)[0]
    served.drop(1, "user", [near], [[-50.0, -50.0]])
    assert served.look()
    assert Restarted(tmp_path, served).was_built
    for path in (tmp_path / "1").rglob("*.delta"):
        path.unlink()
    # The index has row `near` in the list of its place at the build, around (-50, -50); because its delta is gone, the
    # row is near the query again, and the search finds it there.
    after = Restarted(tmp_path)
    assert not after.was_built
    found = find_near(after.engine)
    assert found.ids.tolist() == [nearest(rows)] and found.recall is not None


def test_an_index_of_a_table_with_many_changed_rows_is_not_kept(tmp_path: Path) -> None:
    write_large(tmp_path / "1", 3)
    served = Served(tmp_path / "1", None)
    changed = list(range(ROWS // 50))
    served.drop(1, "user", changed, [[1.0, 1.0]] * len(changed))
    assert served.look()
    Restarted(tmp_path, served)
    assert not (tmp_path / "kept").exists()


def test_other_bytes_of_the_table_get_an_index_of_their_own(tmp_path: Path) -> None:
    write_large(tmp_path / "1", 4)
    Restarted(tmp_path)
    old = kept(tmp_path)
    other = tmp_path / "other"
    rows = write_large(other / "1", 5)
    (tmp_path / "1").rename(tmp_path / "gone")
    (other / "1").rename(tmp_path / "1")
    after = Restarted(tmp_path)
    assert after.was_built and find_near(after.engine).ids.tolist() == [nearest(rows)]
    (new,) = {path for path in (tmp_path / "kept").rglob("*.rows")} - {old}
    # The server also ignores a copy of the older index file under the newer file's name.
    new.write_bytes(old.read_bytes())
    assert Restarted(tmp_path).was_built


def test_a_bad_file_is_ignored_with_one_line_and_replaced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = write_large(tmp_path / "1", 6)
    Restarted(tmp_path)
    path = kept(tmp_path)
    good = path.read_bytes()
    path.write_bytes(good[:5000] + bytes([good[5000] ^ 1]) + good[5001:])
    with caplog.at_level(logging.WARNING):
        after = Restarted(tmp_path)
    assert after.was_built and find_near(after.engine).ids.tolist() == [nearest(rows)]
    (line,) = (record for record in caplog.records if record.name == "service.loading.kept_files")
    assert line.getMessage() == "file of an index is ignored" and line.__dict__["reason"] == "its checksum does not fit"
    assert kept(tmp_path) == path and not Restarted(tmp_path).was_built


def test_a_folder_that_can_not_be_written_costs_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = write_large(tmp_path / "1", 7)
    # A test may run as root, who may write in every folder, so the test puts a file in the folder's place.
    (tmp_path / "kept").write_text("no folder")
    with caplog.at_level(logging.WARNING):
        found = find_near(Restarted(tmp_path).engine)
    assert found.ids.tolist() == [nearest(rows)] and found.recall is not None
    (line,) = (record for record in caplog.records if record.name == "service.loading.kept_files")
    assert line.getMessage() == "index is not kept"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write in every folder")
def test_a_read_only_folder_still_gives_its_index(tmp_path: Path) -> None:
    write_large(tmp_path / "1", 8)
    Restarted(tmp_path)
    folder = kept(tmp_path).parent
    folder.chmod(0o500)
    try:
        assert not Restarted(tmp_path).was_built
        kept_metric = Restarted(tmp_path, metric="dot")
        assert kept_metric.was_built and len(list(folder.iterdir())) == 1
    finally:
        folder.chmod(0o700)


def test_no_draft_stays_if_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_large(tmp_path / "1", 9)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    assert Restarted(tmp_path).was_built
    assert [path for path in (tmp_path / "kept").rglob("*") if path.is_file()] == []
