"""Writers and followers of a remote table keep its promises while nodes of a simulated cluster fail."""

from __future__ import annotations

import pytest

from loadtest.simulate.changes import run_seed
from service.remote.changes import TableChanges


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
