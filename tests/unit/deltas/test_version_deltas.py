"""Deltas of a version are found, applied in order, and pruned."""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import gc
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.artifact.delta_journal import journal_path
from service.deltas.overlay import MAX_LOST
from service.deltas.rules import GONE_S, JournalPruning
from service.deltas.version_deltas import _PATIENCE_S, Sequences
from service.errors import DeltaRefused, IdOutOfRange, IdsTooMany, InputMismatch, ServiceError, TableNotFound
from service.types import ModelRef
from service.versions.deltas import Upsert
from service.versions.registry import Registry
from service.versions.repository import ModelWatcher
from service.versions.servable import Servable
from tests.conftest import Clock
from tests.deltas import delta_bytes, drop
from tests.toy_model import toy_tables_as
from tests.unit.artifact.test_delta_journal import Writer
from tests.unit.deltas.conftest import Served
from tests.unit.versions.test_repository import World

TOY = ModelRef("toy")
Serve = Callable[..., Served]


def upsert(served: Served, ids: list[int], rows: list[list[float]], table: str = "user", **more: Any) -> int:
    """Upserts rows through the engine; returns the change's sequence number."""
    change = Upsert(np.array(rows, np.float32), ids=np.array(ids), **more)
    receipt = served.engine.upsert(TOY, table, change)
    assert receipt.is_visible
    return receipt.sequence


def looked_up(servable: Servable, *ids: int) -> list[list[float]]:
    """Looks ids up in the tables of a servable that a request holds."""
    assert servable.native is not None
    found: list[list[float]] = servable.native.run("lookup", {"user": np.array(ids)})["user"].tolist()
    return found


def test_a_file_changes_rows_and_no_others(serve: Serve) -> None:
    served = serve()
    assert served.look()
    served.drop(1, "user", [3, 1], [[7, 8], [-1, 0.5]])
    assert served.look()
    assert served.rows("user", 0, 1, 2, 3, 4) == [[0, 0], [-1, 0.5], [2, 20], [7, 8], [4, 40]]
    with served.registry.lease(TOY) as servable:
        assert looked_up(servable, 3) == [[7, 8]]
    status = served.deltas.status()
    assert (status.last_sequence, status.applied, status.rows, status.lag_s) == (1, 1, 2, 0)
    # The delta did not change the version's tables file: without the delta, row 3 is as exported.
    assert serve().rows("user", 3) == [[7, 8]]
    (served.version / "deltas" / f"{1:016d}.delta").unlink()
    assert serve().rows("user", 3) == [[3, 30]]


def test_the_status_names_the_last_deltas_and_the_journal(serve: Serve) -> None:
    served = serve()
    served.drop(1, "user", [3, 1], [[7, 8], [-1, 0.5]])
    served.look()
    status = served.deltas.status()
    (file,) = status.recent
    assert (file.sequence, file.table, file.rows, file.is_upsert, status.journal) == (1, "user", 2, False, None)
    served = serve(journal=True)
    assert served.deltas.status().journal == (0, 1 << 20)
    sequence = upsert(served, [4], [[1, 2]])
    status = served.deltas.status()
    by_request, file = status.recent
    assert (by_request.sequence, by_request.rows, by_request.is_upsert, file.is_upsert) == (sequence, 1, True, False)
    assert status.journal is not None
    assert status.journal.bytes == next((served.version.parent / "journal").rglob("*.journal")).stat().st_size > 0


def test_the_higher_number_counts_whichever_comes_first(serve: Serve) -> None:
    served = serve()
    served.drop(5, "user", [1, 2], [[5, 5], [5, 5]])
    served.look()
    served.drop(3, "user", [2, 3], [[3, 3], [3, 3]])
    served.look()
    expected = [[5, 5], [5, 5], [3, 3]]
    assert served.rows("user", 1, 2, 3) == expected == serve().rows("user", 1, 2, 3)
    assert served.deltas.status().missing == 3


