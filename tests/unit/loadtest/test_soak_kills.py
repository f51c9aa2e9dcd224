"""A kill explains a lost connection about its time, and nothing else."""

from __future__ import annotations

import http.client
import os

import pytest

from loadtest.soak.workers import Kills

KILLED_S = 100.0


@pytest.fixture
def kills() -> Kills:
    """One kill, of no process."""
    found = Kills(os.getpid())
    found.at_s.append(KILLED_S)
    return found


@pytest.mark.parametrize(
    "error",
    [
        http.client.IncompleteRead(b"", 1785),
        http.client.RemoteDisconnected("Remote end closed connection without response"),
        ConnectionResetError(104, "Connection reset by peer"),
        BrokenPipeError(32, "Broken pipe"),
    ],
)
def test_a_lost_connection(kills: Kills, error: Exception) -> None:
    assert kills.tore(error, KILLED_S - 1)
    assert kills.tore(error, KILLED_S + 1)
    # It had been gone for long when the request began.
    assert not kills.tore(error, KILLED_S + 60)
    assert not Kills(os.getpid()).tore(error, KILLED_S)


def test_a_wrong_answer_is_one_whatever_was_killed(kills: Kills) -> None:
    assert not kills.tore(AssertionError("the answer differs"), KILLED_S)
