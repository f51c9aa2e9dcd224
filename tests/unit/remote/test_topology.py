"""Why a cluster gave no answer."""

from __future__ import annotations

import redis

from service.remote.topology import Reason, Unreachable


def test_a_time_limit_replaces_no_refusal() -> None:
    why = Reason("no node was asked")
    why.note(redis.TimeoutError("Timeout connecting to server"), ("a", 1))
    assert why.text == "a:1: Timeout connecting to server"
    why.note(redis.AuthenticationError("WRONGPASS"), ("a", 1))
    for late in (redis.TimeoutError("late"), TimeoutError("late"), Unreachable(Reason("late"))):
        why.note(late)
        assert why.text == "a:1: WRONGPASS"
    outer = Reason("no node was asked")
    outer.note(Unreachable(why))
    outer.note(TimeoutError("late"))
    assert outer.text == "a:1: WRONGPASS"
    outer.note(OSError("refused"))
    assert outer.text == "refused"
