"""What comes in one turn of the event loop: in which order it is worked on and answered."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
from service.transports.turns import Turns

from service.transports import turns

LARGE = b"L" * (64 << 10)


class _Transport:
    is_aborted = False

    def abort(self) -> None:
        self.is_aborted = True


class Client:
    """A connection that writes down what becomes of it, in a log that all have."""

    def __init__(self, name: str, log: list[str], answer_bytes: int = 10) -> None:
        self.name, self.log, self.answer_bytes = name, log, answer_bytes
        self.transport: Any = _Transport()
        self.work_s = 0.0

    def take(self, data: bytes) -> int:
        """Works; b"bad" is not to be worked on."""
        if data == b"bad":
            raise RuntimeError("bad")
        if self.work_s:
            end_s = time.perf_counter() + self.work_s
            while time.perf_counter() < end_s:
                pass
        self.log.append(f"{self.name} took {'large' if data == LARGE else data.decode()}")
        return self.answer_bytes

    def answer(self) -> None:
        """Answers."""
        self.log.append(f"{self.name} answered")

    def flush(self) -> None:
        """Sends."""
        self.log.append(f"{self.name} sent")


def run(
    scene: Callable[[Turns, list[str]], None], *, later: Callable[[Turns, list[str]], None] | None = None
) -> list[str]:
    """Plays a scene in one turn of an event loop, then a later one, and returns the log."""
    log: list[str] = []

    async def play() -> None:
        found = Turns()
        scene(found, log)
        await asyncio.sleep(0)
        if later is not None:
            later(found, log)
        await asyncio.sleep(0.02)

    asyncio.run(play())
    return log


def clients(number: int, log: list[str], **options: int) -> list[Client]:
    """Returns so many, named by letters."""
    return [Client(chr(ord("a") + i), log, **options) for i in range(number)]


def without_answers(log: list[str]) -> list[str]:
    """Returns what was read and what was sent."""
    return [line for line in log if "answered" not in line]


def test_all_is_worked_on_before_any_of_it_is_sent() -> None:
    def scene(found: Turns, log: list[str]) -> None:
        for client in clients(3, log):
            found.came(client, b"1")
        assert log == []

    assert run(scene) == [
        *("a took 1", "b took 1", "c took 1"),
        *("a answered", "b answered", "c answered"),
        *("a sent", "b sent", "c sent"),
    ]


def test_large_answers_are_sent_before_more_is_worked_on() -> None:
    def scene(found: Turns, log: list[str]) -> None:
        for client in clients(3, log, answer_bytes=300 << 10):
            found.came(client, b"1")

    assert without_answers(run(scene)) == ["a took 1", "b took 1", "a sent", "b sent", "c took 1", "c sent"]


def test_small_requests_go_first_and_each_connection_keeps_its_order() -> None:
    def scene(found: Turns, log: list[str]) -> None:
        a, b = clients(2, log)
        found.came(a, b"1")
        found.came(a, LARGE)
        found.came(a, b"2")
        found.came(b, b"1")

    log = run(scene)
    assert [line for line in log if "took" in line] == ["a took 1", "b took 1", "a took large", "a took 2"]


def test_small_requests_are_let_in_between_large_ones() -> None:
    late: list[Client] = []

    def scene(found: Turns, log: list[str]) -> None:
        a, b, c = clients(3, log)
        late.append(c)
        for client in (a, b):
            client.work_s = 0.003
            found.came(client, LARGE)

    def later(found: Turns, log: list[str]) -> None:
        # The first large one is done, the second waits.
        assert log == ["a took large", "a answered", "a sent"]
        found.came(late[0], b"1")

    log = run(scene, later=later)
    assert without_answers(log) == ["a took large", "a sent", "c took 1", "c sent", "b took large", "b sent"]


def test_where_few_are_busy_they_are_answered_as_they_come() -> None:
    seen: list[Client] = []

    def scene(found: Turns, log: list[str]) -> None:
        seen.extend(clients(2, log))
        found.came(seen[0], b"1")

    def later(found: Turns, log: list[str]) -> None:
        found.came(seen[1], b"2")
        assert log[-3:] == ["b took 2", "b answered", "b sent"]

    run(scene, later=later)


def test_where_many_are_busy_all_wait_for_the_turn() -> None:
    seen: list[Client] = []

    def scene(found: Turns, log: list[str]) -> None:
        seen.extend(clients(12, log))
        for client in seen:
            found.came(client, b"1")

    def later(found: Turns, log: list[str]) -> None:
        found.came(seen[1], b"2")
        assert "b took 2" not in log

    assert run(scene, later=later)[-3:] == ["b took 2", "b answered", "b sent"]


def test_how_many_are_busy_is_looked_at_again() -> None:
    def later(found: Turns, log: list[str]) -> None:
        (client,) = clients(1, log)
        for number in range(100):
            found.came(client, b"%d" % number)
        assert f"a took {turns._BETWEEN_LOOKS - 1}" in log
        assert f"a took {turns._BETWEEN_LOOKS}" not in log

    log = run(lambda found, log: found.came(Client("a", log), b"first"), later=later)
    assert [line for line in log if "took" in line] == ["a took first", *(f"a took {n}" for n in range(100))]


def test_the_end_of_a_connection_comes_behind_its_data() -> None:
    def scene(found: Turns, log: list[str]) -> None:
        a, b = clients(2, log)
        found.came(a, LARGE)
        found.came(b, LARGE)
        found.came(a, b"1")
        found.came(b, b"1")
        found.settle(a)
        assert without_answers(log) == ["a took large", "a took 1", "a sent", "a sent"]

    assert without_answers(run(scene))[4:] == ["b took large", "b sent", "b took 1", "b sent"]


def test_so_it_does_where_all_of_it_is_small() -> None:
    def scene(found: Turns, log: list[str]) -> None:
        a, b = clients(2, log)
        found.came(a, b"1")
        found.settle(b)
        found.came(b, b"2")
        found.settle(b)
        assert without_answers(log) == ["a took 1", "a sent", "b took 2", "b sent"]

    assert len(run(scene)) == 6


def test_no_more_is_kept_than_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "_KEPT_BYTES", 100)

    def scene(found: Turns, log: list[str]) -> None:
        a, b = clients(2, log)
        found.came(a, b"1" * 60)
        found.came(b, b"2" * 30)
        assert log == []
        found.came(a, b"3" * 30)
        assert len(without_answers(log)) == 6
        # And counted anew.
        found.came(a, b"4" * 60)
        assert len(without_answers(log)) == 6

    assert len(without_answers(run(scene))) == 8


def test_one_that_fails_is_ended_and_the_others_are_answered() -> None:
    told: list[dict[str, Any]] = []
    seen: list[Client] = []

    def scene(found: Turns, log: list[str]) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
        seen.extend(clients(3, log))
        for client, data in zip(seen, (b"1", b"bad", b"1"), strict=True):
            found.came(client, data)

    log = run(scene)
    others = [line for line in without_answers(log) if "b " not in line]
    assert others == ["a took 1", "c took 1", "a sent", "c sent"]
    assert [client.transport.is_aborted for client in seen] == [False, True, False]
    assert str(told[0]["exception"]) == "bad"


def test_one_that_can_not_answer_is_ended_and_the_others_are_answered() -> None:
    told: list[dict[str, Any]] = []
    seen: list[Client] = []

    def fail() -> None:
        raise RuntimeError("no answer")

    def scene(found: Turns, log: list[str]) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
        seen.extend(clients(3, log))
        seen[1].answer = fail  # type: ignore[method-assign]
        for client in seen:
            found.came(client, b"1")

    log = run(scene)
    assert [line for line in log if "answered" in line] == ["a answered", "c answered"]
    assert [client.transport.is_aborted for client in seen] == [False, True, False]
    assert str(told[0]["exception"]) == "no answer"
