"""The counters of a removed model are shown in some more scrapes, and then forgotten."""

from __future__ import annotations

from service.observe.metrics import MOST_SHOWN, SHOWN_SCRAPES, GoneModels


def test_a_removed_model_is_forgotten_after_some_scrapes() -> None:
    forgotten: list[str] = []
    gone = GoneModels(forgotten.append)
    gone.note(["a", "b"])
    for _ in range(100):
        gone.note(["a", "b"], scrapes=1)
    gone.note(["a"])
    for _ in range(SHOWN_SCRAPES):
        gone.note(["a"], scrapes=1)
    assert forgotten == []
    gone.note(["a"], scrapes=1)
    assert forgotten == ["b"]
    # "a" is found missing by a scrape, and not by a change of the list.
    for _ in range(SHOWN_SCRAPES):
        gone.note([], scrapes=1)
    assert forgotten == ["b"]
    gone.note([], scrapes=1)
    assert forgotten == ["b", "a"]


def test_a_model_that_comes_back_keeps_its_counters() -> None:
    forgotten: list[str] = []
    gone = GoneModels(forgotten.append)
    gone.note(["a"])
    gone.note([])
    for _ in range(5 * SHOWN_SCRAPES):
        gone.note(["a"], scrapes=1)
    assert forgotten == []


def test_a_server_that_nobody_scrapes_keeps_no_more_than_some_removed_models() -> None:
    forgotten: list[str] = []
    gone = GoneModels(forgotten.append)
    for number in range(MOST_SHOWN + 3):
        gone.note([f"m{number}"])
    gone.note([])
    assert sorted(forgotten) == ["m0", "m1", "m2"]