def test_every_delta_is_in_both_sides(serve: Serve) -> None:
    served = serve()
    for number in range(1, 8):
        served.drop(number, "user", [number % 5], [[number, number]])
        served.drop(100 + number, "tag", [number % 4], [[number] * 3])
        served.look()
        assert served.rows("user", *range(5)) == serve().rows("user", *range(5))
        assert served.rows("tag", *range(4)) == serve().rows("tag", *range(4))
    assert served.rows("user", *range(5)) == [[5, 5], [6, 6], [7, 7], [3, 3], [4, 4]]


def test_a_request_sees_all_of_a_delta_or_none_of_it(serve: Serve) -> None:
    served = serve()
    upward = [[9.0, 9.0]] * 5
    with served.registry.lease(TOY) as servable:
        before = looked_up(servable, *range(5))
        served.drop(1, "user", list(range(5)), upward)
        assert served.look()
        # Requests that start after the delta read its rows, the request that was bound before reads the old ones. Later
        # deltas wait for the end of that request.
        assert served.rows("user", *range(5)) == upward
        served.drop(2, "user", [0], [[1, 1]])
        served.look()
        served.drop(3, "user", [0], [[2, 2]])
        served.look()
        assert looked_up(servable, *range(5)) == before
    assert served.look()
    assert served.rows("user", 0, 1) == [[2, 2], [9, 9]]


def test_requests_that_do_not_end_hold_nothing_up_for_long(serve: Serve) -> None:
    served = serve()
    now_s = [0.0]
    served.deltas._clock = lambda: now_s[0]
    held = []
    for number in range(1, 4):
        lease = served.registry.lease(TOY)
        held.append((lease, lease.__enter__(), served.rows("user", 0)))
        served.drop(number, "user", [0], [[number, number]])
        is_shown = served.look()
        # Two copies of the table and the version's own table are in use by requests, so the third delta has to wait.
        assert is_shown == (number < 3)
        assert served.deltas.status().pending == (number == 3)
    now_s[0] += _PATIENCE_S + 1
    assert served.deltas.status().lag_s == _PATIENCE_S + 1
    assert served.look()
    assert served.rows("user", 0) == [[3, 3]]
    for lease, servable, seen in held:
        assert looked_up(servable, 0) == seen
        lease.__exit__(None, None, None)


def test_so_many_copies_are_kept_for_requests_that_do_not_end(serve: Serve) -> None:
    served = serve()
    now_s = [0.0]
    served.deltas._clock = lambda: now_s[0]
    held = []
    for number in range(1, 5 + MAX_LOST):
        lease = served.registry.lease(TOY)
        lease.__enter__()
        held.append(lease)
        served.drop(number, "user", [0], [[number, number]])
        is_shown = served.look()
        now_s[0] += _PATIENCE_S + 1
        assert (is_shown or served.look()) == (number < 3 + MAX_LOST)
    # The first request read the version's own table, the second one the first copy.
    for lease in held[:2]:
        lease.__exit__(None, None, None)
    assert served.look()
    assert served.rows("user", 0) == [[number, number]]
    for lease in held[2:]:
        lease.__exit__(None, None, None)


def test_an_upsert_is_there_at_once_and_after_a_restart(serve: Serve) -> None:
    served = serve(journal=True)
    assert upsert(served, [2, 0], [[1, 2], [3, 4]]) == 1
    assert served.rows("user", 0, 2) == [[3, 4], [1, 2]]
    served.drop(7, "user", [2], [[7, 7]])
    served.look()
    assert upsert(served, [0], [[8, 8]]) == 8
    assert served.rows("user", 0, 2) == [[8, 8], [7, 7]] == serve(journal=True).rows("user", 0, 2)
    other = serve(journal=True)
    upsert(served, [4], [[5, 6]])
    other.look()
    assert other.rows("user", 4) == [[5, 6]]


def test_keys_of_the_vocabulary_name_rows(serve: Serve) -> None:
    served = serve(journal=True)
    change = Upsert(np.array([[1, 2, 3], [4, 5, 6]], np.float32), keys=np.array([b"blue", b"red"], object))
    served.engine.upsert(TOY, "tag", change)
    assert served.rows("tag", 1, 3) == [[4, 5, 6], [1, 2, 3]]


KEYS = np.array([b"red", b"pink"], object)


