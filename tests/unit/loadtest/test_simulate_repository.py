"""The list of models, watchers, registry and pruning of journals keep their promises in any order of events."""

from __future__ import annotations

import pytest

from loadtest.simulate.repository import run_seed
from service.versions.registry import Registry
from service.versions.repository import ModelWatcher


@pytest.mark.parametrize("seed", range(5))
def test_promises_hold_in_any_order_of_events(seed: int) -> None:
    assert run_seed(seed) == ""


def test_a_version_that_is_unloaded_too_early_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    act = ModelWatcher.act

    def unload_first(watcher: ModelWatcher, scanned: object) -> float | None:
        scan = scanned.scan  # type: ignore[attr-defined]
        if scan is not None and watcher.base_path is not None:
            watcher._unload_all_but([max(scan.folders, default=0)])
        return act(watcher, scanned)  # type: ignore[arg-type]

    monkeypatch.setattr(ModelWatcher, "act", unload_first)
    assert "nothing answers in its place" in run_seed(0)


def test_memory_that_is_kept_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Registry, "_close", lambda registry, holder, poll_s: holder.retire())
    assert "was closed 0 times" in run_seed(0)
