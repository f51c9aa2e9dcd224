"""The history of a version's states, which the console's time line shows."""

from __future__ import annotations

from service.observe.history import MAX_CHANGES, MAX_NAMES, VersionHistory
from service.types import State, VersionStatus


def test_changes_are_kept_by_model_with_their_times() -> None:
    times = iter([10.0004, 11.0, 12.0])
    history = VersionHistory(lambda: next(times))
    history.note("m", VersionStatus(1, State.LOADING))
    history.note("other", VersionStatus(7, State.START))
    history.note("m", VersionStatus(1, State.END, "DATA_LOSS", "broken"))
    assert history.read("m") == [
        {"at_s": 10.0, "version": 1, "state": "LOADING", "message": ""},
        {"at_s": 12.0, "version": 1, "state": "END", "message": "broken"},
    ]
    assert history.read("absent") == []


def test_changes_and_models_are_limited() -> None:
    history = VersionHistory()
    for version in range(MAX_CHANGES + 5):
        history.note("m", VersionStatus(version, State.START))
    assert [change["version"] for change in history.read("m")] == list(range(5, MAX_CHANGES + 5))
    for number in range(MAX_NAMES):
        history.note(f"model-{number}", VersionStatus(1, State.START))
    assert history.read("m") == [] and history.read("model-0")