@pytest.mark.parametrize(
    ("table", "change", "error", "text"),
    [
        ("users", Upsert(np.ones((1, 2), np.float32), ids=np.array([0])), TableNotFound, "Tables: tag, user"),
        ("user", Upsert(np.ones((1, 3), np.float32), ids=np.array([0])), InputMismatch, "'user': rows of 3 numbers"),
        ("user", Upsert(np.ones((2, 2), np.float32), ids=np.array([0])), InputMismatch, "1 ids or keys for 2 rows"),
        ("user", Upsert(np.ones((1, 2), np.float32), ids=np.array([5])), IdOutOfRange, "id 5 at position 0"),
        ("user", Upsert(np.ones((1, 2), np.float32), ids=np.array([-1])), IdOutOfRange, "id -1 at position 0"),
        ("user", Upsert(np.ones((2, 2), np.float32), ids=np.array([3, 3])), IdOutOfRange, "id 3 occurs twice"),
        (
            "user",
            Upsert(np.float32([[1, np.nan]]), ids=np.array([3])),
            InputMismatch,
            "row 3 holds NaN, infinity or a number beyond float32",
        ),
        ("user", Upsert(np.ones((65_537, 2), np.float32), ids=np.zeros(65_537, np.int64)), IdsTooMany, "65536"),
        ("user", Upsert(np.ones((2, 2), np.float32), keys=KEYS), InputMismatch, "no vocabulary"),
        ("tag", Upsert(np.ones((2, 3), np.float32), keys=KEYS), IdOutOfRange, "key 'pink' at position 1"),
        ("tag", Upsert(np.ones((2, 3), np.float32), keys=KEYS, feature="x"), InputMismatch, 'no feature "x"'),
        ("tag", Upsert(np.ones((1, 3), np.float32), keys=np.array([1])), InputMismatch, "keys are string"),
    ],
)
def test_what_does_not_fit_changes_nothing(
    serve: Serve, table: str, change: Upsert, error: type[ServiceError], text: str
) -> None:
    served = serve(journal=True)
    with pytest.raises(error, match=text):
        served.engine.upsert(TOY, table, change)
    assert not served.version.parent.joinpath("journal").exists()


def test_without_a_journal_upserts_are_refused(serve: Serve) -> None:
    with pytest.raises(DeltaRefused, match="--delta_journal_dir"):
        upsert(serve(), [0], [[1, 1]])


def _symlink(version: Path) -> None:
    data = delta_bytes(version, 1, "user", [0], [[9, 9]])
    (version / "deltas").mkdir()
    (version / "elsewhere").write_bytes(data)
    (version / "deltas" / "1.delta").symlink_to(version / "elsewhere")


def _linked_folder(version: Path) -> None:
    (version / "elsewhere").mkdir()
    (version / "elsewhere" / "1.delta").write_bytes(delta_bytes(version, 1, "user", [0], [[9, 9]]))
    (version / "deltas").symlink_to(version / "elsewhere")


def _pipe(version: Path) -> None:
    (version / "deltas").mkdir()
    os.mkfifo(version / "deltas" / "1.delta")


def _huge(version: Path) -> None:
    drop(version, 1, delta_bytes(version, 1, "user", [0], [[9, 9]]))
    os.truncate(version / "deltas" / f"{1:016d}.delta", 1 << 40)


def _file(number: int = 1, table: str = "user", rows: list[list[float]] | None = None, **more: Any) -> Any:
    def put(version: Path) -> None:
        ids = more.pop("ids", [0])
        drop(version, number, delta_bytes(version, more.pop("says", 1), table, ids, rows or [[9, 9]], **more))

    return put


def _torn(version: Path) -> None:
    drop(version, 1, delta_bytes(version, 1, "user", [0], [[9, 9]])[:-1])


