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
        return [self.held.get(str(commands[0].words[2]))]

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

    def follow(now_s: float) -> float:
        cluster.now_s = now_s
        follower.follow()
        return heard_s[-1]

    assert follow(100.2) == 100.2
    # Some rows of the upsert may be written already, and no entry tells of them.
    cluster.held, cluster.is_telling = {"7": UPSERT}, False
    assert [follow(now_s) for now_s in (100.4, 101.2, 101.6, 105.0)] == [100.2] * 4
    # This server finishes the upsert; some replicas lack the entry, so the cluster holds it still.
    cluster.is_telling = True
    assert follow(105.2) == 105.2
    assert follow(105.6) == 105.6
    cluster.is_telling = False
    assert follow(106.0) == 105.6
    cluster.held = {}
    assert follow(106.2) == 106.2


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
