"""Up to which moment a server knows all changed rows of a remote table."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from service.artifact.delta_file import Delta, encode
from service.remote import changes
from service.remote.changes import TableChanges
from service.remote.layout import TableLayout
from service.remote.topology import Command, Primaries, Reason, Unreachable
from service.types import Array

LAYOUT = TableLayout("m", "t", "f" * 16, 8, row_bytes=4, block_rows=2, num_shards=4)
UPSERT = encode(Delta(7, "t", np.array([3]), np.ones((1, 1), np.float32), b"f" * 32))


class _Cluster:
    """A clock and a cluster without any entry of the stream; it holds upserts, and may refuse to tell of them."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.held: dict[str, bytes] = {}
        self.is_telling = True

    def monotonic(self) -> float:
        return self.now_s

    def read_as_of(self, commands: Sequence[Command], end_s: float) -> tuple[list[Any], float]:
        names = [name.encode() for name in self.held]
        return [names if one.words[0] == "HKEYS" else [] for one in commands], self.now_s

    def run(self, commands: Sequence[Command], end_s: float) -> list[Any]:
        return [self.held.get(str(one.words[2])) if one.words[0] == "HGET" else None for one in commands]

    def write(self, commands: Sequence[Command], end_s: float) -> bool:
        if commands[0].words[1] == changes._TELL and not self.is_telling:
            raise Unreachable(Reason("no node of the slot is known"))
        self.now_s += 0.1
        return False


def test_the_time_of_an_unfinished_upsert_does_not_count_until_its_rows_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster, heard_s = _Cluster(), [0.0]
    monkeypatch.setattr(changes, "time", cluster)
    monkeypatch.setattr(changes, "os", SimpleNamespace(urandom=bytes))
    follower = TableChanges(LAYOUT, cast("Primaries", cluster), "float32")
    follower.on_heard = heard_s.append
    follower.begin(101)

    told: list[Array | None] = []
    follower.listeners.append(told.append)

    def follow(now_s: float) -> float:
        cluster.now_s = now_s
        told.clear()
        follower.follow()
        return heard_s[-1]

    assert follow(100.2) == 100.2
    # Some rows of the upsert may be written already, and no entry tells of them.
    cluster.held, cluster.is_telling = {"7": UPSERT}, False
    assert follow(100.4) == follow(101.2) == 100.2 and not told
    # The server reads which row it is. From then on, listeners drop it at each look, whatever becomes of the upsert.
    for now_s, cluster.is_telling in ((101.5, False), (101.7, False), (105.0, True), (105.4, False)):
        assert follow(now_s) == now_s
        assert told and all(ids is not None and ids.tolist() == [3] for ids in told)
    cluster.held = {}
    assert follow(106.2) == 106.2 and not told


def test_rows_of_a_file_that_another_server_writes_are_dropped_until_it_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster, heard_s, told = _Cluster(), [0.0], list[Array | None]()
    monkeypatch.setattr(changes, "time", cluster)
    follower = TableChanges(LAYOUT, cast("Primaries", cluster), "float32")
    follower.on_heard = heard_s.append
    follower.listeners.append(told.append)
    follower.begin(101)
    # A file of the rows 2 and 5, and one of too many rows to name them.
    cluster.held = {"-8": np.array([5, 2], "<i8").tobytes()}
    for cluster.now_s in (100.2, 101.4, 101.6):
        follower.follow()
    assert heard_s[-1] == 101.6
    assert told and all(ids is not None and ids.tolist() == [2, 5] for ids in told)
    assert follower.num_pending == 1
    cluster.held = {"-8": cluster.held["-8"], "-9": b""}
    for cluster.now_s in (102.0, 103.2, 103.4):
        follower.follow()
    assert heard_s[-1] == 103.4
    assert told[-1] is None


def test_many_upserts_that_a_replica_lacks_hold_up_no_look(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, heard_s = _Cluster(), [0.0]
    monkeypatch.setattr(changes, "time", cluster)
    monkeypatch.setattr(changes, "os", SimpleNamespace(urandom=bytes))
    follower = TableChanges(LAYOUT, cast("Primaries", cluster), "float32")
    follower.on_heard = heard_s.append
    follower.begin(101)
    cluster.held = {str(number): UPSERT for number in range(1, 41)}
    follower.follow()
    written = []
    # Each upsert takes 0.2 s, because each write waits for the replica.
    for _ in range(10):
        cluster.now_s += 1
        begin_s, before = cluster.now_s, follower.applied
        follower.follow()
        written.append(follower.applied - before)
        assert cluster.now_s - begin_s < 1.5
    assert set(written) <= {5, 6}
    # Once all upserts were read, the server knows at each look the rows that they change.
    assert heard_s[-1] >= begin_s and follower.num_pending == 40


def test_a_damaged_upsert_changes_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, heard_s = _Cluster(), [0.0]
    monkeypatch.setattr(changes, "time", cluster)
    follower = TableChanges(LAYOUT, cast("Primaries", cluster), "float32")
    follower.on_heard = heard_s.append
    follower.begin(101)
    cluster.held = {"7": UPSERT[:-1]}
    for cluster.now_s in (100.2, 101.4):
        follower.follow()
    assert heard_s[-1] == 101.4