@pytest.mark.parametrize(
    ("put", "reason"),
    [
        (_symlink, "not_a_file"),
        (_linked_folder, "not_a_file"),
        (_pipe, "not_a_file"),
        (_huge, "oversized"),
        (_torn, "truncated"),
        (_file(2), "sequence"),
        (_file(fingerprint=b"x" * 32), "fingerprint"),
        (_file(table="../user"), "table"),
        (_file(rows=[[9.0]]), "table"),
        (_file(ids=[5]), "ids"),
        (_file(ids=[-1]), "ids"),
        (_file(ids=[0, 0], rows=[[9, 9], [9, 9]]), "ids"),
        (_file(rows=[[9.0, float("inf")]]), "values"),
    ],
)
def test_a_bad_file_is_refused_whole_and_stops_nothing(
    serve: Serve, put: Callable[[Path], None], reason: str, tmp_path: Path
) -> None:
    served = serve()
    put(served.version)
    assert served.look()
    assert served.rows("user", 0) == [[0, 0]]
    assert served.deltas.status().refused == {reason: 1}
    served.look()
    assert served.deltas.status().refused == {reason: 1}
    if not (served.version / "deltas").is_symlink():
        served.drop(3, "user", [1], [[3, 3]])
        served.look()
        assert served.rows("user", 0, 1) == [[0, 0], [3, 3]]


def test_a_torn_file_that_is_mended_is_taken(serve: Serve) -> None:
    served = serve()
    _torn(served.version)
    served.look()
    served.drop(1, "user", [0], [[9, 9]])
    served.look()
    assert served.rows("user", 0) == [[9, 9]]


