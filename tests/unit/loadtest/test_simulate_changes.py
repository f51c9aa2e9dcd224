"""Writers and followers of a remote table keep its promises while nodes of a simulated cluster fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from loadtest.simulate import changes as simulation
from loadtest.simulate.changes import run_seed
from service.remote import replicas
from service.remote.changes import TableChanges
from service.remote.replicas import Report


@pytest.mark.parametrize("seed", range(20))
def test_promises_hold_while_nodes_fail(seed: int) -> None:
    assert run_seed(seed).failure == ""


def test_a_seed_does_the_same_each_time() -> None:
    first, again = run_seed(7), run_seed(7)
    assert first.history == again.history
    assert first.reads > first.cached > 0


def test_changes_that_are_not_heard_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TableChanges, "_tell", lambda changes, ids: None)
    assert "cached" in run_seed(0).failure


def test_upserts_that_are_not_finished_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TableChanges, "_finish_held", lambda changes, name: None)
    assert any("unfinished upserts" in run_seed(seed).failure for seed in range(20))


def _hear_of_entries_alone(changes: TableChanges) -> None:
    if changes.on_heard is not None:
        changes.on_heard(changes._heard_s)


def _trust_ended_primaries(*reports: Any, gone_s: float | None, as_of_s: float) -> float:
    return _HAS_ALL_S(*reports, gone_s=None if gone_s is None else float("-inf"), as_of_s=as_of_s)


def _trust_restarted_replicas(own: Report, before: Report | None, known: Report | None, **more: Any) -> float:
    is_same = before is not None and own.offset >= before.offset
    return _HAS_ALL_S(own, before if is_same else None, known, **more)


def _hold_no_file(changes: TableChanges, name: str, *more: Any) -> bool:
    return name.startswith("-") or _HOLD(changes, name, *more)


_HAS_ALL_S: Callable[..., float] = replicas.has_all_s
_HOLD: Callable[..., bool] = TableChanges._hold


@pytest.mark.parametrize(
    ("kind", "seed", "owner", "name", "fault"),
    [
        # The stream takes no entry of an upsert, or of a delta file, whose rows are written.
        ("full", 1, TableChanges, "_tell_held", _hear_of_entries_alone),
        ("full", 3, TableChanges, "_hold", _hold_no_file),
        # A healed network brings a replica old changes of a primary that does not answer.
        ("hold", 31, replicas, "FRESH_S", float("inf")),
        # A primary is cut off from its replicas, and ends 1.4 s later or more.
        ("starve", 2, replicas, "has_all_s", _trust_ended_primaries),
        # A replica starts again with what it had saved, while a server does not reach its primary.
        ("restart", 4, replicas, "has_all_s", _trust_restarted_replicas),
    ],
)
def test_old_rows_are_found(
    monkeypatch: pytest.MonkeyPatch, kind: str, seed: int, owner: Any, name: str, fault: object
) -> None:
    monkeypatch.setattr(simulation, "_KINDS", (kind,))
    assert run_seed(seed).failure == ""
    monkeypatch.setattr(owner, name, fault)
    assert "was [" in run_seed(seed).failure


def test_an_upsert_that_a_lost_primary_held_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    # A primary is cut off from its replicas, takes an upsert, and ends. The server that took the upsert lives.
    monkeypatch.setattr(simulation, "_KINDS", ("part",))
    assert run_seed(11).failure == ""
    monkeypatch.setattr(TableChanges, "_hold_again", lambda changes, end_s: None)
    assert "160003.0 was confirmed" in run_seed(11).failure


def test_a_replica_that_takes_over_gives_no_number_again(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_seed(2119).failure == ""
    monkeypatch.setattr(TableChanges, "_newest", property(lambda _: 0, lambda *_: None), raising=False)
    assert "160021.0 was confirmed" in run_seed(2119).failure
