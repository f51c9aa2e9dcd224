"""Health checks follow each change, and thousands of changes cost a tenth of the time at most."""

from __future__ import annotations

import threading

from service.process.app import HealthUpdates
from tests.conftest import Clock
from tests.unit.engine.test_model_set import until


def test_a_change_is_shown_at_once() -> None:
    shown: list[int] = []
    updates = HealthUpdates(lambda: shown.append(threading.get_ident()))
    updates.note()
    updates.update()
    assert shown == [threading.get_ident()] * 2


def test_changes_in_the_pause_after_an_update_are_shown_together_and_the_last_one_is_not_lost(clock: Clock) -> None:
    state, shown = [0], list[int]()

    def update() -> None:
        shown.append(state[0])
        clock.now_s += 1e-3

    updates = HealthUpdates(update, clock)
    for number in range(1, 1001):
        state[0] = number
        updates.note()
    until(lambda: shown[-1] == 1000)
    assert shown[0] == 1
    # The thread's sleep takes real time, and the fake clock goes on with each update only.
    assert len(shown) < 1000


def test_a_change_during_an_update_is_shown_after_it() -> None:
    state, shown = [1], list[int]()
    is_read, goes_on = threading.Event(), threading.Event()

    def update() -> None:
        seen = state[0]
        is_read.set()
        assert goes_on.wait(60)
        shown.append(seen)

    updates = HealthUpdates(update)
    first = threading.Thread(target=updates.note)
    first.start()
    assert is_read.wait(60)
    state[0] = 2
    updates.note()
    goes_on.set()
    until(lambda: shown == [1, 2])
    first.join()