def test_a_file_that_can_not_be_read_for_a_moment_is_taken_later(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    served = serve()
    served.drop(1, "user", [0], [[9, 9]])
    served.drop(2, "user", [1], [[3, 3]])
    opened = os.open

    def fail(path: Any, *arguments: Any, **more: Any) -> int:
        if str(path) == f"{1:016d}.delta":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return opened(path, *arguments, **more)

    with monkeypatch.context() as failing:
        failing.setattr(os, "open", fail)
        for _ in range(3):
            served.look()
            assert served.rows("user", 0, 1) == [[0, 0], [3, 3]]
            assert served.deltas.status().refused == {"not_a_file": 1}
    served.look()
    assert served.rows("user", 0, 1) == [[9, 9], [3, 3]]


def test_a_number_is_used_once(serve: Serve) -> None:
    served = serve()
    served.drop(1, "user", [0], [[9, 9]])
    served.look()
    for _ in range(30):
        # The same delta file is written again, so its time changes, and the server has to read it again.
        served.drop(1, "user", [0], [[9, 9]])
        served.look()
    assert served.deltas.status().refused == {}
    served.drop(1, "user", [0], [[8, 8]])
    for _ in range(30):
        served.look()
    assert served.rows("user", 0) == [[9, 9]]
    assert served.deltas.status().refused == {"repeated": 1}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8", "int4"])
def test_tables_of_fewer_bits_keep_what_the_exporter_would(serve: Serve, dtype: str) -> None:
    served = serve(dtype=dtype)
    served.drop(1, "user", [2], [[1.0, 0.3]])
    served.look()
    # 0.3 as it is stored beside 1.0: bfloat16 has 1 + 7 binary digits, float16 1 + 10, int8 127 steps to the largest
    # number, int4 7.
    expected = {"float16": 0.300048828125, "bfloat16": 0.30078125, "int8": 38 / 127, "int4": 2 / 7}
    rest = toy_tables_as(dtype)["user"][3].tolist()
    assert served.rows("user", 2, 3) == [[1.0, pytest.approx(expected[dtype], abs=2e-8)], rest]
    if dtype == "float16":
        served.drop(2, "user", [2], [[65520.0, 0]])
        served.look()
        assert served.deltas.status().refused == {"values": 1}


def test_a_number_counts_ids_over_all_sides(serve: Serve) -> None:
    served = serve()
    for number in range(1, 5):
        with served.registry.lease(TOY) as servable:
            looked_up(servable, *range(5))
        served.drop(number, "user", [0], [[1, 1]])
        served.look()
        (one,) = served.registry.loaded()
        assert one.servable.all_table_counts()["user"].ids == 5 * number


def test_a_version_that_goes_takes_its_sides_along(serve: Serve) -> None:
    served = serve()
    served.drop(1, "user", [0], [[1, 1]])
    served.look()
    (holder,) = served.registry.holders()
    served.drop(2, "user", [0], [[2, 2]])
    served.registry.unload("toy", 1)
    assert holder.servable.deltas is not None
    assert served.registry.replace(holder, holder.servable) is None


def test_a_version_that_goes_leaves_no_file_open(serve: Serve, tmp_path: Path) -> None:
    def open_files() -> list[str]:
        links = (os.path.join("/proc/self/fd", name) for name in os.listdir("/proc/self/fd"))
        found = [os.readlink(link) for link in links if os.path.lexists(link)]
        return sorted(name for name in found if str(tmp_path) in name)

    gc.disable()
    try:
        served = serve(journal=True)
        for value in (1.0, 2.0, 3.0):
            upsert(served, [1], [[value, value]])
            assert served.rows("user", 1) == [[value, value]]
        assert open_files()
        served.registry.unload("toy", 1)
        del served
        assert open_files() == []
    finally:
        gc.enable()


def test_as_a_set_would() -> None:
    chance = random.Random(3)
    for _ in range(50):
        seen, known = Sequences(), set[int]()
        for _ in range(60):
            number = chance.randint(1, 40)
            assert seen.add(number) == (number not in known)
            known.add(number)
            assert (seen.last, seen.missing) == (max(known), max(known) - len(known))


class Pruned(World):
    """A watched model folder; each of its versions has a journal with one upsert."""

    def __init__(self, base: Path, clock: Clock, journals: Path) -> None:
        super().__init__(base, clock)
        self.journals = journals
        self.worker()

    def worker(self) -> None:
        """Starts anew as another worker process would, which has seen and loaded nothing yet."""
        self.registry = Registry(lambda model, status: None)
        self.registry.add_model("m")
        rules = dataclasses.replace(self.rules, on_look=JournalPruning(self.journals, clock=self.clock).looked)
        self.watcher = ModelWatcher(self.config(), self.registry, rules)

    def journal(self, version: int) -> Path:
        """Returns the path of a version's journal."""
        return journal_path(self.journals, "m", version, b"\1" * 32)

    def give(self, *versions: int) -> None:
        """Adds versions, each with a journal."""
        self.add(*map(str, versions))
        for version in versions:
            Writer(self.journal(version)).append(version)

    def left(self) -> list[int]:
        """Returns the versions that still have a journal."""
        return sorted(int(path.name.split("-")[0]) for path in self.journals.rglob("*.journal"))

    def pass_by(self, seconds: float) -> None:
        """Polls the folder, moves the clock on, and polls again."""
        self.poll()
        self.clock.now_s += seconds
        self.poll()


@pytest.fixture
def world(tmp_path: Path, clock: Clock) -> Pruned:
    """Returns an empty model folder that is watched."""
    (tmp_path / "base").mkdir()
    return Pruned(tmp_path / "base", clock, tmp_path / "journals")


def told(caplog: pytest.LogCaptureFixture) -> list[int]:
    """Returns the versions whose journals the log says were removed."""
    text = "removed the journal of a version that is gone"
    return [record.__dict__["version"] for record in caplog.records if record.message == text]


def test_a_journal_goes_ten_minutes_behind_its_versions_folder(world: Pruned, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    world.give(1, 2, 3)
    world.pass_by(2 * GONE_S)
    # Versions 1 and 2 are not loaded, but their folders exist, so they may be loaded again.
    assert (world.serving, world.left()) == (3, [1, 2, 3])
    (world.base / "2").rmdir()
    world.pass_by(GONE_S - 1)
    assert world.left() == [1, 2, 3]
    world.pass_by(1)
    assert (world.left(), told(caplog)) == ([1, 3], [2])


def test_the_newest_version_may_come_back(world: Pruned) -> None:
    world.give(1, 2)
    (world.base / "2").rmdir()
    world.pass_by(2 * GONE_S)
    assert (world.serving, world.left()) == (1, [1, 2])
    # Version 3 is newer than the deleted version 2, so the server gives up the journal of version 2.
    world.add("3")
    world.pass_by(GONE_S)
    assert world.left() == [1]


def test_a_model_folder_that_can_not_be_read_or_is_empty_removes_nothing(world: Pruned) -> None:
    world.give(1, 2)
    (world.base / "1").rmdir()
    world.pass_by(GONE_S - 1)
    elsewhere = world.base.with_name("elsewhere")
    world.base.rename(elsewhere)
    world.pass_by(2 * GONE_S)
    assert world.left() == [1, 2]
    # An empty folder in place of the base path, as after a mount that failed.
    world.base.mkdir()
    world.worker()
    world.pass_by(2 * GONE_S)
    assert world.left() == [1, 2]
    world.base.rmdir()
    elsewhere.rename(world.base)
    # While the folder was away nobody knew whether version 1 existed, so the wait for its journal begins again.
    world.pass_by(GONE_S - 1)
    assert world.left() == [1, 2]
    world.pass_by(1)
    assert world.left() == [2]


def test_a_look_that_fails_begins_the_time_anew(world: Pruned) -> None:
    world.give(1, 2)
    (world.base / "1").rmdir()
    world.pass_by(GONE_S - 1)
    world.base.rename(world.base.with_name("elsewhere"))
    world.poll()
    world.base.with_name("elsewhere").rename(world.base)
    world.pass_by(GONE_S - 1)
    assert world.left() == [1, 2]


def test_a_folder_that_is_put_back_begins_the_time_anew(world: Pruned) -> None:
    world.give(1, 2)
    (world.base / "1").rmdir()
    world.pass_by(GONE_S - 1)
    world.add("1")
    world.poll()
    (world.base / "1").rmdir()
    world.pass_by(GONE_S - 1)
    assert world.left() == [1, 2]


def test_one_that_is_written_to_is_in_use(world: Pruned) -> None:
    world.give(1, 2)
    (world.base / "1").rmdir()
    world.pass_by(GONE_S - 1)
    Writer(world.journal(1)).append(5)
    world.pass_by(GONE_S - 1)
    assert world.left() == [1, 2]
    world.pass_by(1)
    assert world.left() == [2]


def test_of_two_workers_one_removes_it_and_one_that_is_held_stays(
    world: Pruned, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    world.give(1, 2)
    (world.base / "1").rmdir()
    first = JournalPruning(world.journals, clock=world.clock)
    other = JournalPruning(world.journals, clock=world.clock)
    for one in (first, other):
        one.looked("m", {2})
    world.clock.now_s += GONE_S
    with world.journal(1).open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        first.looked("m", {2})
        assert world.left() == [1, 2]
    other.looked("m", {2})
    world.clock.now_s += GONE_S
    first.looked("m", {2})
    assert (world.left(), told(caplog)) == ([2], [1])


def test_what_is_appended_as_it_is_removed_is_in_a_file_with_a_name(world: Pruned) -> None:
    world.give(1, 2)
    writer, is_removed = Writer(world.journal(1)), []

    def remove_once() -> float:
        # The writer reads the clock while it waits for the lock, and so after it opened the journal.
        if not is_removed:
            is_removed.append(True)
            pruning = JournalPruning(world.journals, clock=world.clock)
            pruning.looked("m", {2})
            world.clock.now_s += GONE_S
            pruning.looked("m", {2})
            assert world.left() == [2]
        return 0.0

    writer.journal._clock = remove_once
    writer.append(7)
    assert world.left() == [1, 2]
    assert [value for _, value in Writer(world.journal(1)).read()] == [7]


def test_what_is_no_journal_of_a_version_stays(world: Pruned, tmp_path: Path) -> None:
    world.give(1, 2)
    folder = world.journal(1).parent
    victim = tmp_path / "victim"
    victim.write_text("")
    os.symlink(victim, folder / f"1-{'0' * 16}.journal")
    for name in ("1.journal", f"1-{'0' * 16}.journal.bak", f"-1-{'0' * 16}.journal"):
        (folder / name).write_text("")
    before = {path.name for path in folder.iterdir()}
    (world.base / "1").rmdir()
    world.pass_by(GONE_S)
    assert {path.name for path in folder.iterdir()} == before - {world.journal(1).name}
    assert victim.exists()
